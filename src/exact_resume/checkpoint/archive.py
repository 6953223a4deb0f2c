"""Checkpoint files: written whole or not at all, verified before they are trusted, read without running what is in
them.
"""

import io
import mmap
import os
import re
import stat
import struct
import sys
import warnings
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from reprlib import Repr
from typing import Any, BinaryIO

import torch
from isal import isal_zlib

from exact_resume.checkpoint.atomic import previous, remove, replacing
from exact_resume.errors import LabError

LOCAL_HEADER = struct.Struct("<4s22xHH")
# What follows a record's data where its header doesn't say their size: their CRC-32 and their size, twice.
DESCRIPTORS = [struct.Struct("<4sIII"), struct.Struct("<4sIQQ")]
# What an archive ends with: entries, size and offset of the central directory; the last two, with larger fields, where
# torch wrote it.
END = struct.Struct("<4s6xHIIH")
LOCATOR = struct.Struct("<4s4xQ4x")
LARGE_END = struct.Struct("<4s28xQQQ")

# The records that torch.save writes, below a folder of any name. Others make torch take the file for a program.
RECORDS = re.compile(r"data\.pkl|data/\d+|byteorder|version|\.[\w/]+")
NO_ARCHIVE = "{path}: truncated or not a checkpoint, wanted an archive written by torch.save"
# Of a record so many bytes at a time are in memory while it is checked.
CHECKED_BYTES = 2**24

DICTS = (dict, OrderedDict)
PLAIN = (type(None), bool, int, float, str)
# Containers in containers; the lab's have six.
DEEPEST = 20
SHORTENED = Repr()
SHORTENED.maxstring = SHORTENED.maxother = 80


def save(path: str | os.PathLike, value: Any, keep_previous: bool = False) -> None:
    """Write `value` to `path` with torch.save, whole or not at all; equal values give equal bytes.

    With `keep_previous` the checkpoint that was there before stays too, for load_newest.

    The archive goes through a file object because torch.save writes a path's own name into the archive.
    """
    with replacing(path, keep_previous) as file:
        try:
            torch.save(_with_own_parts(value), file)
        except RuntimeError as error:
            # After a failed write torch tries to finish the archive, which fails in turn and hides why.
            if isinstance(error.__context__, OSError):
                raise error.__context__ from error
            raise


def _with_own_parts(value):
    """Return `value` with containers of its own and with one object for all strings that are equal.

    Pickle writes an object that it meets again as a reference, so which of two equal strings are the same object would
    show in the bytes: those of a checkpoint that was loaded are others than those of the program.
    """
    if isinstance(value, str):
        return sys.intern(value)
    if isinstance(value, dict):
        copy = type(value)((_with_own_parts(key), _with_own_parts(item)) for key, item in value.items())
        if hasattr(value, "_metadata"):
            # What a module's state_dict() carries beside the tensors: the versions of its parts.
            copy._metadata = _with_own_parts(value._metadata)
        return copy
    if type(value) in (list, tuple):
        return type(value)(map(_with_own_parts, value))
    return value


def load(path: str | os.PathLike) -> Any:
    """Return what `save` wrote to `path`: dicts by names or numbers, lists and tuples of tensors, numbers and text, and
    nothing else.

    Every tensor is dense, on the CPU, and the only one that knows its storage's size and order: contiguous, and its
    storage no larger than it. That it has the right dtype, shape and values is for who uses it to say, as `fault` does.
    Raises LabError as `read` does, and when the file holds anything else.
    """
    value = read(path)
    wrong = _impurity(value)
    if wrong:
        raise LabError(f"{path}: {wrong}")
    return value


def read(path: str | os.PathLike) -> Any:
    """Return what torch.save wrote to `path`, on the CPU, with `weights_only=True`, so that no code in the file can
    run.

    First the CRC-32 of every record is checked, which torch doesn't do. Raises LabError, one line, when the file is
    missing, truncated, damaged, or no archive of plain records.
    """
    with refusing(path), _opened(path) as file:
        verify(file, path)
        file.seek(0)
        return torch_load(file)


