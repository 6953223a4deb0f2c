"""Throughput of the training step on one core: our model and AdamW against transformers' Qwen3ForCausalLM and torch's
plain AdamW.

Both are trained by the same loop on the same batches, in turns, so that a machine whose speed drifts slows both. Prints
the ratio of tokens per second (ours / theirs), and the share of the core's own matrix-product rate that our step
reaches.
"""

import gc
import statistics
import sys
import time
from pathlib import Path

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

import numpy as np

from exact_resume.lab import settings
from exact_resume.lab.corpus import corpus_files
from exact_resume.lab.run import Run

ROUNDS, STEPS_A_ROUND = 15, 8


class Theirs(torch.nn.Module):
    """Qwen3ForCausalLM of our size that returns logits alone, as our model does."""

    def __init__(self, ours, chosen):
        super().__init__()
        config = Qwen3Config(
            vocab_size=chosen["vocab_size"],
            hidden_size=chosen["hidden_size"],
            intermediate_size=ours.model["layers"][0].mlp.gate_proj.out_features,
            num_hidden_layers=chosen["num_hidden_layers"],
            num_attention_heads=chosen["num_attention_heads"],
            num_key_value_heads=chosen["num_key_value_heads"],
            head_dim=chosen["hidden_size"] // chosen["num_attention_heads"],
            rms_norm_eps=chosen["rms_norm_eps"],
            tie_word_embeddings=True,
            use_cache=False,
        )
        self.model = Qwen3ForCausalLM(config)
        self.model.load_state_dict(ours.state_dict())

    def forward(self, tokens):
        return self.model(tokens).logits


def main():
    chosen = settings.load({"training": {"steps": 10**6, "threads": 1}})
    tokens = np.frombuffer(b"".join(path.read_bytes() for path in corpus_files(None)), dtype=np.uint8)
    theirs, ours = Run(chosen, tokens), Run(chosen, tokens)
    theirs.model = Theirs(ours.model, chosen["model"])
    lr, weight_decay = chosen["training"]["lr"], chosen["training"]["weight_decay"]
    theirs.optimizer = torch.optim.AdamW(theirs.model.parameters(), lr=lr, weight_decay=weight_decay)

    gc.freeze()  # as train.py does
    times = {"ours": [], "theirs": []}
    for round_ in range(ROUNDS + 1):
        for name, run in (("ours", ours), ("theirs", theirs)):
            spent = seconds(run)
            if round_:
                times[name].append(spent)
    ratio = statistics.median(theirs / ours for ours, theirs in zip(times["ours"], times["theirs"]))
    step = statistics.median(times["ours"])
    tokens_a_step = chosen["training"]["batch_size"] * chosen["training"]["length"]
    products = matrix_flops(ours.model, tokens_a_step, chosen) / matrix_rate()
    print(
        f"step: ours {step * 1e3:.1f} ms ({tokens_a_step / step:.0f} tokens/s), theirs "
        f"{statistics.median(times['theirs']) * 1e3:.1f} ms"
    )
    print(f"tokens per second, ours / theirs: {ratio:.2f} (wanted at least 1.10)")
    print(f"share of the core's matrix-product rate: {products / step:.2f}")


def seconds(run):
    """Train STEPS_A_ROUND steps and return the seconds that one took."""
    start = time.perf_counter()
    for _ in run.train(run.step + STEPS_A_ROUND):
        pass
    return (time.perf_counter() - start) / STEPS_A_ROUND


def matrix_flops(model, tokens, chosen):
    """Return the floating-point operations of a step's matrix products.

    6 for each weight and token (2 forward, 4 backward), and for attention 12 * length * hidden_size for each layer and
    token.
    """
    weights = sum(module.weight.numel() for module in model.modules() if isinstance(module, torch.nn.Linear))
    attention = (
        12
        * chosen["training"]["length"]
        * tokens
        * chosen["model"]["hidden_size"]
        * chosen["model"]["num_hidden_layers"]
    )
    return 6 * weights * tokens + attention


def matrix_rate(size=1024, times=20):
    """Return the operations per second of a float32 product of two square matrices on one core: the median of
    `times`.
    """
    a, b = torch.randn(size, size), torch.randn(size, size)
    spent = []
    for _ in range(times):
        start = time.perf_counter()
        a @ b
        spent.append(time.perf_counter() - start)
    return 2 * size**3 / statistics.median(spent)


if __name__ == "__main__":
    main()
