"""A digest depends on values, dtype and shape and on nothing else, and a trace has whole rows whenever the run ends."""

import itertools
import os
import random
import signal
import subprocess
import sys
from collections import deque

import hypothesis
import hypothesis.extra.numpy
import hypothesis.strategies as st
import numpy as np
import pytest
import torch

from conftest import ROOT
from exact_resume import diagnosis
from exact_resume.tracing.digests import DTYPES, digest
from exact_resume.tracing.format import HELPERS, PRECISIONS, Rounding
from exact_resume.tracing.recorder import Trace, state_columns

ARRAYS = hypothesis.extra.numpy.arrays(
    dtype=st.sampled_from([np.float32, np.float64, np.float16, np.int64, np.uint8, np.bool_]),
    shape=hypothesis.extra.numpy.array_shapes(max_dims=3, max_side=5),
)


@hypothesis.given(ARRAYS)
def test_strides_and_storage_make_no_difference(array):
    tensor = torch.from_numpy(array)
    turned = tensor.permute(*reversed(range(tensor.dim()))).contiguous().permute(*reversed(range(tensor.dim())))
    assert digest(turned) == digest(tensor) == digest(tensor.clone()) == digest(array)


@hypothesis.given(ARRAYS, st.data())
def test_one_changed_bit_makes_another_digest(array, data):
    changed = array.copy()
    raw = changed.view(np.uint8).reshape(-1) if changed.dtype != np.bool_ else changed.reshape(-1).view(np.uint8)
    raw[data.draw(st.integers(0, raw.size - 1))] ^= 1
    assert digest(torch.from_numpy(changed)) != digest(torch.from_numpy(array))


def test_dtype_and_shape_make_a_difference():
    zeros = torch.zeros(2, 3)
    others = [zeros.double(), zeros.int(), zeros.view(3, 2), zeros.view(6), zeros.bfloat16(), zeros.half()]
    assert len({digest(value) for value in [zeros, *others]}) == 1 + len(others)
    assert digest(0) != digest(0.0) != digest("0.0")


def test_order_and_names_of_a_dict_make_no_difference_but_its_values_do():
    one, two = torch.ones(2), torch.zeros(2)
    assert digest({"a": one, "b": two}) == digest({"b": two, "a": one}) == digest({"x.a": one, "x.b": two})
    assert digest({"a": one, "b": two}) != digest({"a": two, "b": one})


def test_every_kind_of_state_has_a_digest():
    generator = torch.Generator().manual_seed(1)
    random_state = np.random.RandomState(3)
    values = [
        None,
        True,
        3,
        2.5,
        "text",
        b"raw",
        {1, 2},
        [1, (2, 3)],
        generator,
        np.random.default_rng(3),
        random.Random(4),
        random_state,
    ]
    digests = [digest(value) for value in values]
    assert len(set(digests)) == len(values)
    assert all(len(value) == 32 for value in digests)
    torch.rand(1, generator=generator)
    assert digest(generator) != digests[8]


def test_what_lies_otherwise_in_memory_has_the_digest_of_its_values():
    numbers = torch.tensor([1 + 2j, 3 - 1j])
    assert digest(numbers.conj()) == digest(numbers.conj().resolve_conj()) != digest(numbers)
    assert digest(numbers.conj().imag) == digest(numbers.conj().imag.clone())
    sparse = torch.sparse_coo_tensor([[0, 2, 2]], [1.0, 2.0, 3.0], (4,))
    assert digest(sparse) == digest(sparse.coalesce()) != digest(torch.sparse_coo_tensor([[0, 2]], [1.0, 5.0], (5,)))
    assert digest(deque([1, numbers])) == digest([1, numbers])
    narrow = torch.ones(2, 3).to(torch.float8_e4m3fnuz)
    assert digest(narrow) == digest(narrow.clone()) != digest(torch.zeros(2, 3).to(torch.float8_e4m3fnuz))


