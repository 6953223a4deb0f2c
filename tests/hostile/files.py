"""Checkpoint files that mean harm or are broken: functions that write one to a path, by name."""

import builtins
import io
import os
import pickle
import struct
import subprocess
import zipfile

import torch

FILES = {}


def file(function):
    """Register a function of (path, good, harm): where to write, a good resume file's contents, a file that code in it would make."""
    FILES[function.__name__.replace("_", " ")] = function
    return function


class Calls:
    """Pickles as a call of `function` with `arguments`."""

    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


class Builds:
    """Pickles as an object whose state is set by a call."""

    def __init__(self, harm):
        self.harm = harm

    def __reduce__(self):
        return io.BytesIO, (), None, None, iter([("key", Calls(os.mkdir, str(self.harm)))])


def running(name, make):
    """Register a file in which the model is what `make(harm)` returns."""
    FILES[name] = lambda path, good, harm: torch.save({**good, "model": make(harm)}, path)


@file
def moments_of_one_parameter_missing(path, good, harm):
    state = dict(good["optimizer"]["state"])
    del state[0]
    torch.save({**good, "optimizer": {**good["optimizer"], "state": state}}, path)


@file
def all_moments_missing(path, good, harm):
    torch.save({**good, "optimizer": {**good["optimizer"], "state": {}}}, path)


@file
def one_moment_missing(path, good, harm):
    moments = {name: value for name, value in good["optimizer"]["state"][1].items() if name != "exp_avg"}
    torch.save({**good, "optimizer": {**good["optimizer"], "state": {**good["optimizer"]["state"], 1: moments}}}, path)


running("os.system", lambda harm: Calls(os.system, f"mkdir {harm}"))
running("os.mkdir", lambda harm: Calls(os.mkdir, str(harm)))
running("subprocess", lambda harm: Calls(subprocess.check_call, ["mkdir", str(harm)]))
running("builtins.exec", lambda harm: Calls(builtins.exec, f"import os; os.mkdir({str(harm)!r})"))
running("builtins.eval", lambda harm: Calls(builtins.eval, f"__import__('os').mkdir({str(harm)!r})"))
running("exec in a nested reduce", lambda harm: Calls(list, [Calls(builtins.exec, f"import os; os.mkdir({str(harm)!r})")]))
running("getattr of a module", lambda harm: Calls(getattr, Calls(__import__, "os"), "mkdir"))
running("items set by a call", Builds)
running("torch.load of another file", lambda harm: Calls(torch.load, str(harm)))
running("torch.save to another file", lambda harm: Calls(torch.save, 1, str(harm)))
running(
    "a tensor rebuilt from a call", lambda harm: {"w": Calls(torch._utils._rebuild_tensor_v2, Calls(os.mkdir, str(harm)), 0, (1,), (1,))}
)
running("a whole module", lambda harm: torch.nn.Linear(2, 2))
running("pickle in a pickle", lambda harm: Calls(pickle.loads, pickle.dumps(Calls(os.mkdir, str(harm)))))


def rezipped(path, good, change, **arguments):
    """Write a good file's records to `path` as `change`, a function of (archive, name, content), does."""
    whole = io.BytesIO()
    torch.save(good, whole)
    with zipfile.ZipFile(whole) as old, zipfile.ZipFile(path, "w", **arguments) as new:
        for name in old.namelist():
            change(new, name, old.read(name))


@file
def empty_file(path, good, harm):
    path.write_bytes(b"")


@file
def folder(path, good, harm):
    path.mkdir()


@file
def link_to_nothing(path, good, harm):
    path.symlink_to(path.parent / "nothing")


@file
def link_to_itself(path, good, harm):
    path.symlink_to(path)


@file
def text(path, good, harm):
    path.write_text("model: 1\n" * 1000)


@file
def wrong_magic(path, good, harm):
    torch.save(good, path)
    path.write_bytes(b"XX" + path.read_bytes()[2:])


@file
def legacy_file(path, good, harm):
    torch.save(good, path, _use_new_zipfile_serialization=False)


@file
def bare_pickle_that_runs_code(path, good, harm):
    path.write_bytes(pickle.dumps(Calls(os.mkdir, str(harm))))


@file
def compressed_records(path, good, harm):
    rezipped(path, good, lambda new, name, content: new.writestr(name, content), compression=zipfile.ZIP_DEFLATED)


@file
def compressed_bomb(path, good, harm):
    def change(new, name, content):
        new.writestr(name, b"\0" * 200_000_000 if name.endswith("data/0") else content)

    rezipped(path, good, change, compression=zipfile.ZIP_DEFLATED)