def read_unverified(path: str | os.PathLike) -> Any:
    """Return what torch.save of torch before 1.6 wrote to `path`: no archive, without checksums. Raises LabError."""
    with refusing(path, "a torch file"), _opened(path) as file:
        return torch_load(file)


def read_part(content: bytes, path: str | os.PathLike) -> Any:
    """Return what torch.save wrote as `content`, a part of the file `path`, read as `read` does. Raises LabError."""
    with refusing(path):
        _verify(_archive(io.BytesIO(content), path), content, path)
        return torch_load(io.BytesIO(content))


def tensor_records(path: str | os.PathLike) -> list[tuple[int, int]]:
    """Return where the data of each tensor record of the archive `path` begin, and their size, in bytes, in the file's
    order. Raises LabError as `read` does.
    """
    with refusing(path), _opened(path) as file:
        return [place for name, place in verify(file, path).items() if name.partition("/")[2].startswith("data/")]


@contextmanager
def _opened(path):
    with open(path, "rb", opener=_open_without_waiting) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise LabError(f"{path}: not a file, wanted a checkpoint")
        yield file


@contextmanager
def refusing(path: str | os.PathLike, wanted: str = "a checkpoint") -> Iterator[None]:
    """Raise LabError, one line that names `path`, for whatever a damaged or hostile file makes the block raise: it is
    not what was `wanted`.
    """
    try:
        yield
    except LabError:
        raise
    except OSError as error:
        raise LabError(f"{path}: can't be read: {error.strerror or error}") from error
    except Exception as error:
        # Whatever a hostile file makes the unpickler trip over.
        raise LabError(f"{path}: not {wanted} that is safe to read: {reason(error)}") from error


def torch_load(file: BinaryIO | str | os.PathLike, mapped: bool = False) -> Any:
    """Return what torch reads in `file`, an open file or a path, on the CPU, without running code in it, and without
    warnings. `mapped`: the tensors' memory is the file's, which must be a path to an archive.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.load(file, map_location="cpu", weights_only=True, mmap=mapped)


def _open_without_waiting(path, flags):
    # For somebody who writes, if it is a pipe.
    return os.open(path, flags | os.O_NONBLOCK)


def reason(error):
    """Return why torch didn't load a file, in one line, without its advice to load it with weights_only=False."""
    text = str(error)
    forbidden = re.search(r"GLOBAL (\S+)", text)
    if forbidden:
        return f"found {forbidden[1]}, wanted tensors and plain values"
    told = (text.partition("WeightsUnpickler error: ")[2].strip() or text.strip()).splitlines()
    if not told or "weights_only" in told[0]:
        return f"torch can't read it ({type(error).__name__})"
    return told[0]


def load_newest(path: str | os.PathLike, use: Callable[[Any, Any], Any] = lambda value, path: value) -> Any:
    """Return `use(value, path)` of what `load` gives of `path`, or where either raises LabError or `path` is missing,
    of the checkpoint that was saved before it.

    The damage is said on standard error in one line, and the damaged file removed, so that the next save doesn't keep
    it in place of the whole one. Raises LabError when none is whole.
    """
    try:
        return use(load(path), path)
    except LabError as error:
        if not os.path.lexists(previous(path)):
            raise
        damage = error
    try:
        value = use(load(previous(path)), previous(path))
    except LabError as error:
        raise damage if os.path.lexists(path) else error from error
    print(f"{damage}; taking {previous(path)}, which was saved before it", file=sys.stderr)
    remove(path)
    return value


def verify(file: BinaryIO, path: str | os.PathLike) -> dict[str, tuple[int, int]]:
    """Check that the open file `file` is an archive of whole, uncompressed records with the right CRC-32 each, and
    nothing else: records from the first byte on, one after another, and the archive's directory at the end.

    Return where each record's data begin, and their size, by its name. Raises LabError naming `path`, also for records
    that torch.save doesn't write, and for numbers in another byte order than here.
    """
    archive = _archive(file, path)
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return _verify(archive, content, path)