def test_array_of_objects_has_the_digest_of_what_they_are_not_of_where_they_lie():
    assert digest(np.array(["x" * 3, None], dtype=object)) == digest(["xxx", None])


def test_waiting_gradients_may_be_sparse():
    module = torch.nn.Embedding(5, 2, sparse=True)
    before = state_columns("m", module)
    module(torch.tensor([1, 3])).sum().backward()
    assert state_columns("m", module)["m.gradients"] != before["m.gradients"]


@pytest.mark.parametrize("name", ["row", "lr", "batch", "loss", "rng", "model.ema"])
def test_name_that_cannot_be_a_column_is_refused(tmp_path, name):
    with pytest.raises(ValueError, match=f"found {name} as a name"):
        Trace(tmp_path / "trace.csv", **{name: 1})
    assert not (tmp_path / "trace.csv").exists()


def test_what_a_step_is_given_does_not_hide_a_component(tmp_path):
    trace = Trace(tmp_path / "trace.csv", epoch=1)
    with pytest.raises(ValueError, match="found epoch as a component and among what the step is given"):
        trace.before_step(1, epoch=2)
    with pytest.raises(ValueError, match=r"found a\.b as a name"):
        trace.before_step(1, **{"a.b": 2})


@pytest.mark.parametrize("wrap", [lambda module: {"g": module}, lambda module: [module]])
def test_modules_that_would_not_get_all_their_columns_are_refused(tmp_path, wrap):
    with pytest.raises(ValueError, match="nets holds modules or optimizers, wanted each under a name of its own"):
        Trace(tmp_path / "trace.csv", nets=wrap(torch.nn.Linear(1, 1)))


def test_state_of_an_optimizer_is_told_by_parameter_whatever_the_order_that_it_was_given_them(tmp_path):
    def cells(order, name):
        torch.manual_seed(0)
        module = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
        optimizer = torch.optim.Adam([list(module.parameters())[index] for index in order])
        module(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        trace = Trace(tmp_path / name, module=module, optimizer=optimizer)
        trace.before_step(2)
        trace.after_step()
        return diagnosis.read(tmp_path / name).rows[0].cells

    assert cells([0, 1, 2, 3], "a.csv") == cells([2, 3, 1, 0], "b.csv")


def is_rounding(cells, full, name, precision):
    return Rounding.read(cells[f"{name}.{precision}"]).makes(Rounding.read(full[f"{name}.{precision}"]))


def test_rounded_scalar_parameter_is_recognised():
    module = torch.nn.Module()
    module.register_parameter("scale", torch.nn.Parameter(torch.tensor(2.6592)))
    full = state_columns("m", module)
    module.scale.data = module.scale.data.half().float()
    assert is_rounding(state_columns("m", module), full, "m", "float16")


def test_nan_is_no_reason_not_to_recognise_a_rounding():
    full = torch.tensor([0.1, float("nan"), -0.0])
    narrow = full.bfloat16().float()
    assert is_rounding(state_columns("c", narrow), state_columns("c", full), "c", "bfloat16")


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("whole", [False, True])
def test_rounded_state_is_recognised_whether_or_not_its_counts_were_rounded_too(precision, whole):
    """After 4097 updates half precision can't hold their number any more."""
    state = {"w": torch.randn(300, 300), "few": torch.randn(3), "step": torch.tensor(4097.0), "counts": torch.arange(3)}
    rounding = {name: value.to(DTYPES[precision]).float() for name, value in state.items() if name != "counts"}
    rounded = {**state, **rounding} if whole else {**state, **rounding, "step": state["step"]}
    full, narrow = state_columns("c", state), state_columns("c", rounded)
    assert is_rounding(narrow, full, "c", precision) and not is_rounding(full, full, "c", precision)
    nearly = {**rounded, "w": rounded["w"].clone()}
    nearly["w"][-1, -1] = state["w"][-1, -1]
    assert not is_rounding(state_columns("c", nearly), full, "c", precision)
    assert not is_rounding(state_columns("c", {**rounded, "step": torch.tensor(4098.5)}), full, "c", precision)
    assert not is_rounding(state_columns("c", {**rounded, "counts": torch.arange(1, 4)}), full, "c", precision)
    other = next(name for name in PRECISIONS if name != precision)
    assert not is_rounding(narrow, full, "c", other)


def test_schedulers_and_scalers_of_torch_are_told_apart_from_other_state(tmp_path):
    scheduler = torch.optim.lr_scheduler.StepLR(torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), lr=1.0), 3)
    trace = Trace(tmp_path / "trace.csv", scheduler=scheduler, scaler=torch.amp.GradScaler("cpu"), other=1)
    trace.before_step(1)
    trace.after_step()
    cells = diagnosis.read(tmp_path / "trace.csv").rows[0].cells
    assert {name: value for name, value in cells.items() if name.endswith(".kind")} == {
        "scheduler.kind": "scheduler",
        "scaler.kind": "scaler",
        "other.kind": "",
    }


