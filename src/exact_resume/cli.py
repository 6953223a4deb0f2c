"""The command exact-resume. What it does is elsewhere; here are arguments, tables and exit statuses.

torch takes seconds to import, so each command imports what it needs when it is called.
"""

import json
import shutil
import signal
import sys
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from exact_resume.errors import LabError

if TYPE_CHECKING:
    from exact_resume.checkpoint.comparison import Comparison, Difference
    from exact_resume.checkpoint.contents import Contents

EQUAL, DIFFERENT, MISTAKE, INTERRUPTED = 0, 1, 2, 130
# Of the keys at a checkpoint's top so many are shown in a table.
SHOWN_KEYS = 3
# A column of text is at least so wide, and so many letters are between columns.
FOLDED, BETWEEN = 12, 3

app = typer.Typer(
    help="Proves whether a training run that was stopped and resumed equals the uninterrupted one, bit for bit.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs, in place of text.")]


def main() -> None:
    """Run the command. A user's mistake is one line on standard error and exit status 2."""
    # What reads the output may go away, as head does.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    sys.stdout.reconfigure(errors="backslashreplace")
    try:
        # A recorded program's own arguments are its own.
        if "" in sys.argv[1 : sys.argv.index("--") if "--" in sys.argv else None]:
            raise LabError("found an empty argument (an unset variable?), wanted a value, or none")
        status = app(sys.argv[1:] or ["--help"], prog_name="exact-resume", standalone_mode=False)
    except (typer.Abort, KeyboardInterrupt):
        status = INTERRUPTED
    except typer.TyperException as error:
        status = _refused(error.format_message())
    except LabError as error:
        status = _refused(error)
    except OSError as error:
        status = _refused(f"{error.filename}: {error.strerror}" if error.filename else error)
    sys.exit(status)


def _refused(error):
    print(f"error: {_printable(error)}", file=sys.stderr)
    return MISTAKE


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"exact-resume {version('exact-resume')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