def _archive(file, path):
    try:
        return zipfile.ZipFile(file)
    except (
        zipfile.BadZipFile,
        ValueError,
        struct.error,
        NotImplementedError,
        UnicodeDecodeError,
        OverflowError,
    ) as error:
        raise LabError(NO_ARCHIVE.format(path=path)) from error


def _verify(archive, content, path):
    """Check `archive`, a ZipFile, whose bytes are `content`, as `verify` does, and return the same."""
    refused = NO_ARCHIVE.format(path=path)
    records = sorted(archive.infolist(), key=lambda record: record.header_offset)
    entries, directory = _directory(content)
    if (entries, directory) != (len(records), archive.start_dir):
        raise LabError(refused)
    places, end, names = {}, 0, _records_by_name(records, path)
    for record in records:
        if record.compress_type != zipfile.ZIP_STORED or record.compress_size != record.file_size:
            raise LabError(
                f"{path}: record {record.filename!r} is compressed, wanted records as torch.save writes them"
            )
        if record.header_offset != end or end + LOCAL_HEADER.size > directory:
            raise LabError(refused)
        begin = data_offset(content, record)
        end = begin + record.file_size
        if not _has_header(content, record) or end > directory:
            raise LabError(refused)
        if _crc32(content, begin, end) != record.CRC:
            raise LabError(f"{path}: record {record.filename!r} is damaged: its CRC-32 is not the one that was written")
        # torch finds names without regard to case.
        if record.filename.lower() in places:
            raise LabError(f"{path}: found two records of one name, wanted an archive written by torch.save")
        places[record.filename.lower()] = (begin, record.file_size)
        end += _descriptor_size(content, end, record)
    if end != directory:
        raise LabError(refused)
    _check_byte_order(archive, names, path)
    return places


def _crc32(content, begin, end):
    """Return the CRC-32 of content[begin:end], of which no more than a part stays in memory if it is a mapped file."""
    crc = 0
    with memoryview(content) as view:
        for start in range(begin, end, CHECKED_BYTES):
            stop = min(start + CHECKED_BYTES, end)
            with view[start:stop] as data:
                # isal's is ten times as fast as zlib's.
                crc = isal_zlib.crc32(data, crc)
            if isinstance(content, mmap.mmap):
                first = start - start % mmap.PAGESIZE
                content.madvise(mmap.MADV_DONTNEED, first, stop - first)
    return crc


def _records_by_name(records, path):
    """Return the records by their names below the archive's folder. Raises LabError unless they are those of one
    torch.save.
    """
    folder = records[0].filename.partition("/")[0] if records else ""
    names = {record.filename.removeprefix(f"{folder}/"): record for record in records}
    strange = next((record.filename for name, record in names.items() if not RECORDS.fullmatch(name)), None)
    if strange is not None:
        raise LabError(
            f"{path}: not a checkpoint: found the record {show(strange)}, wanted none but those that torch.save writes"
        )
    if "data.pkl" not in names:
        raise LabError(f"{path}: not a checkpoint: found no record data.pkl, wanted those that torch.save writes")
    return names


def _check_byte_order(archive, names, path):
    """Raise LabError unless the archive's numbers are in this machine's byte order, as far as it says which they are
    in.
    """
    if "byteorder" not in names:
        return
    with archive.open(names["byteorder"]) as file:
        order = file.read(len("little") + 1).decode("utf-8", "replace")
    if order != sys.byteorder:
        raise LabError(
            f"{path}: found numbers in the byte order {show(order)}, wanted {sys.byteorder!r}, this machine's"
        )


def _directory(content):
    """Return how many entries the central directory at the end of the archive `content` has, and where it begins.

    (None, None) if the archive doesn't end with it and with what tells its place.
    """
    begin = len(content) - END.size
    magic, entries, size, offset, comment = END.unpack_from(content, begin)
    locator = begin - LOCATOR.size
    if locator >= LARGE_END.size and content[locator : locator + 4] == b"PK\x06\x07":
        begin = LOCATOR.unpack_from(content, locator)[1]
        if begin != locator - LARGE_END.size:
            return None, None
        large, entries, size, offset = LARGE_END.unpack_from(content, begin)
        if large != b"PK\x06\x06":
            return None, None
    whole = magic == b"PK\x05\x06" and comment == 0 and offset + size == begin
    return (entries, offset) if whole else (None, None)


