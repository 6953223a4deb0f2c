"""What a script's code means: which modules it is made of, and which edits of them count."""

import os

import pytest

from conftest import ROOT
from exact_resume.audit.command import code_digests, data_files
from exact_resume.pipeline.sources import code_digest, sources
from exact_resume.project import SCRIPTS, TRAINERS

RECORDER = ROOT / "src" / "exact_resume" / "tracing" / "recorder.py"


@pytest.fixture
def write(tmp_path):
    """A function that writes modules, given as text by their paths, below the test's folder, and returns the path of
    the first.
    """

    def write_all(files):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path / next(iter(files))

    return write_all


def names(script, *roots):
    folder = script.parent
    return {os.path.relpath(path, folder.resolve()) for path in sources(script, roots)}


PACKAGE = {
    "package/__init__.py": "",
    "package/one.py": "",
    "package/two.py": "",
    "package/sub/__init__.py": "",
    "package/sub/three.py": "",
}
INIT = {"package/__init__.py"}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("import package", INIT),
        ("import package.one", INIT | {"package/one.py"}),
        ("import package.one as other, json", INIT | {"package/one.py"}),
        ("from package import one, two", INIT | {"package/one.py", "package/two.py"}),
        ("from package.sub import three", INIT | {"package/sub/__init__.py", "package/sub/three.py"}),
        ("from package.sub.three import name", INIT | {"package/sub/__init__.py", "package/sub/three.py"}),
        ("def f():\n    if True:\n        import package.one", INIT | {"package/one.py"}),
        ("try:\n    import package.two\nexcept ImportError:\n    pass", INIT | {"package/two.py"}),
        ("import importlib\nimportlib.import_module('package.one')", INIT | {"package/one.py"}),
        ("from importlib import import_module\nimport_module('package.two')", INIT | {"package/two.py"}),
        ("__import__('package.one')", INIT | {"package/one.py"}),
        ("import numpy, os.path\nname = 'package.one'", set()),
    ],
)
def test_imports_of_every_form_are_followed(write, text, found):
    assert names(write({"script.py": text, **PACKAGE})) == {"script.py"} | found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("from . import two", {"package/two.py"}),
        ("from .two import name", {"package/two.py"}),
        ("from .sub import three", {"package/sub/__init__.py", "package/sub/three.py"}),
        ("from .sub.three import name", {"package/sub/__init__.py", "package/sub/three.py"}),
        ("import importlib\nimportlib.import_module('.two', __package__)", {"package/two.py"}),
        ("from ....... import far", set()),
    ],
)
def test_relative_imports_are_followed_in_a_package(write, text, found):
    script = write({"script.py": "import package.one", **PACKAGE, "package/one.py": text})
    assert names(script) == {"script.py", "package/one.py"} | INIT | found


def test_relative_imports_of_a_parent_and_in_init_are_followed(write):
    files = {
        **PACKAGE,
        "package/sub/three.py": "from .. import two\nfrom ..one import name",
        "package/sub/__init__.py": "from .three import name",
    }
    assert names(write({"script.py": "import package.sub", **files})) == {"script.py", *PACKAGE}


def test_cycles_and_packages_without_init_end(write):
    files = {"script.py": "import a.b", "a/b.py": "import a.c", "a/c.py": "from . import b\nimport script"}
    assert names(write(files)) == set(files)


def test_modules_of_other_folders_are_found_in_the_given_roots(write):
    script = write(
        {
            "trainers/mine.py": "from lab.trace import Trace\nimport beside",
            "trainers/beside.py": "",
            "lab/trace.py": "import noun",
            "noun.py": "",
        }
    )
    assert names(script) == {"mine.py", "beside.py"}
    assert names(script, script.parents[1]) == {"mine.py", "beside.py", "../lab/trace.py", "../noun.py"}


def test_script_behind_a_link_finds_what_lies_beside_it(write, tmp_path):
    script = write({"real/script.py": "import beside", "real/beside.py": ""})
    (tmp_path / "link.py").symlink_to(script)
    assert sources(tmp_path / "link.py") == sources(script)
    assert len(sources(script)) == 2


BEFORE = '''\
"""What it does."""
import helper

NAMES = ["a", 'b']


class Error(Exception):
    """Raised."""


def f(x):
    """Return it."""
    return helper.g(x) + "text" + "more"
'''
SAME = '''\
# A comment.
"""Something else."""

import helper
NAMES = [
    'a',
    "b",
]
class Error(Exception):
    pass
def f(x):  # returns it
    """Longer.

    Much longer.
    """
    "no docstring, but nobody reads it"
    return (
        helper.g(x)
        + 'text' + u"more"
    )
'''


