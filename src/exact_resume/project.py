"""Where the files of the project lie that the package belongs to: a checkout, since an installed package has no
pipeline.
"""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CONFIG_FILE = ROOT / "config.yaml"
SCHEMA_FILE = ROOT / "workflow" / "schemas" / "config.schema.yaml"
SCRIPTS = ROOT / "workflow" / "scripts"
TRAINERS = ROOT / "workflow" / "trainers"
# The built-in trainers of the audit.
TRAINERS_FILE = TRAINERS / "trainers.yaml"
