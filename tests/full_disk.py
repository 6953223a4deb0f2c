"""Run a small pipeline on a file system that gets full, give it room, and run the same command again; then compare.

The full run has to end with a line that says so, leave no torn checkpoint, and the second one with the bytes of an
undisturbed one. The file systems are tmpfs in a mount namespace of their own (unshare), which needs root or user
namespaces.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from kill_anywhere import ROOT, artifacts, torn_checkpoints

# "$1" the file system's size when it is full, "$2" the folder that is mounted, "$3" where to copy what was made, the
# rest the command.
SCRIPT = """
set -u
size=$1 folder=$2 copy=$3; shift 3
mount -t tmpfs -o size="$size" tmpfs "$folder" || exit 99
"$@" > "$copy/full.txt" 2>&1; echo $? > "$copy/full.status"
cp -a "$folder" "$copy/full"
mount -o remount,size=1g tmpfs "$folder"
"$@" > "$copy/room.txt" 2>&1; echo $? > "$copy/room.status"
cp -a "$folder" "$copy/room"
"""
FULL = re.compile(r"error: \S+: can't be written: No space left on device|error: .*No space left on device")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--shares",
        type=float,
        nargs="+",
        default=[0.2],
        help="sizes, as shares of what all files need (default: %(default)s)",
    )
    parser.add_argument(
        "--targets", nargs="+", default=["report.md"], help="what the pipeline is to make (default: %(default)s)"
    )
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        undisturbed = Path(folder, "undisturbed")
        subprocess.run(pipeline_in(undisturbed, args.targets), check=True, capture_output=True)
        expected = artifacts(undisturbed / "results")
        needed = sum(path.stat().st_size for path in (undisturbed / "results").rglob("*") if path.is_file())
        for index, share in enumerate(args.shares):
            faults = try_with(int(share * needed), Path(folder, str(index)), args.targets, expected)
            print(
                f"{share:.2f} of {needed} bytes: "
                f"{'; '.join(faults) or 'one clear line, nothing torn, the same bytes with room again'}"
            )
            if faults:
                sys.exit(1)


def pipeline_in(folder, targets):
    """Return the command of the tiny pipeline in `folder`."""
    command = [sys.executable, "-m", "snakemake", "-s", str(ROOT / "Snakefile"), "-c2", *targets, "-d", str(folder)]
    return [
        *command,
        "--configfile",
        str(ROOT / "tests" / "tiny.yaml"),
        "--config",
        "training={steps: 40, stop_at: 20}",
    ]


def try_with(size, folder, targets, expected):
    """Run on a file system of `size` bytes, and again with room. Return what was wrong, a list of texts."""
    results = folder / "results"
    results.mkdir(parents=True)
    command = [
        "unshare",
        "--map-root-user",
        "--mount",
        "bash",
        "-c",
        SCRIPT,
        "bash",
        str(size),
        str(results),
        str(folder),
    ]
    subprocess.run([*command, *pipeline_in(folder, targets)], check=True)
    said = (folder / "full.txt").read_text()
    wrong = []
    if (folder / "full.status").read_text().strip() == "0":
        wrong.append("it did not get full")
    if not FULL.search(said):
        wrong.append(f"it said no clear line: {said[-2000:]}")
    if "Traceback" in said:
        wrong.append(f"it said a traceback: {said[-4000:]}")
    wrong += torn_checkpoints(folder / "full")
    wrong += [f"{path.name} left" for pattern in ("*.tmp", "*.lock") for path in (folder / "full").rglob(pattern)]
    if (folder / "room.status").read_text().strip() != "0":
        wrong.append(f"it failed with room: {(folder / 'room.txt').read_text()[-2000:]}")
    found = artifacts(folder / "room")
    return wrong + sorted(
        f"{name} differs" for name in expected.keys() | found.keys() if expected.get(name) != found.get(name)
    )


if __name__ == "__main__":
    main()
