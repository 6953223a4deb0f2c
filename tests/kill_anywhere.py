"""Kill the pipeline's whole process group at random moments, start it again, until it is done; then compare with an
undisturbed one.

After each kill every checkpoint that has its final name has to be whole, and in the end every artifact has to have the
undisturbed one's bytes, and no temporary file and no progress may be left.
"""

import argparse
import contextlib
import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

from exact_resume.checkpoint import archive


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=5, help="how often to kill (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the moments (default: %(default)s)")
    parser.add_argument(
        "--longest", type=float, default=8.0, help="a kill comes after at most so many seconds (default: %(default)s)"
    )
    parser.add_argument(
        "--signal", default="SIGKILL", choices=["SIGKILL", "SIGTERM", "SIGINT"], help="(default: %(default)s)"
    )
    parser.add_argument(
        "--targets", nargs="+", default=["report.md"], help="what the pipeline is to make (default: %(default)s)"
    )
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="kill-anywhere-"))
    undisturbed, disturbed = folder / "undisturbed", folder / "disturbed"
    if start(undisturbed, args.targets).wait():
        sys.exit(f"the undisturbed pipeline failed:\n{(undisturbed / 'output.txt').read_text()}")
    expected = artifacts(undisturbed)
    kills, starts, torn = 0, 0, []
    moments = random.Random(args.seed)
    while True:
        process = start(disturbed, args.targets)
        starts += 1
        moment = moments.uniform(0.0, args.longest) if kills < args.kills else None
        try:
            status = process.wait(moment)
        except subprocess.TimeoutExpired:
            end(process, signal.Signals[args.signal])
            kills += 1
            torn += torn_checkpoints(disturbed)
            continue
        if status:
            sys.exit(f"start {starts} failed with status {status}:\n{(disturbed / 'output.txt').read_text()}")
        if kills >= args.kills:
            break
        # Done before its kill came: make it anew, so that as many kills come as were asked for.
        shutil.rmtree(disturbed)
    found = artifacts(disturbed)
    different = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
    left = [str(path) for pattern in ("*.tmp", "*.progress*") for path in disturbed.rglob(pattern)]
    counts = f"{len(found)} artifacts, {len(different)} different, {len(torn)} torn, {len(left)} left over"
    print(f"{kills} kills ({args.signal}), {starts} starts: {counts}")
    if different or torn or left:
        sys.exit("\n".join([*(f"different: {name}" for name in different), *torn, *left, f"see {folder}"]))
    shutil.rmtree(folder)


def start(folder, targets):
    """Start the tiny pipeline in `folder`, as the leader of a process group of its own."""
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "snakemake", "-s", ROOT / "Snakefile", "-c2", *targets, "-d", folder]
    with open(folder / "output.txt", "w") as output:
        configs = ["--configfile", ROOT / "tests" / "tiny.yaml", ROOT / "tests" / "kill_anywhere.yaml"]
        return subprocess.Popen([*command, *configs], stdout=output, stderr=subprocess.STDOUT, start_new_session=True)


def end(process, number):
    """Send the signal to the whole process group; what doesn't end within ten seconds is killed, as batch systems
    do.
    """
    os.killpg(process.pid, number)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(10)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    time.sleep(0.1)


def torn_checkpoints(folder):
    """Return what is wrong with the checkpoints in `folder` that have their final names."""
    wrong = []
    # Of what is kept beside a job's progress, its losses, sketches, trace and lock are no checkpoints.
    for path in [*folder.rglob("*.pth"), *folder.rglob("*.pth.progress"), *folder.rglob("*.previous")]:
        try:
            archive.load(path)
        except archive.LabError as error:
            wrong.append(str(error))
    return wrong


def artifacts(folder):
    """Return the digests of the files in `folder` that the pipeline made there, by name."""
    paths = [path for path in folder.rglob("*") if path.is_file() and not {".snakemake", "logs"} & set(path.parts)]
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in paths
        if path.name != "output.txt"
    }


if __name__ == "__main__":
    main()