def test_gradients_that_are_zero_are_none():
    module = torch.nn.Linear(3, 2)
    before = state_columns("m", module)
    module(torch.ones(1, 3)).sum().backward()
    assert state_columns("m", module)["m.gradients"] != before["m.gradients"]
    module.zero_grad(set_to_none=False)
    assert state_columns("m", module) == before


def test_every_part_of_a_module_and_an_optimizer_shows_in_its_own_column():
    module = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3), torch.nn.Dropout())
    optimizer = torch.optim.AdamW(module.parameters())
    places = {id(parameter): place for place, parameter in enumerate(module.parameters())}

    def changed(change):
        before = {**state_columns("m", module), **state_columns("o", optimizer, places=places)}
        change()
        after = {**state_columns("m", module), **state_columns("o", optimizer, places=places)}
        return {name for name in before if before[name] != after[name] and name.rpartition(".")[2] not in HELPERS}

    loss = module(torch.randn(4, 3)).square().sum()
    assert changed(loss.backward) == {"m.gradients"}
    assert changed(optimizer.step) == {"m", "o"}
    assert changed(lambda: module(torch.randn(4, 3))) == {"m.buffers"}
    assert changed(module.eval) == {"m.mode"}
    assert changed(module[1].train) == {"m.mode"}
    assert changed(lambda: optimizer.param_groups[0].update(weight_decay=0.5)) == {"o.settings"}
    assert changed(lambda: optimizer.param_groups[0].update(lr=0.5)) == set()
    assert changed(lambda: module[0].weight.requires_grad_(False)) == {"m.trainable"}
    assert changed(lambda: setattr(module[2], "p", 0.25)) == {"m.attributes"}
    assert changed(lambda: setattr(module[0], "_initialised", True)) == {"m.attributes"}
    assert changed(lambda: setattr(optimizer, "best", 0.5)) == {"o.attributes"}


def test_global_generators_show_in_their_columns(tmp_path):
    trace = Trace(tmp_path / "trace.csv")
    for step, draw in enumerate((lambda: None, lambda: torch.rand(1), np.random.random, random.random), 1):
        draw()
        trace.before_step(step)
        trace.after_step()
    rows = [row.cells for row in diagnosis.read(tmp_path / "trace.csv").rows]
    changed = [{name for name in rows[0] if before[name] != after[name]} for before, after in itertools.pairwise(rows)]
    assert changed == [{"rng.torch"}, {"rng.numpy"}, {"rng.python"}]


def test_generators_are_left_out_on_request(tmp_path):
    trace = Trace(tmp_path / "trace.csv", generators=False)
    trace.before_step(1)
    trace.after_step(0.5)
    assert not [name for name in diagnosis.read(tmp_path / "trace.csv").rows[0].cells if name.startswith("rng.")]


def test_learning_rate_is_the_optimizers_unless_it_is_given(tmp_path):
    optimizer = torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), lr=0.125)
    trace = Trace(tmp_path / "trace.csv", optimizer=optimizer)
    for step, lr in enumerate((None, 0.5), 1):
        trace.before_step(step, lr=lr)
        trace.after_step()
    assert [row.cells["lr"] for row in diagnosis.read(tmp_path / "trace.csv").rows] == ["0.125", "0.5"]


