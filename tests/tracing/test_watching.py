"""Whatever a trainer registers, tracing it neither ends its run nor changes a bit of it, and what can't be looked at is
said.
"""

import errno
import random

import numpy as np
import pytest
import torch
from accelerate import Accelerator, DataLoaderConfiguration
from accelerate.data_loader import SeedableRandomSampler
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler
from torchdata import nodes
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import RandomSampler as StatefulRandomSampler
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler
from transformers import Adafactor, get_cosine_schedule_with_warmup
from transformers.trainer_pt_utils import LengthGroupedSampler

from exact_resume import diagnosis
from exact_resume.tracing.format import PRECISIONS, part
from exact_resume.tracing.recorder import Trace

DATA = list(range(12))


def rows(path):
    return [row.cells for row in diagnosis.read(path).rows]


def seed():
    torch.manual_seed(1)
    np.random.seed(1)
    random.seed(1)


def states():
    return torch.get_rng_state().tolist(), np.random.get_state()[1].tolist(), random.getstate()


def generator():
    return torch.Generator().manual_seed(3)


class DrawsWhenAsked:
    """Draws from every generator whenever it is asked for its state."""

    def __init__(self):
        self.own, self.numpys, self.pythons = generator(), np.random.default_rng(1), random.Random(1)

    def state_dict(self):
        drawn = torch.rand(1).item() + np.random.rand() + random.random()
        return {
            "drawn": drawn,
            "own": [torch.rand(1, generator=self.own).item(), self.numpys.random(), self.pythons.random()],
        }

    def __iter__(self):
        return iter([torch.rand(1, generator=self.own).item(), self.numpys.random(), self.pythons.random()])


def accelerated(**settings):
    return Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(**settings)).prepare(
        DataLoader(DATA, 3, shuffle=True)
    )


LOADERS = {
    "DataLoader": lambda: DataLoader(DATA, 3, shuffle=True),
    "DataLoader with a generator": lambda: DataLoader(DATA, 3, shuffle=True, generator=generator()),
    "StatefulDataLoader": lambda: StatefulDataLoader(DATA, 3, shuffle=True),
    "StatefulDataLoader with a generator": lambda: StatefulDataLoader(DATA, 3, shuffle=True, generator=generator()),
    "StatefulDataLoader with workers": lambda: StatefulDataLoader(DATA, 3, shuffle=True, num_workers=1),
    "RandomSampler": lambda: RandomSampler(DATA),
    "SequentialSampler": lambda: SequentialSampler(DATA),
    "BatchSampler": lambda: BatchSampler(RandomSampler(DATA, generator=generator()), 3, False),
    "torchdata's RandomSampler": lambda: StatefulRandomSampler(DATA, generator=generator()),
    "StatefulDistributedSampler": lambda: StatefulDistributedSampler(DATA, num_replicas=1, rank=0),
    "nodes.Loader": lambda: nodes.Loader(nodes.SamplerWrapper(RandomSampler(DATA))),
    "nodes.SamplerWrapper": lambda: nodes.SamplerWrapper(RandomSampler(DATA)),
    "LengthGroupedSampler": lambda: LengthGroupedSampler(2, lengths=DATA),
    "SeedableRandomSampler": lambda: SeedableRandomSampler(DATA, generator=generator()),
    "accelerate's loader": accelerated,
    "accelerate's seedable loader": lambda: accelerated(use_seedable_sampler=True),
    "accelerate's stateful loader": lambda: accelerated(use_stateful_dataloader=True),
    "an object that draws when it is asked": DrawsWhenAsked,
}


@pytest.mark.parametrize("name", LOADERS)
def test_what_gives_batches_gives_the_same_ones_and_leaves_the_generators_where_they_stood(tmp_path, name):
    def run(traced):
        seed()
        loader = LOADERS[name]()
        trace = Trace(tmp_path / "trace.csv", loader=loader) if traced else None
        drawn = []

        def row(batch):
            if trace:
                trace.before_step(len(drawn), batch)
            drawn.append(f"{batch} {torch.rand(1)}")
            if trace:
                trace.after_step()

        for _ in range(2):
            row("before it has begun, or begun again")
            for batch in loader:
                row(batch)
        return drawn, states()

    assert run(traced=True) == run(traced=False)
    assert len(rows(tmp_path / "trace.csv")) > 6


class Opaque:
    """Has no state_dict()."""


