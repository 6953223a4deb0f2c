"""Checkpoint files: written whole or not at all, verified before they are trusted, read without running what is in them."""

import mmap
import os
import re
import stat
import struct
import sys
import zipfile
from pathlib import Path

import torch
from isal import isal_zlib

from lab.atomic import previous, replacing
from lab.errors import LabError

LOCAL_HEADER = struct.Struct("<4s22xHH")


def save(path, value, keep_previous=False):
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

    Pickle writes an object that it meets again as a reference, so which of two equal strings are the same object would show in the
    bytes: those of a checkpoint that was loaded are others than those of the program.
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


def load(path, device="cpu"):
    """Return what torch.save wrote to `path`, with `weights_only=True`, so that no code in the file can run.

    First the CRC-32 of every record is checked, which torch doesn't do. Raises LabError, one line, when the file is missing, truncated,
    damaged, or no archive of plain records.
    """
    try:
        with open(path, "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise LabError(f"{path}: not a file, wanted a checkpoint")
            verify(file, path)
            file.seek(0)
            return torch.load(file, map_location=device, weights_only=True)
    except LabError:
        raise
    except OSError as error:
        raise LabError(f"{path}: can't be read: {error.strerror or error}") from error
    except Exception as error:
        # Whatever a hostile file makes the unpickler trip over.
        raise LabError(f"{path}: not a checkpoint that is safe to read: {_reason(error)}") from error


def _reason(error):
    """Return why torch didn't load a file, in one line, without its advice to load it with weights_only=False."""
    text = str(error)
    forbidden = re.search(r"GLOBAL (\S+)", text)
    if forbidden:
        return f"found {forbidden[1]}, wanted tensors and plain values"
    told = text.partition("WeightsUnpickler error: ")[2].strip() or text.strip()
    return type(error).__name__ if not told or "weights_only" in told.splitlines()[0] else told.splitlines()[0]


def load_newest(path):
    """Return what `load` does of `path`, or where that is damaged or missing, of the checkpoint that was saved before it.

    The damage is said on standard error in one line, and the damaged file removed, so that the next save doesn't keep it in place of the
    whole one. Raises LabError when none is whole.
    """
    try:
        return load(path)
    except LabError as error:
        if not previous(path).exists():
            raise
        value = load(previous(path))
        print(f"{error}; taking {previous(path)}, which was saved before it", file=sys.stderr)
    Path(path).unlink(missing_ok=True)
    return value


def verify(file, path):
    """Check that the open file `file` is an archive of whole, uncompressed records with the right CRC-32 each, which share no bytes.

    Raises LabError naming `path`.
    """
    refused = f"{path}: truncated or not a checkpoint, wanted an archive written by torch.save"
    try:
        records = zipfile.ZipFile(file).infolist()
    except (zipfile.BadZipFile, ValueError, struct.error, NotImplementedError, UnicodeDecodeError, OverflowError) as error:
        raise LabError(refused) from error
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        end = 0
        for record in sorted(records, key=lambda record: record.header_offset):
            if record.compress_type != zipfile.ZIP_STORED or record.compress_size != record.file_size:
                raise LabError(f"{path}: record {record.filename!r} is compressed, wanted records as torch.save writes them")
            start = record.header_offset
            if start < end or start + LOCAL_HEADER.size > len(content):
                raise LabError(refused)
            begin = data_offset(content, record)
            end = begin + record.file_size
            if not _has_header(content, record) or end > len(content):
                raise LabError(refused)
            with memoryview(content) as view, view[begin:end] as data:
                # isal's is ten times as fast as zlib's.
                if isal_zlib.crc32(data) != record.CRC:
                    raise LabError(f"{path}: record {record.filename!r} is damaged: its CRC-32 is not the one that was written")
    if len({record.filename for record in records}) < len(records):
        raise LabError(f"{path}: found two records of one name, wanted an archive written by torch.save")


def data_offset(content, record):
    """Return where in the archive `content` the data of `record`, a zipfile.ZipInfo, begin."""
    _, name_length, extra_length = LOCAL_HEADER.unpack_from(content, record.header_offset)
    return record.header_offset + LOCAL_HEADER.size + name_length + extra_length


def _has_header(content, record):
    """Whether the record's own header says the name that the central directory gives it."""
    magic, name_length, _ = LOCAL_HEADER.unpack_from(content, record.header_offset)
    start = record.header_offset + LOCAL_HEADER.size
    name = content[start : start + name_length]
    return magic == b"PK\x03\x04" and name == record.orig_filename.encode()


def halved(state_dict):
    """Return `state_dict` with its tensors in float16. Names that share memory go on sharing it, so tied weights are stored once."""
    done = {}
    result = {}
    for name, tensor in state_dict.items():
        place = (tensor.data_ptr(), tensor.shape, tensor.stride())
        if place not in done:
            done[place] = tensor.half()
        result[name] = done[place]
    return result


def load_weights(path, module):
    """Load the state_dict in `path` into `module`, half precision widened to the module's dtype. Raises LabError when it doesn't fit."""
    fill(module, load(path), path, widened=True)
    return module


def fill(module, state_dict, path, widened=False):
    """Copy `state_dict`, read from `path`, into `module`. Raises LabError naming a tensor that is missing, extra, misshapen, or of another
    dtype, unless it may be `widened`.
    """
    if not isinstance(state_dict, dict):
        raise LabError(f"{path}: found {type(state_dict).__name__}, wanted the model's tensors by name")
    own = module.state_dict()
    for name in sorted(set(own) ^ set(state_dict), key=str):
        raise LabError(f"{path}: tensor {name} is {'missing' if name in own else 'unknown'}; wanted the tensors of the configured model")
    for name, tensor in state_dict.items():
        wrong = fault(tensor, own[name].shape, None if widened else own[name].dtype)
        if wrong:
            raise LabError(f"{path}: tensor {name}: {wrong} (another model?)")
    module.load_state_dict(state_dict)


def fault(tensor, shape, dtype, finite=True):
    """Return what is wrong with `tensor`, read from a file, as text "found ..., wanted ...", or None when it is a dense tensor of
    floating-point numbers of this shape and dtype (None: any), and, unless `finite` is false, of finite ones.
    """
    if not isinstance(tensor, torch.Tensor):
        return f"found {type(tensor).__name__}, wanted a tensor"
    if tensor.layout != torch.strided or tensor.is_meta or not tensor.is_floating_point():
        return f"found {tensor.dtype}, {tensor.layout}, on {tensor.device}, wanted a dense tensor of floating-point numbers"
    if tensor.shape != shape:
        return f"found shape {list(tensor.shape)}, wanted {list(shape)}"
    if dtype not in (None, tensor.dtype):
        return f"found {tensor.dtype}, wanted {dtype}"
    if finite and not bool(tensor.isfinite().all()):
        return "found values that are not finite, wanted finite numbers"
    return None
