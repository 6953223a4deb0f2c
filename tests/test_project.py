"""What the project says of itself in two places is the same in both."""

import re
import subprocess
import sys

import yaml

from conftest import ROOT


def test_conda_and_pip_pins_are_the_same():
    pip = [line for line in (ROOT / "envs/requirements.txt").read_text().splitlines() if line and not line.startswith("#")]
    conda = yaml.safe_load((ROOT / "envs/conda.yaml").read_text())
    assert conda["dependencies"][-1]["pip"] == pip
    assert all(re.fullmatch(r"[a-z0-9_-]+==[0-9.]+", pin) for pin in pip)


def edges(mermaid):
    """The set of (rule, rule) that a Mermaid flowchart draws, with ids or with plain names."""
    names = dict(re.findall(r'(id\d+)\["?(.*?)"?\]', mermaid))
    return {tuple(names.get(end, end) for end in edge) for edge in re.findall(r"(\w+) --> (\w+)", mermaid)}


def test_readmes_diagram_is_the_rule_graph():
    command = [sys.executable, "-m", "snakemake", "--rulegraph", "mermaid-js", "report.md"]
    drawn = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    shown = re.search(r"```mermaid\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL).group(1)
    assert edges(shown) == edges(drawn)
    assert ("stopped", "variant") in edges(shown)


def test_readme_names_every_variant_and_every_file():
    text = (ROOT / "README.md").read_text()
    config = yaml.safe_load((ROOT / "config.yaml").read_text())
    for name in [*config, *config["variants"], *config["training"], *config["data"]]:
        assert f"`{name}" in text, name
