"""The model is MiniMind's: the same names and the same numbers as an implementation that isn't ours."""

import math

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from exact_resume.lab import settings
from exact_resume.lab.model import Decoder, Gating, Normalisation, Projections, Rotation, rotary_table


def transformers_model(chosen):
    """transformers' model of the sizes in `chosen`, config.yaml's model section."""
    config = Qwen3Config(
        vocab_size=chosen["vocab_size"],
        hidden_size=chosen["hidden_size"],
        intermediate_size=math.ceil(chosen["hidden_size"] * math.pi / 64) * 64,
        num_hidden_layers=chosen["num_hidden_layers"],
        num_attention_heads=chosen["num_attention_heads"],
        num_key_value_heads=chosen["num_key_value_heads"],
        head_dim=chosen["hidden_size"] // chosen["num_attention_heads"],
        rope_parameters={"rope_type": "default", "rope_theta": chosen["rope_theta"]},
        rms_norm_eps=chosen["rms_norm_eps"],
        tie_word_embeddings=True,
    )
    return Qwen3ForCausalLM(config).eval()


@pytest.fixture(scope="module")
def pair():
    """Our default model with weights of no special values, and transformers' with the same weights."""
    chosen = settings.load()["model"]
    torch.manual_seed(3)
    ours = Decoder(chosen, 128)
    # Norm weights of exactly one would hide a norm that is applied in the wrong place.
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    theirs = transformers_model(chosen)
    theirs.load_state_dict(ours.state_dict(), strict=True)
    return ours, theirs


@pytest.mark.pipeline
def test_trained_weights_load_strictly_into_transformers_and_give_the_same_logits(built, tiny):
    weights = torch.load(built / "results" / "straight.pth", weights_only=True)
    theirs = transformers_model(tiny["model"])
    theirs.load_state_dict(weights, strict=True)
    ours = Decoder(tiny["model"], 128).eval()
    ours.load_state_dict(weights, strict=True)
    tokens = torch.randint(0, 256, (2, 128))
    with torch.no_grad():
        torch.testing.assert_close(ours(tokens), theirs(tokens).logits, atol=1e-5, rtol=0)


def test_logits_equal_those_of_transformers(pair):
    ours, theirs = pair
    tokens = torch.randint(0, 256, (3, 128))
    with torch.no_grad():
        torch.testing.assert_close(ours(tokens), theirs(tokens).logits, atol=1e-5, rtol=0)


def test_gradients_equal_those_of_transformers(pair):
    ours, theirs = pair
    tokens = torch.randint(0, 256, (2, 64))
    ours(tokens).square().mean().backward()
    theirs(tokens).logits.square().mean().backward()
    expected = dict(theirs.named_parameters())
    for name, parameter in ours.named_parameters():
        torch.testing.assert_close(
            parameter.grad, expected[name].grad, atol=1e-5, rtol=1e-4, msg=lambda text, name=name: f"{name}: {text}"
        )


def test_backward_passes_of_our_own_are_the_derivatives():
    x = torch.randn(2, 3, 4, 8, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(8, dtype=torch.float64, requires_grad=True)
    cos, sin = (table.double() for table in rotary_table(4, 8, 1e6))
    assert torch.autograd.gradcheck(lambda x, weight: Normalisation.apply(x, weight, 1e-6), (x, weight))
    assert torch.autograd.gradcheck(lambda x: Rotation.apply(x, cos, sin), (x,))
    assert torch.autograd.gradcheck(Gating.apply, (x, torch.randn_like(x, requires_grad=True)))
    weights = [torch.randn(size, 8, dtype=torch.float64, requires_grad=True) for size in (5, 3, 3)]
    assert torch.autograd.gradcheck(Projections.apply, (x, *weights))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gradients_under_autocast_are_near_those_of_single_precision(pair, dtype):
    """And of single precision themselves, as the parameters are."""
    model, tokens = pair[0], torch.randint(0, 256, (2, 64))
    gradients = []
    for enabled in (False, True):
        model.zero_grad()
        with torch.autocast("cpu", dtype, enabled=enabled):
            logits = model(tokens)
        logits.float().square().mean().backward()
        gradients.append({name: parameter.grad.clone() for name, parameter in model.named_parameters()})
    full, narrow = gradients
    for name, gradient in narrow.items():
        assert gradient.dtype == torch.float32
        assert (gradient - full[name]).norm() < 0.03 * full[name].norm(), name


def test_the_head_shares_the_embedding(pair):
    state = pair[0].state_dict()
    assert state["lm_head.weight"].data_ptr() == state["model.embed_tokens.weight"].data_ptr()