class Fails:
    def state_dict(self):
        raise RuntimeError("not now\nand not later")


class Endless:
    def state_dict(self):
        endless = []
        endless.append(endless)
        return endless


class Wrapped(torch.Tensor):
    """A subclass without a storage of its own that tells what it is made of."""

    @staticmethod
    def __new__(cls, inner):
        made = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        made.inner = inner
        return made

    def __tensor_flatten__(self):
        return ["inner"], None

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        raise NotImplementedError(str(function))


class Named(torch.Tensor):
    """A subclass with a storage."""


COMPONENTS = {
    "Opaque": Opaque,
    "a class": lambda: Opaque,
    "a function": lambda: print,
    "Fails": Fails,
    "Endless": Endless,
    "lazy module": lambda: torch.nn.LazyLinear(3),
    "meta tensor": lambda: torch.ones(2, device="meta"),
    "Wrapped": lambda: Wrapped(torch.ones(2)),
    "Named": lambda: torch.ones(2).as_subclass(Named),
    "nested tensor": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    "quantized tensor": lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8),
    "nothing": lambda: None,
    "mixed": lambda: {"tensor": torch.ones(2), "object": Opaque(), 3: {Opaque()}},
    "array of objects": lambda: np.array([Opaque(), None], dtype=object),
    "frozen": lambda: torch.nn.BatchNorm1d(2).requires_grad_(False),
}


@pytest.mark.parametrize("name", COMPONENTS)
def test_no_component_ends_the_run(tmp_path, name, capsys):
    trace = Trace(tmp_path / "trace.csv", component=COMPONENTS[name]())
    for step in (1, 2):
        trace.before_step(step, batch=COMPONENTS[name](), lr=COMPONENTS[name](), other=COMPONENTS[name]())
        trace.after_step(1.0)
    first, second = rows(tmp_path / "trace.csv")
    assert all(first[column] == second[column] for column in first if part(column) not in PRECISIONS), (
        "wherever it lies in memory"
    )
    assert len(capsys.readouterr().err.splitlines()) <= 8, "each thing is said once"


def test_what_has_no_digest_is_named_once_and_counts_as_not_looked_at(tmp_path, capsys):
    trace = Trace(tmp_path / "trace.csv", opaque=Opaque(), mixed={"w": torch.ones(2), "o": Opaque()}, fails=Fails())
    for step in (1, 2):
        trace.before_step(step, batch=[torch.ones(1), Opaque()])
        trace.after_step(Opaque())
    cells = rows(tmp_path / "trace.csv")[0]
    assert (cells["opaque"], cells["fails"], cells["loss"]) == ("unseen Opaque", "unseen RuntimeError", "unseen Opaque")
    assert capsys.readouterr().err.splitlines() == [
        "trace: opaque holds Opaque, which has no digest: not looked at",
        "trace: mixed holds Opaque, which has no digest: not looked at",
        "trace: fails can't be looked at: RuntimeError: not now and not later",
        "trace: batch holds Opaque, which has no digest: not looked at",
        "trace: loss holds Opaque, which has no digest: not looked at",
    ]
    read = diagnosis.read(tmp_path / "trace.csv")
    seen = {entry["component"]: entry["types"] for entry in diagnosis.diagnose(read, [read])["not_looked_at"]}
    assert seen == {
        "opaque": ["Opaque"],
        "mixed": ["Opaque"],
        "fails": ["RuntimeError"],
        "batch": ["Opaque"],
        "loss": ["Opaque"],
    }


def test_optimizers_with_settings_and_state_of_any_kind_are_traced(tmp_path):
    module = torch.nn.Linear(4, 4)
    optimizer = Adafactor(module.parameters())
    assert optimizer.param_groups[0]["lr"] is None
    scheduler = get_cosine_schedule_with_warmup(torch.optim.SGD(module.parameters(), lr=np.float64(0.1)), 1, 4)
    trace = Trace(
        tmp_path / "trace.csv", module=module, optimizer=optimizer, scheduler=scheduler, inner=scheduler.optimizer
    )
    for step in (1, 2):
        trace.before_step(step)
        module(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        optimizer.state[module.weight]["projector"] = Opaque()
        trace.after_step()
    first, second = rows(tmp_path / "trace.csv")
    assert first["lr"] == "{inner: 0.0, optimizer: None}"
    assert first["optimizer"] != second["optimizer"] and second["optimizer.unseen"] == "Opaque"


def test_rate_is_the_same_text_whatever_number_it_is(tmp_path):
    for number, lr in enumerate((0.5, np.float64(0.5), np.float32(0.5), torch.tensor(0.5))):
        optimizer = torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), lr=lr)
        trace = Trace(tmp_path / f"{number}.csv", optimizer=optimizer)
        trace.before_step(1)
        trace.after_step()
        assert rows(tmp_path / f"{number}.csv")[0]["lr"] == "0.5"


