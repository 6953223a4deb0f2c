"""What the project says of itself in two places is the same in both."""

import re
import subprocess
import sys

import pytest
import yaml

from conftest import ROOT


def pins(requirements):
    """The pins of a requirements file and of those that it refers to, these first."""
    lines = (ROOT / "envs" / requirements).read_text().splitlines()
    referred = [pin for line in lines if line.startswith("-r ") for pin in pins(line[3:])]
    return referred + [line for line in lines if line and not line.startswith(("#", "-r "))]


@pytest.mark.parametrize(
    ("conda", "pip"), [("conda.yaml", "requirements.txt"), ("conda-audit.yaml", "requirements-audit.txt")]
)
def test_conda_and_pip_pins_are_the_same(conda, pip):
    assert yaml.safe_load((ROOT / "envs" / conda).read_text())["dependencies"][-1]["pip"] == pins(pip)
    assert all(re.fullmatch(r"[a-z0-9_-]+==[0-9.]+", pin) for pin in pins(pip))


def test_one_package_has_one_pin_everywhere():
    files = sorted(path.name for path in (ROOT / "envs").glob("requirements*.txt"))
    found = {tuple(pin.split("==")) for file in files for pin in pins(file)}
    assert len({name for name, _ in found}) == len(found)


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