@file
def record_that_escapes_by_name(path, good, harm):
    rezipped(path, good, lambda new, name, content: new.writestr(name.replace("archive/", "../../"), content))


@file
def two_records_of_one_name(path, good, harm):
    def change(new, name, content):
        new.writestr(name, content)
        if name.endswith("data/0"):
            new.writestr(name, bytes(len(content)))

    rezipped(path, good, change)


@file
def record_shorter_than_its_tensor(path, good, harm):
    rezipped(path, good, lambda new, name, content: new.writestr(name, content[:-8] if name.endswith("data/0") else content))


@file
def record_missing(path, good, harm):
    rezipped(path, good, lambda new, name, content: None if name.endswith("data/0") else new.writestr(name, content))


@file
def pickle_cut_short(path, good, harm):
    rezipped(path, good, lambda new, name, content: new.writestr(name, content[:-40] if name.endswith("data.pkl") else content))


def central(path, offset, value):
    """Overwrite four bytes at `offset` of the first central directory entry of the archive at `path`."""
    content = bytearray(path.read_bytes())
    start = content.index(b"PK\x01\x02")
    content[start + offset : start + offset + 4] = struct.pack("<I", value)
    path.write_bytes(content)


@file
def declared_size_larger_than_the_file(path, good, harm):
    torch.save(good, path)
    central(path, 20, 2**31)
    central(path, 24, 2**31)


@file
def record_that_overlaps_another(path, good, harm):
    torch.save(good, path)
    central(path, 42, 64)


@file
def flipped_bit_in_a_tensor(path, good, harm):
    torch.save(good, path)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def changed_moments(good, change):
    """Return a good file's contents with `change` done to the optimizer's first moments."""
    optimizer = good["optimizer"]
    state = {index: {**values, "exp_avg": change(values["exp_avg"])} for index, values in optimizer["state"].items()}
    return {**good, "optimizer": {**optimizer, "state": state}}


def holding(name, change):
    """Register a whole file with good records that hold what no run could have saved."""
    FILES[name] = lambda path, good, harm: torch.save(change(good), path)


holding("no dict", lambda good: [1, 2, 3])
holding("missing component", lambda good: {name: value for name, value in good.items() if name != "optimizer"})
holding("extra component", lambda good: {**good, "scaler": {}})
holding("weights in half precision", lambda good: {**good, "model": {name: tensor.half() for name, tensor in good["model"].items()}})
holding("weights in double precision", lambda good: {**good, "model": {name: tensor.double() for name, tensor in good["model"].items()}})
holding("moments in half precision", lambda good: changed_moments(good, torch.Tensor.half))
holding("negative step", lambda good: {**good, "step": -3})
holding("step as text", lambda good: {**good, "step": "3"})
holding("step beyond the last", lambda good: {**good, "step": 10**9})
holding("generator state of the wrong length", lambda good: {**good, "gen_state": good["gen_state"][:100]})
holding("generator state of zeros", lambda good: {**good, "gen_state": torch.zeros_like(good["gen_state"])})


def first_tensor(change):
    def changed(good):
        name = next(iter(good["model"]))
        return {**good, "model": {**good["model"], name: change(good["model"][name])}}

    return changed


holding("weights that are not numbers", first_tensor(lambda tensor: torch.full_like(tensor, float("nan"))))
holding("infinite weights", first_tensor(lambda tensor: tensor + float("inf")))
holding("weights of integers", first_tensor(lambda tensor: tensor.int()))
holding("complex weights", first_tensor(lambda tensor: tensor.to(torch.complex64)))
holding("weights of another shape", first_tensor(lambda tensor: tensor[:-1]))
holding("weights that are sparse", first_tensor(lambda tensor: tensor.to_sparse()))
holding("weights on no device", first_tensor(lambda tensor: tensor.to("meta")))


def first_moment(change):
    def changed(good):
        optimizer = good["optimizer"]
        moments = {**optimizer["state"][0], "exp_avg": change(optimizer["state"][0]["exp_avg"])}
        return {**good, "optimizer": {**optimizer, "state": {**optimizer["state"], 0: moments}}}

    return changed


holding("moments that are not numbers", first_moment(lambda tensor: torch.full_like(tensor, float("nan"))))
holding("moments that are sparse", first_moment(lambda tensor: tensor.to_sparse()))
holding("moments that are text", first_moment(lambda tensor: "none"))
holding("weights that are a number", first_tensor(lambda tensor: 3.0))
