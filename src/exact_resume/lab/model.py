"""MiniMind's dense decoder, with MiniMind's state-dict names.

Pre-norm transformer: RMSNorm (Zhang & Sennrich 2019), grouped-query attention (Ainslie et al. 2023) with RMS-normalised
queries and keys and rotary positions (Su et al. 2021), SwiGLU (Shazeer 2020), and an output head that shares the
embedding's weight. The same arithmetic as Qwen3. What isn't a matrix product or attention has a backward pass of its
own, with less memory traffic than the one that autograd derives.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn

INIT_STD = 0.02


class Decoder(nn.Module):
    """The whole model: int64 tokens (batch, length) in, float32 logits (batch, length, vocab_size) out.

    `settings` is config.yaml's `model` section; `length` is the longest sequence that it will be given. With `dropout`
    above 0 the embedding and what each block adds are dropped out in train mode, as MiniMind does.
    """

    def __init__(self, settings, length):
        super().__init__()
        self.model = nn.ModuleDict()
        self.model["embed_tokens"] = nn.Embedding(settings["vocab_size"], settings["hidden_size"])
        self.model["layers"] = nn.ModuleList(Block(settings) for _ in range(settings["num_hidden_layers"]))
        self.model["norm"] = RMSNorm(settings["hidden_size"], settings["rms_norm_eps"])
        self.lm_head = nn.Linear(settings["hidden_size"], settings["vocab_size"], bias=False)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=INIT_STD)
        self.lm_head.weight = self.model["embed_tokens"].weight
        cos, sin = rotary_table(
            length, settings["hidden_size"] // settings["num_attention_heads"], settings["rope_theta"]
        )
        self.dropout = settings["dropout"]
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, tokens):
        length = tokens.shape[1]
        cos, sin = self.cos[:length], self.sin[:length]
        x = drop(self.model["embed_tokens"](tokens), self.dropout, self.training)
        for layer in self.model["layers"]:
            x = layer(x, cos, sin)
        return self.lm_head(self.model["norm"](x))


class Block(nn.Module):
    """Attention and feed-forward, each on a normalised input and added to it; shape (batch, length, hidden_size)."""

    def __init__(self, settings):
        super().__init__()
        self.self_attn = Attention(settings)
        self.mlp = SwiGLU(settings["hidden_size"])
        self.dropout = settings["dropout"]
        self.input_layernorm = RMSNorm(settings["hidden_size"], settings["rms_norm_eps"])
        self.post_attention_layernorm = RMSNorm(settings["hidden_size"], settings["rms_norm_eps"])

    def forward(self, x, cos, sin):
        x = x + drop(self.self_attn(self.input_layernorm(x), cos, sin), self.dropout, self.training)
        return x + drop(self.mlp(self.post_attention_layernorm(x)), self.dropout, self.training)


def drop(x, dropout, training):
    """Return x with a share `dropout` of it zeroed and the rest scaled up, when training; without dropout x itself, no
    kernel run.
    """
    return F.dropout(x, dropout) if dropout and training else x


class Attention(nn.Module):
    """Causal grouped-query attention; shape (batch, length, hidden_size)."""

    def __init__(self, settings):
        super().__init__()
        hidden = settings["hidden_size"]
        self.heads, self.kv_heads = settings["num_attention_heads"], settings["num_key_value_heads"]
        self.head_dim = hidden // self.heads
        self.q_proj = nn.Linear(hidden, self.heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(hidden, self.kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(hidden, self.kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(self.heads * self.head_dim, hidden, bias=False)
        self.q_norm = RMSNorm(self.head_dim, settings["rms_norm_eps"])
        self.k_norm = RMSNorm(self.head_dim, settings["rms_norm_eps"])

    def forward(self, x, cos, sin):
        batch, length, _ = x.shape
        projected = Projections.apply(x, self.q_proj.weight, self.k_proj.weight, self.v_proj.weight)
        q, k, v = (part.view(batch, length, -1, self.head_dim) for part in projected)
        q, k, v = self.q_norm(q).transpose(1, 2), self.k_norm(k).transpose(1, 2), v.transpose(1, 2)
        q, k = Rotation.apply(q, cos, sin), Rotation.apply(k, cos, sin)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o_proj(y.transpose(1, 2).reshape(batch, length, -1))


class SwiGLU(nn.Module):
    """down(silu(gate(x)) * up(x)), of width ceil(hidden * pi / 64) * 64."""

    def __init__(self, hidden):
        super().__init__()
        width = math.ceil(hidden * math.pi / 64) * 64
        self.gate_proj = nn.Linear(hidden, width, bias=False)
        self.up_proj = nn.Linear(hidden, width, bias=False)
        self.down_proj = nn.Linear(width, hidden, bias=False)

    def forward(self, x):
        return self.down_proj(Gating.apply(*Projections.apply(x, self.gate_proj.weight, self.up_proj.weight)))


class RMSNorm(nn.Module):
    """weight * x / sqrt(mean(x^2) + eps) over the last dimension."""

    def __init__(self, size, eps):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x):
        return Normalisation.apply(x, self.weight, self.eps)


class Projections(torch.autograd.Function):
    """Several linear maps of one input: x @ w.T for each weight w, of which x's gradient is gathered in one place."""

    @staticmethod
    def forward(ctx, x, *weights):
        ctx.save_for_backward(x, *weights)
        return tuple(x @ weight.t() for weight in weights)

    @staticmethod
    def backward(ctx, *grads):
        # Under autocast the gradients, like the outputs, are narrower than what was saved.
        x, *weights = (saved.to(grads[0].dtype) for saved in ctx.saved_tensors)
        grads = [grad.flatten(0, -2) for grad in grads]
        grad_x = grads[0] @ weights[0]
        for grad, weight in zip(grads[1:], weights[1:]):
            grad_x.addmm_(grad, weight)
        return grad_x.reshape(x.shape), *(grad.t() @ x.flatten(0, -2) for grad in grads)


