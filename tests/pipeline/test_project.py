"""What the project says of itself in two places is the same in both."""

import re
import subprocess
import sys
import tomllib

import pytest
import yaml

from conftest import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def pins():
    """The versions of envs/constraints.txt by package, in its order."""
    lines = (ROOT / "envs" / "constraints.txt").read_text().splitlines()
    assert all(re.fullmatch(r"[a-z0-9_-]+==[0-9.]+", line) for line in lines[1:])
    return dict(line.split("==") for line in lines[1:])


def needed(*extras):
    """What the package needs with these extras, by name and sorted."""
    names = set(PROJECT["dependencies"])
    for extra in extras:
        for name in PROJECT["optional-dependencies"][extra]:
            names |= set(needed(*re.findall(r"\[(\w+)\]", name))) if name.startswith(PROJECT["name"]) else {name}
    return sorted(names)


@pytest.mark.parametrize(("conda", "extra"), [("conda.yaml", "workflow"), ("conda-audit.yaml", "audit")])
def test_conda_and_pip_pins_are_the_same(conda, extra):
    wanted = [f"{name}=={pins()[name]}" for name in needed(extra)]
    assert yaml.safe_load((ROOT / "envs" / conda).read_text())["dependencies"][-1]["pip"] == wanted


def test_every_package_that_is_needed_has_one_pin_and_no_other_one_has():
    assert needed(*PROJECT["optional-dependencies"]) == list(pins()) == sorted(pins())


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