def test_killed_run_leaves_whole_rows(tmp_path):
    code = (
        "import torch, sys\nfrom exact_resume import Trace\n"
        "module = torch.nn.Linear(50, 50)\ntrace = Trace(sys.argv[1], module=module)\n"
        "for step in range(1, 10**9):\n    trace.before_step(step, torch.rand(3))\n    "
        "trace.after_step(1.0)\n    print(step, flush=True)"
    )
    path = tmp_path / "trace.csv"
    command = [sys.executable, "-c", code, str(path)]
    process = subprocess.Popen(command, cwd=ROOT / "workflow" / "scripts", stdout=subprocess.PIPE, text=True)
    seen = [int(process.stdout.readline()) for _ in range(50)]
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert [row.number for row in diagnosis.read(path).rows][:50] == seen


def test_tracing_needs_nothing_but_torch_numpy_and_xxhash():
    """On another trainer's path it needs no package that only the pipeline has."""
    pins = [line.partition("==")[0] for line in (ROOT / "envs" / "constraints.txt").read_text().splitlines()[1:]]
    modules = {"pyyaml": "yaml", "pytorch-ignite": "ignite", "pytest-xdist": "xdist"}
    blocked = [modules.get(name, name) for name in pins if name not in ("torch", "numpy", "xxhash")]
    code = f"import sys\nsys.modules.update(dict.fromkeys({blocked}))\nfrom exact_resume import Trace"
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(ROOT / "src")}, check=True)


def _grown(module, optimizer):
    module.weight.data = module.weight.data.clone()
    module.weight.data[0, 0] += 1


WRITES = {
    "in_place": lambda module, optimizer: module.weight.detach().add_(1),
    "one_value": lambda module, optimizer: module.weight.detach()[0].fill_(7),
    "through_data": lambda module, optimizer: module.weight.data.mul_(2),
    "through_numpy": lambda module, optimizer: module.weight.detach().view(torch.uint8).numpy().fill(1),
    "other_memory": _grown,
    "other_parameter": lambda module, optimizer: setattr(module, "bias", torch.nn.Parameter(module.bias.detach() + 1)),
    "loaded": lambda module, optimizer: module.load_state_dict(
        {name: part * 2 for name, part in module.state_dict().items()}
    ),
    "moments": lambda module, optimizer: optimizer.state[module.bias]["exp_avg"].zero_(),
    "moments_through_data": lambda module, optimizer: optimizer.state[module.bias]["exp_avg_sq"].data.mul_(0.5),
    "moments_replaced": lambda module, optimizer: optimizer.state[module.bias].update(exp_avg=torch.full((200,), 0.25)),
    "moments_dropped": lambda module, optimizer: optimizer.state.pop(module.bias),
    "count": lambda module, optimizer: optimizer.state[module.weight]["step"].data.add_(1),
    "nothing": lambda module, optimizer: None,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())
def test_row_shows_state_as_it_is_whatever_was_known_of_it_from_the_row_before(tmp_path, write, dtype):
    """Digests of what nothing has written to since the last step are not computed again; this is the same file as when
    they are.
    """
    torch.manual_seed(0)
    module = torch.nn.Linear(300, 200).to(dtype)
    optimizer = torch.optim.AdamW(module.parameters())
    for parameter in module.parameters():
        parameter.grad = torch.ones_like(parameter)
    trace = Trace(tmp_path / "trace.csv", m=module, o=optimizer)
    trace.before_step(1)
    optimizer.step()
    trace.after_step()
    write(module, optimizer)
    trace.before_step(2)
    places = {id(parameter): place for place, parameter in enumerate(module.parameters())}
    fresh = {**state_columns("m", module, look=False), **state_columns("o", optimizer, places=places, look=False)}
    assert {name: trace.row[name] for name in fresh} == fresh
    trace.after_step()
    trace.close()