def test_comments_docstrings_and_formatting_are_no_meaning(write):
    script = write({"script.py": BEFORE, "helper.py": "def g(x):\n    return x\n"})
    before = code_digest(script)
    write({"script.py": SAME, "helper.py": "\n\n\ndef g( x ):\n  '''The same.'''\n  return  x # it\n"})
    assert code_digest(script) == before


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('+ "text"', '+ "texts"'),
        ("[\"a\", 'b']", '["a", \'b\', ""]'),
        ("(Exception)", "(BaseException)"),
        ("def f(x)", "def f(x=1)"),
        ("helper.g(x)", "helper.g(1)"),
        ("return helper", "yield helper"),
        ("import helper", "import helper as helper"),
        ("class Error", "x = '''Raised.'''\nclass Error"),
    ],
)
def test_every_change_of_meaning_counts(write, old, new):
    script = write({"script.py": BEFORE, "helper.py": ""})
    before = code_digest(script)
    assert old in BEFORE
    write({"script.py": BEFORE.replace(old, new)})
    assert code_digest(script) != before


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("1", "1.0"),
        ("1", "True"),
        ("'1'", "1"),
        ("b'a'", "'a'"),
        ("0.0", "-0.0"),
        ("(1, 2)", "[1, 2]"),
        ("None", "'None'"),
    ],
)
def test_constants_of_other_types_are_other_meanings(write, one, other):
    assert code_digest(write({"a/script.py": f"x = {one}"})) != code_digest(write({"b/script.py": f"x = {other}"}))


def test_change_in_a_reached_module_counts_and_one_beside_it_does_not(write):
    script = write({"script.py": "import package.one", **PACKAGE})
    before = code_digest(script)
    write({"package/two.py": "x = 1"})
    assert code_digest(script) == before
    write({"package/__init__.py": "x = 1"})
    changed = code_digest(script)
    assert changed != before
    write({"package/__init__.py": "", "package/one.py": "x = 1"})
    assert code_digest(script) not in (before, changed)


def test_place_of_the_project_does_not_count(write):
    files = {"script.py": "import package.one\nimport lab.trace", **PACKAGE, "root/lab/trace.py": "x = 1"}
    here, there = (write({f"{place}/{name}": text for name, text in files.items()}) for place in ("here", "deep/there"))
    assert code_digest(here, [here.parent / "root"]) == code_digest(there, [there.parent / "root"])


@pytest.mark.parametrize("broken", [b"def f(:\n", b"x = 1\0", b"\xff\xfe", b"(" * 500 + b")" * 500])
def test_broken_script_counts_by_its_bytes(tmp_path, broken):
    script = tmp_path / "script.py"
    script.write_bytes(broken)
    before = code_digest(script)
    assert sources(script) == [script.resolve()]
    script.write_bytes(broken + b"# more")
    assert code_digest(script) != before


def test_every_trainer_here_is_made_of_the_trace_that_it_writes():
    scripts = [path for path in TRAINERS.glob("*.py") if path.name not in ("task.py", "contract.py")]
    assert len(scripts) == 7
    for script in scripts:
        assert RECORDER in sources(script, [SCRIPTS]), script


@pytest.mark.parametrize(
    "line",
    [
        "from exact_resume import Trace",
        "from exact_resume.tracing import recorder",
        "import exact_resume.tracing.recorder",
    ],
)
def test_script_anywhere_is_made_of_what_it_imports_of_this_package(write, line):
    script = write({"mine.py": line})
    assert RECORDER in sources(script)
    assert RECORDER not in sources(write({"other.py": "import exact_resume.errors"}).parent / "other.py")


@pytest.mark.parametrize(
    ("command", "changed"),
    [
        ("python mine.py", "mine.py"),
        ("python mine.py --lr 1", "package/one.py"),
        ("python -m package.main", "package/main.py"),
        ("python -m package.main", "package/__init__.py"),
        ("python -m package.main", "beside.py"),
        ("python -m package", "package/__main__.py"),
        ("torchrun --nproc-per-node 2 -m package.main", "package/two.py"),
        ("env PYTHONPATH=src python mine.py", "src/far.py"),
        ("cd . && python mine.py", "package/one.py"),
    ],
)
def test_code_of_a_trainers_command_is_followed(write, tmp_path, monkeypatch, command, changed):
    monkeypatch.chdir(tmp_path)
    main = "from . import two\nimport beside"
    write(
        {
            "mine.py": "import package.one, far",
            **PACKAGE,
            "package/main.py": main,
            "package/__main__.py": main,
            "beside.py": "",
            "src/far.py": "",
        }
    )
    before = code_digests(command)
    write({changed: f"{(tmp_path / changed).read_text()}\n# Nothing."})
    assert code_digests(command) == before
    write({changed: f"{(tmp_path / changed).read_text()}\nx = 1"})
    assert code_digests(command) != before


def test_other_files_of_a_trainers_command_are_named(write, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write({"mine.py": "", "conf.yaml": "", "more.toml": "", "run.sh": ""})
    assert data_files("bash run.sh mine.py --config=conf.yaml more.toml absent.txt") == [
        "run.sh",
        "conf.yaml",
        "more.toml",
    ]
