"""Checkpoint files that mean harm or are broken: functions that write one to a path, by name."""

import builtins
import io
import os
import pickle
import struct
import subprocess
import zipfile
from collections import OrderedDict

import torch

FILES = {}


def file(function):
    """Register a function of (path, good, harm): where to write, a good resume file's contents, a file that code in it
    would make.
    """
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
running(
    "exec in a nested reduce", lambda harm: Calls(list, [Calls(builtins.exec, f"import os; os.mkdir({str(harm)!r})")])
)
running("getattr of a module", lambda harm: Calls(getattr, Calls(__import__, "os"), "mkdir"))
running("items set by a call", Builds)
running("torch.load of another file", lambda harm: Calls(torch.load, str(harm)))
running("torch.save to another file", lambda harm: Calls(torch.save, 1, str(harm)))
running(
    "a tensor rebuilt from a call",
    lambda harm: {"w": Calls(torch._utils._rebuild_tensor_v2, Calls(os.mkdir, str(harm)), 0, (1,), (1,))},
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
    rezipped(
        path, good, lambda new, name, content: new.writestr(name, content[:-8] if name.endswith("data/0") else content)
    )


@file
def record_missing(path, good, harm):
    rezipped(path, good, lambda new, name, content: None if name.endswith("data/0") else new.writestr(name, content))


@file
def pickle_cut_short(path, good, harm):
    rezipped(
        path,
        good,
        lambda new, name, content: new.writestr(name, content[:-40] if name.endswith("data.pkl") else content),
    )


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
holding(
    "weights in half precision",
    lambda good: {**good, "model": {name: tensor.half() for name, tensor in good["model"].items()}},
)
holding(
    "weights in double precision",
    lambda good: {**good, "model": {name: tensor.double() for name, tensor in good["model"].items()}},
)
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
holding("moments that are a view of one number", first_moment(lambda tensor: torch.zeros(1).expand(tensor.shape)))
holding("moments that are transposed", first_moment(lambda tensor: tensor.t().contiguous().t()))
holding(
    "moments in a storage that is too large", first_moment(lambda tensor: torch.cat((tensor, tensor))[: len(tensor)])
)
holding("moments that need a gradient", first_moment(lambda tensor: tensor.clone().requires_grad_()))
holding("moments that are parameters", first_moment(torch.nn.Parameter))
holding("weights that are transposed", first_tensor(lambda tensor: tensor.t().contiguous().t()))
holding(
    "weights of odd strides",
    first_tensor(lambda tensor: tensor.clone().as_strided(tensor.shape, (tensor.shape[1] - 1, 1))),
)
holding("weights that are parameters", first_tensor(torch.nn.Parameter))
holding("negated weights", first_tensor(torch._neg_view))
holding("tied weights that differ", first_tensor(lambda tensor: tensor + 1))
holding("step that is true", lambda good: {**good, "step": True})
holding("step of a thousand digits", lambda good: {**good, "step": 10**1000})
holding("name of two lines", lambda good: {**good, "two\nlines": 1})
holding("name that is a tuple", lambda good: {**good, ("a", "b"): 1})
holding("size in place of a number", lambda good: {**good, "step": torch.Size([3])})
holding("generator state of floats", lambda good: {**good, "gen_state": good["gen_state"].float()})
holding(
    "generator state of one byte",
    lambda good: {**good, "gen_state": torch.zeros(1, dtype=torch.uint8).expand(good["gen_state"].shape)},
)


class WithAttributes:
    """Pickles as a dict with attributes."""

    def __init__(self, values, **attributes):
        self.values, self.attributes = values, attributes

    def __reduce__(self):
        return OrderedDict, (list(self.values.items()),), self.attributes


def with_attributes(value, **attributes):
    for name, attribute in attributes.items():
        setattr(value, name, attribute)
    return value


def not_a_number(tensor):
    return torch.full_like(tensor, float("nan"))


holding(
    "moments that say that they are finite",
    first_moment(lambda tensor: with_attributes(not_a_number(tensor), isfinite=1)),
)
holding(
    "weights that say that they are finite",
    first_tensor(lambda tensor: with_attributes(not_a_number(tensor), isfinite=1)),
)
holding(
    "weights whose dict has items of its own", lambda good: {**good, "model": WithAttributes(good["model"], items=1)}
)


@file
def list_that_holds_itself(path, good, harm):
    cycle = []
    cycle.append(cycle)
    torch.save({**good, "model": cycle}, path)


@file
def lists_that_hold_each_other_twice(path, good, harm):
    value = [1]
    for _ in range(100):
        value = [value, value]
    torch.save({**good, "model": value}, path)


@file
def lists_in_lists(path, good, harm):
    value = []
    for _ in range(100):
        value = [value]
    torch.save({**good, "model": value}, path)


def with_settings(**settings):
    def changed(good):
        (group,) = good["optimizer"]["param_groups"]
        return {**good, "optimizer": {**good["optimizer"], "param_groups": [{**group, **settings}]}}

    return changed


holding("other betas", with_settings(betas=(0.8, 0.99)))
holding("other weight decay", with_settings(weight_decay=0.5))
holding("other eps", with_settings(eps=1.0))
holding("learning rate that is no number", with_settings(lr=float("nan")))
holding("amsgrad", with_settings(amsgrad=True))
holding("maximizing that is a number", with_settings(maximize=0))
holding("setting that is unknown", with_settings(fast=True))
holding(
    "parameters in another order",
    lambda good: with_settings(params=good["optimizer"]["param_groups"][0]["params"][::-1])(good),
)


@file
def two_groups(path, good, harm):
    (group,) = good["optimizer"]["param_groups"]
    groups = [{**group, "params": group["params"][:1]}, {**group, "params": group["params"][1:], "betas": (0.9, 0.999)}]
    torch.save({**good, "optimizer": {**good["optimizer"], "param_groups": groups}}, path)


def with_moments(index, **moments):
    """Return a function that lays `moments`, functions of a parameter's moments, over those of parameter `index`."""

    def changed(good):
        state = good["optimizer"]["state"]
        laid = {name: change(state[index]) for name, change in moments.items()}
        return {**good, "optimizer": {**good["optimizer"], "state": {**state, index: {**state[index], **laid}}}}

    return changed


holding("negative squares", with_moments(0, exp_avg_sq=lambda moments: -moments["exp_avg_sq"] - 1))
holding("two moments in one memory", with_moments(0, exp_avg=lambda moments: moments["exp_avg_sq"]))
holding(
    "moments of two parameters in one memory",
    lambda good: with_moments(2, step=lambda _: good["optimizer"]["state"][1]["step"])(good),
)
holding("moments that others don't have", with_moments(0, max_exp_avg_sq=lambda moments: moments["exp_avg"].clone()))
holding("parameters that count other updates", with_moments(0, step=lambda moments: moments["step"] - 1))
holding("half an update", lambda good: changed_steps(good, 3.5))
holding("more updates than steps", lambda good: changed_steps(good, 7.0))
holding("fewer updates than steps", lambda good: changed_steps(good, 3.0))
holding(
    "moments of a parameter that isn't there", lambda good: with_state(good, {**good["optimizer"]["state"], 99: {}})
)


def with_state(good, state):
    return {**good, "optimizer": {**good["optimizer"], "state": state}}


def changed_steps(good, step):
    return with_state(
        good, {index: {**moments, "step": torch.tensor(step)} for index, moments in good["optimizer"]["state"].items()}
    )


def altered(name, change):
    """Register a good file whose bytes were changed by `change`."""

    def write(path, good, harm):
        torch.save(good, path)
        path.write_bytes(change(path.read_bytes()))

    FILES[name] = write


def legacy(value):
    file = io.BytesIO()
    torch.save(value, file, _use_new_zipfile_serialization=False)
    return file.getvalue()


FILES["legacy file with an archive behind it"] = lambda path, good, harm: (
    torch.save(good, path),
    path.write_bytes(legacy({**good, "step": 1}) + path.read_bytes()),
)
altered("bytes before the archive", lambda content: b"#!/bin/sh\n" + content)
altered("bytes behind the archive", lambda content: content + b"more")
altered("archive with a comment", lambda content: content[:-2] + b"\x04\x00more")
altered("two archives", lambda content: content + content)
altered("fewer entries told than there are", lambda content: content[:-74] + struct.pack("<QQ", 1, 1) + content[-58:])


@file
def bytes_between_records(path, good, harm):
    """The archive's directory tells where the records really are."""
    torch.save(good, path)
    content = path.read_bytes()
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        last = max(record.header_offset for record in archive.infolist())
        directory = archive.start_dir
    records, entries, end = content[:last], content[directory:], content[last:directory]
    moved = entries.replace(struct.pack("<I", last), struct.pack("<I", last + 64))
    moved = moved.replace(struct.pack("<I", directory), struct.pack("<I", directory + 64))
    path.write_bytes(records + bytes(64) + end + moved)


@file
def pipe_that_nobody_writes_to(path, good, harm):
    os.mkfifo(path)


RICH_FILES = {}


def rich(name, change):
    """Register a file of a run that remembers everything, stopped after step 4, the first of a window of three."""
    RICH_FILES[name] = lambda path, good: torch.save(change(good), path)


def laid_over(component, **entries):
    return lambda good: {**good, component: {**good[component], **entries}}


def without_first(values):
    return dict(list(values.items())[1:])


rich("no gradients inside a window", lambda good: {**good, "gradients": {}})
rich("gradients of some parameters only", lambda good: {**good, "gradients": without_first(good["gradients"])})
rich("gradients outside a window", lambda good: {**good, "step": 3, "gen_state": {**good["gen_state"], "taken": 3}})
rich("gradients that are a list", lambda good: {**good, "gradients": list(good["gradients"].values())})
rich("averages of some parameters only", lambda good: {**good, "ema": without_first(good["ema"])})
rich("epoch below 0", laid_over("gen_state", epoch=-1))
rich("epoch that is false", laid_over("gen_state", epoch=False))
rich("epoch that isn't the step's", laid_over("gen_state", epoch=1))
rich("epoch beyond all numbers", laid_over("gen_state", epoch=2**62))
rich("more batches taken than an epoch has", laid_over("gen_state", taken=10))
rich("batches taken that aren't the step's", laid_over("gen_state", taken=2))
rich("batches taken as a decimal", laid_over("gen_state", taken=4.0))
rich("place without a generator", lambda good: {**good, "gen_state": {"epoch": 0, "taken": 4}})
rich("place that is a list", lambda good: {**good, "gen_state": [0, 4]})
rich(
    "generator of a place too short",
    lambda good: laid_over("gen_state", generator=good["gen_state"]["generator"][:-8].clone())(good),
)
rich("scale that is no number", laid_over("scaler", scale=float("nan")))
rich("scale below 0", laid_over("scaler", scale=-1.0))
rich("scale that grows faster", laid_over("scaler", growth_factor=4.0))
rich("scale that grows at other times", laid_over("scaler", growth_interval=2))
rich("growth count beyond its interval", laid_over("scaler", _growth_tracker=5))
rich("scaler that is empty", lambda good: {**good, "scaler": {}})
rich("generators of a device that isn't there", lambda good: laid_over("rng", cuda=[good["rng"]["cpu"].clone()])(good))
rich("generators that are no list", laid_over("rng", cuda=()))
rich("no global generator", laid_over("rng", cpu=None))