def test_file_that_cannot_be_written_any_more_ends_the_trace_and_not_the_run(tmp_path, capsys):
    trace = Trace(tmp_path / "trace.csv")
    trace.before_step(1)
    trace.after_step()
    trace.file.file = open("/dev/full", "wb", buffering=0)  # noqa: SIM115
    for step in (2, 3):
        trace.before_step(step)
        trace.after_step()
    assert trace.error.errno == errno.ENOSPC
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert len(rows(tmp_path / "trace.csv")) == 1


@pytest.mark.parametrize("name", ["a.b", "loss", "value"])
def test_name_that_comes_up_later_and_cannot_be_a_column_is_said_and_left_out(tmp_path, capsys, name):
    trace = Trace(tmp_path / "trace.csv", value=1)
    for step in (1, 2):
        trace.before_step(step, **({name: 3, "epoch": 4} if step == 2 else {}))
        trace.after_step(0.5)
    assert rows(tmp_path / "trace.csv")[1]["epoch"] == "4"
    assert capsys.readouterr().err.count("\n") == 1


def test_unit_is_batch_or_update(tmp_path):
    with pytest.raises(ValueError, match="found 'step' as unit, wanted one of batch, update"):
        Trace(tmp_path / "trace.csv", unit="step")
    trace = Trace(tmp_path / "trace.csv", unit="update")
    trace.before_step(1)
    trace.after_step()
    assert diagnosis.read(tmp_path / "trace.csv").unit == "update"


def test_step_that_was_not_begun_cannot_end(tmp_path):
    with pytest.raises(ValueError, match="after_step without before_step"):
        Trace(tmp_path / "trace.csv").after_step()


def test_values_of_tensors_of_every_kind_are_digested(tmp_path):
    """DTensors among them: this process' part, and which part that is."""

    class Sharded(torch.Tensor):
        placements = ("Shard(dim=0)",)

        def to_local(self):
            return self.as_subclass(torch.Tensor)

    def cells(value):
        trace = Trace(tmp_path / "trace.csv", value=value)
        trace.before_step(1)
        trace.after_step()
        return rows(tmp_path / "trace.csv")[0]["value"]

    sharded, replicated = torch.ones(2).as_subclass(Sharded), torch.ones(2).as_subclass(Sharded)
    replicated.placements = ("Replicate()",)
    assert len({cells(value) for value in (sharded, torch.zeros(2).as_subclass(Sharded), replicated)}) == 3
    assert cells(Wrapped(torch.ones(2))) != cells(Wrapped(torch.zeros(2)))
    nested = [torch.nested.nested_tensor([torch.ones(2), torch.full((3,), value)]) for value in (1.0, 2.0)]
    assert cells(nested[0]) != cells(nested[1])


class DrawsANormal:
    """Draws a normal number of numpy's, of which two are made at once, when it is asked for its state."""

    def state_dict(self):
        return {"drawn": np.random.standard_normal()}


@pytest.mark.parametrize("before", [0, 1], ids=["none waits", "one waits"])
def test_normal_number_that_waits_still_waits_when_a_component_drew_it(tmp_path, before):
    seed()
    expected = np.random.standard_normal(before + 3)[before:].tolist()
    seed()
    np.random.standard_normal(before)
    trace = Trace(tmp_path / "trace.csv", it=DrawsANormal())
    trace.before_step(1)
    trace.after_step()
    trace.close()
    assert np.random.standard_normal(3).tolist() == expected


def test_tensor_whose_memory_was_given_back_is_not_looked_at_and_the_run_goes_on(tmp_path):
    module = torch.nn.Linear(3, 2)
    trace = Trace(tmp_path / "trace.csv", m=module)
    module.weight.untyped_storage().resize_(0)
    trace.before_step(1)
    trace.after_step(0.5)
    trace.close()
    (row,) = rows(tmp_path / "trace.csv")
    assert row["m"] == "unseen ValueError"
    assert row["loss"] == "0.5"