class Gating(torch.autograd.Function):
    """silu(gate) * up. Neither silu(gate) nor the product is kept for the backward pass."""

    @staticmethod
    def forward(ctx, gate, up):
        ctx.save_for_backward(gate, up)
        return F.silu(gate).mul_(up)

    @staticmethod
    def backward(ctx, grad):
        gate, up = ctx.saved_tensors
        return torch.ops.aten.silu_backward(grad * up, gate), F.silu(gate).mul_(grad)


class Normalisation(torch.autograd.Function):
    """RMSNorm with its gradient. With q = |x|^2 + size * eps and r = sqrt(size / q): y = r * x * w, dw = sum(r * x *
    dy) and dx = r * (h - x * sum(h * x) / q), where h = dy * w. Computed in the weight's precision.
    """

    @staticmethod
    def forward(ctx, x, weight, eps):
        x = x.to(weight.dtype)
        size = weight.numel()
        square = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_().add_(size * eps)
        scale = square.rsqrt().mul_(math.sqrt(size))
        ctx.save_for_backward(x, square, scale, weight)
        return (x * scale).mul_(weight)

    @staticmethod
    def backward(ctx, grad):
        x, square, scale, weight = ctx.saved_tensors
        product = (grad * x).reshape(-1, weight.numel())
        projection = torch.mv(product, weight).reshape(square.shape).div_(square)
        return (
            (grad * weight).addcmul_(x, projection, value=-1).mul_(scale),
            torch.mv(product.t(), scale.flatten()),
            None,
        )


class Rotation(torch.autograd.Function):
    """Rotation of x, shape (batch, heads, length, head_dim), by the angles of `rotary_table`; the gradient is rotated
    back.
    """

    @staticmethod
    def forward(ctx, x, cos, sin):
        ctx.save_for_backward(cos, sin)
        return (x * cos).addcmul_(x.roll(x.shape[-1] // 2, -1), sin)

    @staticmethod
    def backward(ctx, grad):
        cos, sin = ctx.saved_tensors
        return (grad * cos).addcmul_(grad.roll(grad.shape[-1] // 2, -1), sin, value=-1), None, None


def rotary_table(length, head_dim, theta):
    """Return cos and signed sin, float32 (length, head_dim), of the angles position / theta^(2i / head_dim).

    Dimension i turns together with dimension i + head_dim / 2; the sine of the first half is negated so that a rotation
    is x * cos + swap_halves(x) * sin.
    """
    frequency = theta ** (-torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    angle = torch.outer(torch.arange(length, dtype=torch.float32), frequency)
    return torch.cat((angle.cos(), angle.cos()), -1), torch.cat((-angle.sin(), angle.sin()), -1)
