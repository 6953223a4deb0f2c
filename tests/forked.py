"""Scripts run in processes that are forked from one that has imported torch: importing it takes longer than most of
them do.
"""

import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["torch", "numpy", "pandas", "matplotlib.pyplot", "jinja2", "jsonschema", "yaml", "tqdm"])


def run(script, flags, folder):
    """Run the Python file `script` with `flags` as its command line in a process of its own, in `folder`, and return
    what became of it.
    """
    with tempfile.TemporaryDirectory() as outputs:
        paths = [Path(outputs, name) for name in ("stdout", "stderr")]
        process = FORKS.Process(
            target=_become, args=(str(script), list(map(str, flags)), str(folder), list(map(str, paths)))
        )
        process.start()
        process.join()
        stdout, stderr = (path.read_text() if path.exists() else "" for path in paths)
    return subprocess.CompletedProcess([sys.executable, str(script), *flags], process.exitcode, stdout, stderr)


def _become(script, flags, folder, outputs):
    for descriptor, path in enumerate([os.devnull, *outputs]):
        opened = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.dup2(opened, descriptor)
        os.close(opened)
    os.chdir(folder)
    sys.argv = [script, *flags]
    sys.path.insert(0, os.path.dirname(script))
    runpy.run_path(script, run_name="__main__")
