"""Programs of many kinds, none of which knows that it is recorded: `python kinds.py [KIND...]` trains each in a process
of its own, one after the other, and prints digests of what came out.
"""

import copy
import hashlib
import os
import random
import sys

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

UPDATES = 4


def net(*, dropout=0.5):
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(dropout), nn.Linear(8, 2))


def data(count=24):
    return TensorDataset(torch.randn(count, 4), torch.randn(count, 2))


def step(model, optimizer, loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def plain():
    model = net()
    optimizer = torch.optim.AdamW(model.parameters())
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1)
    for _ in range(UPDATES):
        loss = F.mse_loss(model(torch.randn(6, 4)), torch.randn(6, 2))
        step(model, optimizer, loss)
        scheduler.step(loss.item() + random.random())
    return model


def loaders():
    """A DataLoader with a generator of its own, workers, an evaluation in between and an average of the weights."""
    model, held = net(), torch.Generator().manual_seed(3)
    average = torch.optim.swa_utils.AveragedModel(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, nesterov=True, foreach=True)
    loader = DataLoader(data(), 6, sampler=RandomSampler(data(), generator=held), num_workers=1)
    for x, y in loader:
        step(model, optimizer, F.mse_loss(model(input=x), y))
        average.update_parameters(model)
        model.eval()
        with torch.no_grad():
            model(x)
        model.train()
        with torch.inference_mode():
            model(x)
    return average


def gan():
    generator, critic = net(), nn.Linear(2, 1)
    optimizers = [torch.optim.Adam(part.parameters(), fused=True) for part in (generator, critic)]
    for _ in range(UPDATES // 2):
        made = generator(torch.randn(6, 4))
        step(critic, optimizers[1], (critic(made.detach()) - critic(torch.randn(6, 2))).mean())
        step(generator, optimizers[0], -critic(made).mean())
    return nn.ModuleList([generator, critic])


def closures():
    model = net(dropout=0.0)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
    for _ in range(UPDATES):
        x, y = torch.randn(6, 4), torch.randn(6, 2)

        def closure(x=x, y=y):
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            loss.backward()
            return loss

        optimizer.step(closure)
    return model


def accumulation():
    """Gradients of three batches, scaled and clipped, in lower precision."""
    model = net()
    optimizer, scaler = torch.optim.AdamW(model.parameters()), torch.amp.GradScaler("cpu", init_scale=8.0)
    for number in range(UPDATES * 3):
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.mse_loss(model(torch.randn(6, 4)).float(), torch.randn(6, 2))
        scaler.scale(loss / 3).backward()
        if number % 3 == 2:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=False)
    return model


def compiled():
    """By torch's compiler, which also looks into hooks, and must not be given other code by them."""
    model = net()
    faster = torch.compile(model, backend="aot_eager", fullgraph=True)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(UPDATES):
        step(model, optimizer, F.mse_loss(faster(torch.randn(6, 4)), torch.randn(6, 2)))
    return model


def compiled_steps():
    """A compiled function around the forward pass: no module is called any more once it is compiled."""
    model = net()
    optimizer = torch.optim.AdamW(model.parameters())

    @torch.compile(backend="aot_eager")
    def loss_of(x, y):
        return F.mse_loss(model(x), y)

    for _ in range(UPDATES):
        step(model, optimizer, loss_of(torch.randn(6, 4), torch.randn(6, 2)))
    return model


def recomputed():
    """Activations that the backward pass computes once more."""
    model = nn.Sequential(net(), net())
    model[1][0] = nn.Linear(2, 8)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(UPDATES):
        x = checkpoint(model[0], torch.randn(6, 4), use_reentrant=False)
        step(model, optimizer, checkpoint(model[1], x, use_reentrant=False).pow(2).mean())
    return model


def two_steps():
    """Two optimizers of one backward pass, and one inside another."""
    model = net()

    class Outer(torch.optim.Optimizer):
        def __init__(self, inner):
            self.inner = inner
            super().__init__(inner.param_groups, {})

        def step(self, closure=None):
            return self.inner.step(closure)

    first, second = list(model.parameters())[:2], list(model.parameters())[2:]
    optimizers = [Outer(torch.optim.SGD(first, 0.1, momentum=0.9)), torch.optim.AdamW(second)]
    for _ in range(UPDATES // 2):
        for optimizer in optimizers:
            optimizer.zero_grad()
        F.mse_loss(model(torch.randn(6, 4)), torch.randn(6, 2)).backward()
        for optimizer in optimizers:
            optimizer.step()
    return model


def failing():
    """A forward pass and a step that fail, and are tried again."""
    model = net(dropout=0.0)
    optimizer, failures = torch.optim.SGD(model.parameters(), 0.1), []
    for _ in range(UPDATES):
        try:
            model(torch.randn(6, 3))
        except RuntimeError:
            failures.append("forward")
        x = torch.randn(6, 4)

        def closure(x=x):
            if len(failures) % 2:
                failures.append("step")
                raise ValueError("once")
            loss = model(x).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            return loss

        try:
            optimizer.step(closure)
        except ValueError:
            optimizer.step(closure)
    return model


def copied():
    """Models, optimizers and schedulers that are copied and pickled whole in between."""
    model = net()
    optimizer = torch.optim.AdamW(model.parameters())
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=10)
    for _ in range(UPDATES):
        step(model, optimizer, F.mse_loss(model(torch.randn(6, 4)), torch.randn(6, 2)))
        scheduler.step()
        copy.deepcopy(model)(torch.randn(6, 4))
        copy.deepcopy(optimizer)
    torch.save(model, os.devnull)
    return model


def own_parts():
    """A policy of which only parts are called, and a criterion with weights."""

    class Policy(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Linear(4, 8), nn.Linear(8, 2)

        def evaluate(self, x):
            return self.head(self.body(x))

    model, criterion = Policy(), nn.CrossEntropyLoss(torch.tensor([0.3, 0.7]))
    optimizer = torch.optim.RMSprop(model.parameters())
    for _ in range(UPDATES):
        step(model, optimizer, criterion(model.evaluate(torch.randn(6, 4)), torch.randint(2, (6,))))
    return model


KINDS = {
    kind.__name__: kind
    for kind in (
        *(plain, loaders, gan, closures, accumulation, compiled, compiled_steps, recomputed, two_steps, failing),
        *(copied, own_parts),
    )
}


def outcome(kind):
    torch.set_num_threads(1)
    torch.manual_seed(1)
    np.random.seed(1)
    random.seed(1)
    model = KINDS[kind]()
    hasher = hashlib.sha256()
    for tensor in model.state_dict().values():
        hasher.update(tensor.numpy().tobytes())
    for state in (torch.get_rng_state().numpy().tobytes(), repr(np.random.get_state()), repr(random.getstate())):
        hasher.update(state if isinstance(state, bytes) else state.encode())
    hooks = sum(len(vars(part)[name]) for part in model.modules() for name in vars(part) if name.endswith("_hooks"))
    return f"{kind} {hasher.hexdigest()} {hooks}"


if __name__ == "__main__":
    for kind in sys.argv[1:] or KINDS:
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            print(outcome(kind), flush=True)
            os._exit(0)
        os.waitpid(child, 0)