def _descriptor_size(content, begin, record):
    """Return how many bytes at `begin`, the end of the data of `record`, repeat what the directory says of it."""
    for descriptor in DESCRIPTORS:
        if content[begin : begin + descriptor.size] == descriptor.pack(
            b"PK\x07\x08", record.CRC, record.file_size, record.file_size
        ):
            return descriptor.size
    return 0


def data_offset(content: bytes | mmap.mmap, record: zipfile.ZipInfo) -> int:
    """Return where in the archive `content` the data of `record`, a zipfile.ZipInfo, begin."""
    _, name_length, extra_length = LOCAL_HEADER.unpack_from(content, record.header_offset)
    return record.header_offset + LOCAL_HEADER.size + name_length + extra_length


def _has_header(content, record):
    """Whether the record's own header says the name that the central directory gives it."""
    magic, name_length, _ = LOCAL_HEADER.unpack_from(content, record.header_offset)
    start = record.header_offset + LOCAL_HEADER.size
    name = content[start : start + name_length]
    return magic == b"PK\x03\x04" and name == record.orig_filename.encode()


def halved(state_dict: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return `state_dict` with its tensors in float16. Names that share memory go on sharing it, so tied weights are
    stored once.
    """
    done = {}
    result = {}
    for name, tensor in state_dict.items():
        place = (tensor.data_ptr(), tensor.shape, tensor.stride())
        if place not in done:
            done[place] = tensor.half()
        result[name] = done[place]
    return result


def load_weights(path: str | os.PathLike, module: torch.nn.Module) -> torch.nn.Module:
    """Load the state_dict in `path` into `module`, half precision widened to the module's dtype. Raises LabError when
    it doesn't fit.
    """
    fill(module, load(path), path, widened=True)
    return module


def fill(module: torch.nn.Module, state_dict: Any, path: str | os.PathLike, widened: bool = False) -> None:
    """Copy `state_dict`, read from `path`, into `module`. Raises LabError naming a tensor that is missing, extra,
    misshapen, or of another dtype, unless it may be `widened`, or two that the module has as one and that are not
    equal.
    """
    if type(state_dict) not in DICTS:
        raise LabError(f"{path}: found {type(state_dict).__name__}, wanted the model's tensors by name")
    own = module.state_dict()
    for name in sorted(set(own) ^ set(state_dict), key=str):
        raise LabError(
            f"{path}: tensor {name} is {'missing' if name in own else 'unknown'}; "
            "wanted the tensors of the configured model"
        )
    firsts = {}
    for name, tensor in state_dict.items():
        wrong = fault(tensor, own[name].shape, None if widened else own[name].dtype)
        if wrong:
            raise LabError(f"{path}: tensor {name}: {wrong} (another model?)")
        first = firsts.setdefault(own[name].data_ptr(), name)
        if not torch.equal(tensor, state_dict[first]):
            raise LabError(
                f"{path}: tensor {name}: found other values than {first}'s, "
                "wanted the same, which the model has for both"
            )
    # Without what the file says of the module's version.
    module.load_state_dict(dict(state_dict))


def fault(tensor: Any, shape: Iterable[int], dtype: torch.dtype | None, finite: bool = True) -> str | None:
    """Return what is wrong with `tensor`, one that `load` gave, as text "found ..., wanted ...", or None when it has
    this shape and dtype (None: any of floating-point numbers) and, unless `finite` is false, finite values.
    """
    if type(tensor) is not torch.Tensor:
        return f"found {type(tensor).__name__}, wanted a tensor"
    if dtype is None and not tensor.is_floating_point():
        return f"found {tensor.dtype}, wanted floating-point numbers"
    if tensor.shape != shape:
        return f"found shape {list(tensor.shape)}, wanted {list(shape)}"
    if dtype not in (None, tensor.dtype):
        return f"found {tensor.dtype}, wanted {dtype}"
    if finite and not bool(torch.isfinite(tensor).all()):
        return "found values that are not finite, wanted finite numbers"
    return None


def check_apart(tensors: dict[str, torch.Tensor]) -> None:
    """Raise ValueError naming two of `tensors`, a dict by name, that share their memory: writing one would write the
    other.
    """
    names = {}
    for name, tensor in tensors.items():
        first = names.setdefault(tensor.untyped_storage().data_ptr(), name)
        if first != name:
            raise ValueError(f"{name}: found in the memory of {first}, wanted memory of its own")


def show(value: Any) -> str:
    """Return `value`, read from a file, as a message of one line shows it: shortened."""
    return " ".join(SHORTENED.repr(value).split())


def _impurity(value):
    """Return what in `value`, read from a file, isn't as `load` promises, as text that begins with where it is, or
    None.
    """
    waiting, seen = [(value, ())], set()
    while waiting:
        part, place = waiting.pop()
        if type(part) is torch.Tensor:
            wrong = _tensor_impurity(part)
        elif type(part) in (*DICTS, list, tuple):
            # What is met again might hold itself. Python has one empty tuple only.
            wrong = (
                "found in two places, wanted in one"
                if part and id(part) in seen
                else _container_impurity(part, len(place))
            )
        else:
            wrong = _scalar_impurity(part)
        if wrong:
            return f"{'.'.join(map(str, place))}: {wrong}" if place else wrong
        seen.add(id(part))
        waiting += [(item, (*place, key)) for key, item in _items(part)]
    return None


def _items(part):
    """Return what `part` holds, if it is a container, as pairs of name and value; of a module's state_dict also its
    `_metadata`.
    """
    if type(part) in DICTS:
        return [*part.items(), *getattr(part, "__dict__", {}).items()]
    return list(enumerate(part)) if type(part) in (list, tuple) else []


def _container_impurity(container, depth):
    if depth > DEEPEST:
        return f"found more than {DEEPEST} containers in each other, wanted fewer"
    if type(container) not in DICTS:
        return None
    # An attribute `items` would be called in the method's place.
    if not getattr(container, "__dict__", {}).keys() <= {"_metadata"}:
        return f"found a dict with attributes, {show(sorted(map(str, vars(container))))}, wanted a plain one"
    for key in container:
        if not ((type(key) is str and key.isprintable()) or type(key) is int):
            found = show(key) if type(key) in PLAIN else type(key).__name__
            return f"found {found} as a name, wanted printable text or a number"
    return None


def _tensor_impurity(tensor):
    # First, since an attribute `isfinite` would be called in the method's place.
    if tensor.__dict__ or tensor._backward_hooks or tensor.requires_grad:
        return "found a tensor with attributes, hooks or a gradient, wanted a plain one"
    if (
        tensor.layout != torch.strided
        or not tensor.is_cpu
        or tensor.is_quantized
        or tensor.is_conj()
        or tensor.is_neg()
    ):
        return f"found {tensor.dtype}, {tensor.layout}, on {tensor.device}, wanted a dense tensor of plain numbers"
    # Also where a dimension has the size 1, since the strides are saved again.
    stride = torch.empty(tensor.shape, device="meta").stride()
    if tensor.stride() != stride or tensor.storage_offset():
        return f"found a view of strides {list(tensor.stride())}, wanted a contiguous tensor, of strides {list(stride)}"
    found, wanted = tensor.untyped_storage().nbytes(), tensor.numel() * tensor.element_size()
    if found != wanted:
        return f"found {found} bytes, wanted {wanted}, the tensor's alone"
    return None


def _scalar_impurity(scalar):
    if type(scalar) not in PLAIN:
        return f"found {type(scalar).__name__}, wanted tensors and plain values"
    if type(scalar) is int and not -(2**63) <= scalar < 2**63:
        return f"found a number of {scalar.bit_length()} bits, wanted at most 63"
    return None