@app.command(short_help="Which piece of state did a run lose?")
def diagnose(
    reference: Annotated[Path, typer.Argument(metavar="REFERENCE", help="Trace or record of the uninterrupted run.")],
    others: Annotated[
        list[Path],
        typer.Argument(metavar="OTHER...", help="Trace or record of the other run, or of each of its legs in order."),
    ],
    repeat: Annotated[
        Path | None,
        typer.Option(metavar="TRACE", help="The same of a second uninterrupted run: whether runs repeat."),
    ] = None,
    first_update: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="The update that a recorded run's first leg begins with, if unclear."),
    ] = None,
    unused: Annotated[
        bool, typer.Option("--unused", help="Also name generators that differ and are never drawn from.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Say which piece of state a run lost, from its trace or record and the uninterrupted run's.

    \b
    Example:
      exact-resume diagnose straight.csv resumed.csv
      exact-resume diagnose straight/ stopped/ resumed/

    A recorded program counts its updates from 1 each time that it is started; it is placed where the reference holds
    the weights, optimizer and schedule that it begins with. Updates that it trained once more are a note, no fault.

    The exit status is 0 whatever is found, and 2 for a mistake, such as a file that is no trace. --json prints the
    diagnosis with its sentence.
    """
    from exact_resume.recording.diagnosing import diagnose_paths

    found = diagnose_paths(reference, others, repeat, unused, first_update)
    print(_json(found) if as_json else found["sentence"])


@app.command(
    short_help="Run a program as it is, and trace it.",
    context_settings={"allow_interspersed_args": False},
)
def record(
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND...", help="The program with its arguments.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the record goes: a new folder.")] = Path("record"),
    kill_after: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Stop it right before update N+1 begins.")
    ] = None,
    stop_signal: Annotated[
        str, typer.Option(metavar="SIGNAL", help="What stops it: KILL, or a signal that lets it say goodbye.")
    ] = "KILL",
    grace: Annotated[float, typer.Option(metavar="SECONDS", min=0, help="How long it may take for that.")] = 30.0,
    window: Annotated[
        str | None,
        typer.Option(metavar="FIRST:LAST", help="Updates of which all is recorded; of others what is cheap."),
    ] = None,
) -> int:
    """Run a program as it is, and leave a trace of each of its processes that train, with what it printed.

    \b
    Example:
      exact-resume record --out straight -- python train.py --steps 60
      exact-resume record --out stopped --kill-after 30 -- python train.py --steps 60
      exact-resume record --out resumed -- python train.py --steps 60 --resume
      exact-resume diagnose straight stopped resumed

    A row is an update, a call of any optimizer's step: the weights, the optimizer's state and settings, schedulers,
    scalers, averages, loaders, generators, gradients and batches that go into it, and what comes out. Nothing changes
    for the program. All that it started is ended when it is done.

    The exit status is the program's (128 more than the signal that ended it), 0 where it was stopped as told, and 2 for
    a mistake, such as a program that never trains.
    """
    from exact_resume.recording import launch

    number, updates = _signal(stop_signal), _window(window)
    found = launch.run(command, out, kill_after=kill_after, stop_signal=number, grace=grace, window=updates)
    for problem in found.problems:
        print(f"not looked at: {_printable(problem)}", file=sys.stderr)
    status = found.returncode or 0
    if not status:
        launch.check(found, kill_after)
    made = ", ".join(f"{_count(count, 'update')} of {name}" for name, count in found.processes.items())
    print(f"recorded in {out}: {made or 'no update'}", file=sys.stderr)
    return EQUAL if found.status == "stopped" else 128 - status if status < 0 else status


def _signal(name):
    try:
        return signal.Signals[f"SIG{name.upper().removeprefix('SIG')}"]
    except KeyError:
        raise LabError(f"--stop-signal: found {name}, wanted a signal's name such as KILL or TERM") from None


def _window(text):
    if text is None:
        return None
    first, colon, last = text.partition(":")
    if not (colon and first.isdecimal() and last.isdecimal() and int(first) <= int(last)):
        raise LabError(f"--window: found {text}, wanted two numbers of updates such as 10:20, the first no later")
    return int(first), int(last)


@app.command(short_help="How far apart are two checkpoints?")
def compare(
    first: Annotated[Path, typer.Argument(metavar="A", help="A checkpoint: a file or a folder.")],
    second: Annotated[Path, typer.Argument(metavar="B", help="Another one, of the same or another form.")],
    as_json: Json = False,
) -> int:
    """Say how far two checkpoints are apart, name by name, the farthest first.

    \b
    Example:
      exact-resume compare straight.pth resumed.pth

    A checkpoint is a file that torch.save wrote, weights or a resume file; a .safetensors file; the index
    .safetensors.index.json of several ones; a folder that torch.distributed.checkpoint wrote; or a folder with such an
    index or just one such file. Names are joined with dots where they are nested. All is read with weights_only=True.

    Equal means the same names, dtypes, shapes and bits: 0 and -0 are different, and so are two NaNs of other bits.
    Which kind of dict or list things are in doesn't count. The relative difference is |B - A| / |A| (L2).

    The exit status is 0 when both are equal, 1 when they differ, 2 for a mistake, such as a file that isn't whole.
    --json prints first, second, equal, the counts tensors, equal_tensors, values and equal_values of what has the same
    name in both, max_abs_diff and rel_l2 of all tensors together, and differences: for each name what, first, second,
    max_abs_diff, rel_l2, not_finite, equal_after. What has no distance comes first there.
    """
    from exact_resume.checkpoint import comparison, readers

    opened = readers.contents(first), readers.contents(second)
    found = comparison.compare(*opened)
    if as_json:
        print(_json({"first": str(first), "second": str(second), "equal": found.equal, **asdict(found)}))
    else:
        if found.differences:
            _print_table(DIFFERENCE_COLUMNS, [_difference_row(one) for one in found.differences])
        print(_summary(found))
    return EQUAL if found.equal else DIFFERENT


@app.command(short_help="Are checkpoints whole, and what do they hold?")
def verify(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Checkpoints: files or folders.")],
    as_json: Json = False,
) -> int:
    """Say whether checkpoints are whole and safe to read, and what they hold.

    \b
    Example:
      exact-resume verify resume.pth model/

    Of what torch.save and torch.distributed.checkpoint write, the CRC-32 of each record is checked; safetensors files
    and torch files from before 1.6 have no checksums. No code in a file can run.

    The exit status is 0 when all are whole, 1 when one isn't, which a line on standard error says, 2 for a mistake.
    --json prints a list: for each file, file, whole, error, form, checked, tensors, values (that are no tensors),
    elements of all tensors, tensor_bytes, bytes of the files, dtypes with their tensors, and keys at the top.
    """
    from exact_resume.checkpoint import readers

    entries = []
    for file in files:
        try:
            entries.append(_entry(file, readers.contents(file)))
        except LabError as error:
            print(f"error: {_printable(error)}", file=sys.stderr, flush=True)
            entries.append({"file": str(file), "whole": False, "error": str(error)})
    if as_json:
        print(_json(entries))
    else:
        _print_table(FILE_COLUMNS, [_file_row(entry) for entry in entries])
    return EQUAL if all(entry["whole"] for entry in entries) else DIFFERENT


class Column(NamedTuple):
    """A column of a table; text in a terminal is folded in it, numbers and words are not."""

    title: str
    right: bool = False
    folded: bool = False


DIFFERENCE_COLUMNS = [
    Column("name", folded=True),
    Column("difference"),
    Column("largest", right=True),
    Column("relative", right=True),
    Column("equal as"),
    Column("not finite", right=True),
    Column("A → B", folded=True),
]
FILE_COLUMNS = [
    Column("file", folded=True),
    Column("whole"),
    Column("form", folded=True),
    Column("checked"),
    Column("tensors", right=True),
    Column("elements", right=True),
    Column("bytes", right=True),
    Column("dtypes", folded=True),
    Column("keys", folded=True),
]


def _difference_row(one: "Difference") -> list[str]:
    there = [text for text in (one.first, one.second) if text is not None]
    return [
        one.name,
        one.what,
        _number(one.max_abs_diff, one.not_finite),
        _number(one.rel_l2, one.not_finite),
        one.equal_after or "",
        str(one.not_finite) if one.not_finite else "",
        there[0] if len(set(there)) == 1 else " → ".join(there),
    ]


def _number(number, not_finite):
    if number is None:
        return ""
    return "inf" if not_finite else f"{number:.3g}"


def _summary(found: "Comparison") -> str:
    if found.equal:
        return f"equal bit for bit: {_count(found.tensors, 'tensor')}, {_count(found.values, 'other value')}"
    whats = [one.what for one in found.differences]
    parts = [f"{found.tensors - found.equal_tensors} of {_count(found.tensors, 'tensor')} differ"]
    if found.values:
        parts.append(f"{found.values - found.equal_values} of {_count(found.values, 'other value')} differ")
    parts += [f"{whats.count(what)} {what}" for what in ("missing", "extra") if what in whats]
    if "kind" in whats:
        parts.append(f"{whats.count('kind')} a tensor in one alone")
    parts.append(f"largest difference {found.max_abs_diff:.3g}, relative {found.rel_l2:.3g}")
    return "; ".join(parts)


def _count(number, name):
    return f"{number} {name}{'' if number == 1 else 's'}"


def _entry(file: Path, contents: "Contents") -> dict[str, Any]:
    kinds = contents.kinds.values()
    dtypes = [kind.dtype for kind in kinds]
    return {
        "file": str(file),
        "whole": True,
        "error": None,
        "form": contents.form,
        "checked": contents.checked,
        "tensors": len(kinds),
        "values": len(contents.others),
        "elements": sum(kind.elements for kind in kinds),
        "tensor_bytes": sum(kind.bytes for kind in kinds),
        "bytes": contents.bytes,
        "dtypes": {dtype: dtypes.count(dtype) for dtype in sorted(set(dtypes))},
        "keys": contents.top,
    }


def _file_row(entry: dict[str, Any]) -> list[str]:
    if not entry["whole"]:
        return [entry["file"], "no", *[""] * (len(FILE_COLUMNS) - 2)]
    keys = entry["keys"][:SHOWN_KEYS]
    more = len(entry["keys"]) - len(keys)
    return [
        entry["file"],
        "yes",
        entry["form"],
        entry["checked"],
        *(f"{entry[name]:,}" for name in ("tensors", "elements", "bytes")),
        ", ".join(entry["dtypes"]),
        ", ".join([*keys, f"and {more} more"] if more else keys),
    ]


def _print_table(columns: list[Column], rows: list[list[str]]) -> None:
    """Print a table that fits the terminal's width; elsewhere, or where it can't fit, lines of text, however long."""
    rows = [[_printable(cell) for cell in row] for row in rows]
    used = [number for number in range(len(columns)) if any(row[number] for row in rows)]
    columns, rows = [columns[number] for number in used], [[row[number] for number in used] for row in rows]
    widths = [max(map(len, cells)) for cells in zip([column.title for column in columns], *rows)]
    least = sum(min(width, FOLDED) if column.folded else width for column, width in zip(columns, widths))
    if sys.stdout.isatty() and shutil.get_terminal_size().columns >= least + BETWEEN * len(columns):
        _print_in_terminal(columns, rows)
        return
    for line in [[column.title for column in columns], *rows]:
        cells = zip(line, columns, widths)
        print("  ".join(f"{cell:{'>' if column.right else '<'}{width}}" for cell, column, width in cells).rstrip())


def _print_in_terminal(columns, rows):
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        justify = "right" if column.right else "left"
        table.add_column(column.title, justify=justify, overflow="fold", no_wrap=not column.folded)
    for row in rows:
        table.add_row(*map(Text, row))
    Console(highlight=False).print(table)


def _printable(text):
    """Return a text from a file, which may hold anything, as one line that can't steer a terminal."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in str(text))


def _json(value):
    return json.dumps(value, indent=2, allow_nan=False)
