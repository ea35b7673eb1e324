"""LT2 in plain PyTorch: looped pre-norm blocks of gated delta rule and gated softmax attention.

Written to be fast on CPU: fused projections, the delta rule in chunks (WY form) with batched
products, PyTorch's fused attention. Shapes: B sequences, T tokens, D width, H heads, K and V the
head widths of keys and values, C tokens a chunk, N chunks.
"""
import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class Config:
    """The model's shape; the names are those of the configuration's [model]."""
    width: int = 128
    layers: int = 5
    loops: int = 2
    heads: int = 4
    ffn: int = 384
    vocab: int = 256
    mixers: tuple = ("gdn", "gdn", "gdn", "gdn", "full")
    gdn_heads: int = 4
    gdn_head_dim: int = 24
    gdn_v_dim: int = 48
    chunk: int = 32


def delta_rule(q, k, v, g, beta, chunk):
    """S' = exp(g_t) S; S = S' + beta_t k_t (v_t - S'^T k_t)^T; o_t = S^T q_t, from S = 0.

    q, k [B, H, T, K] (q scaled), v [B, H, T, V], g (log-decay <= 0) and beta [B, H, T]
    -> o [B, H, T, V]. Inside a chunk the corrections u solve (I + A) u = beta (v - e^G k S_in)
    with A = beta k k^T D below the diagonal and D_rj = exp(G_r - G_j); between chunks S is affine
    in S_in.
    """
    B, H, T, K = k.shape
    V = v.shape[-1]
    pad = -T % chunk
    if pad:
        q, k, v = (F.pad(x, (0, 0, 0, pad)) for x in (q, k, v))
        g, beta = F.pad(g, (0, pad)), F.pad(beta, (0, pad))
    N = (T + pad) // chunk
    q, k, v = (x.reshape(B * H, N, chunk, -1) for x in (q, k, v))
    beta = beta.reshape(B * H, N, chunk, 1)
    G = g.reshape(B * H, N, chunk).cumsum(-1)
    total = G[..., -1:, None].exp()  # decay of a whole chunk
    upper = torch.ones(chunk, chunk, dtype=torch.bool, device=q.device).triu(1)
    decay = (G[..., :, None] - G[..., None, :]).masked_fill(upper, -math.inf).exp()
    e_G = G.exp()[..., None]

    kk, qk = (torch.cat([k * beta, q], 2) @ k.mT).split(chunk, 2)
    right = torch.cat([k * e_G, v], -1) * beta
    # A's diagonal is taken as one and its upper half is not read.
    wu = torch.linalg.solve_triangular(kk * decay, right, upper=False, unitriangular=True)
    w, u = wu.split([K, V], -1)
    step = (k * (G[..., -1:] - G).exp()[..., None]).mT @ wu
    transfer = total * torch.eye(K, dtype=q.dtype, device=q.device) - step[..., :K]

    states = [torch.zeros_like(step[:, 0, :, K:])]
    for n in range(N - 1):
        states.append(torch.baddbmm(step[:, n, :, K:], transfer[:, n], states[-1]))
    read, old = (torch.cat([q * e_G, w], 2) @ torch.stack(states, 1)).split(chunk, 2)
    o = read + (qk * decay) @ (u - old)
    return o.reshape(B, H, T + pad, V)[:, :, :T]


def l2_norm(x, eps=1e-6):
    """x / |x| over the last axis."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + eps)


def causal_conv(x, w):
    """Depth-wise convolution of x [B, T, C] with w [C, 1, 4], w[..., 3] on the current token.

    Compiled, four shifted products become one loop; eager, each would be a pass over memory.
    """
    if not torch.compiler.is_compiling():
        return F.conv1d(F.pad(x.mT, (3, 0)), w, groups=len(w)).mT
    T, padded = x.shape[1], F.pad(x, (0, 0, 3, 0))
    return sum(padded[:, i:i + T] * w[:, 0, i] for i in range(4))


def projection(out_width, in_width):
    """A weight [out, in]: truncated normal of deviation in^-1/2, cut at three sigma."""
    std = in_width ** -0.5
    return nn.Parameter(nn.init.trunc_normal_(torch.empty(out_width, in_width), std=std,
                                              a=-3 * std, b=3 * std))


class GatedDeltaNet(nn.Module):
    """u [B, T, D] -> [B, T, D]; one projection for q, k, v, the output gate g, a and b."""

    def __init__(self, c):
        super().__init__()
        self.H, self.K, self.V, self.chunk = c.gdn_heads, c.gdn_head_dim, c.gdn_v_dim, c.chunk
        self.parts = [2 * self.H * self.K + self.H * self.V, self.H * self.V, self.H, self.H]
        self.in_proj = projection(sum(self.parts), c.width)
        self.conv = nn.Parameter(torch.empty(self.parts[0], 1, 4).uniform_(-0.5, 0.5))
        self.A_log = nn.Parameter(torch.empty(self.H).uniform_(0.01, 16).log())
        dt = torch.empty(self.H).uniform_(math.log(1e-3), math.log(0.1)).exp()
        self.dt_bias = nn.Parameter(dt + torch.log(-torch.expm1(-dt)))
        self.o_norm = nn.Parameter(torch.ones(self.V))
        self.o_proj = projection(c.width, self.H * self.V)

    def forward(self, u, _rope):
        B, T, _ = u.shape
        H, K, V = self.H, self.K, self.V
        qkv, gate, a, b = F.linear(u, self.in_proj).split(self.parts, -1)
        q, k, v = F.silu(causal_conv(qkv, self.conv)).split([H * K, H * K, H * V], -1)
        q, k, v = (x.unflatten(-1, (H, -1)).transpose(1, 2) for x in (q, k, v))
        g = -self.A_log.exp() * F.softplus(a + self.dt_bias)
        o = delta_rule(l2_norm(q) * K ** -0.5, l2_norm(k), v, g.mT, b.sigmoid().mT, self.chunk)
        o = F.rms_norm(o, (V,), self.o_norm, 1e-5).transpose(1, 2).reshape(B, T, H * V)
        return F.linear(o * F.silu(gate), self.o_proj)


def rope_table(T, K, theta=10000.0):
    """cos and sin [T, K / 2] of the rotary angles."""
    angle = torch.arange(T)[:, None] * theta ** (-torch.arange(0, K, 2) / K)
    return angle.cos(), angle.sin()


def rotate(x, rope):
    """Rotary positions, pairs (i, i + K/2); x [..., T, K]."""
    cos, sin = rope
    x1, x2 = x.chunk(2, -1)
    return torch.cat([x1 * cos - x2 * sin, x2 * cos + x1 * sin], -1)


class FullAttention(nn.Module):
    """u [B, T, D] -> [B, T, D]; one projection for q, k, v and the output gate."""

    def __init__(self, c):
        super().__init__()
        self.H, self.K = c.heads, c.width // c.heads
        self.in_proj = projection(4 * c.width, c.width)
        nn.init.zeros_(self.in_proj.data[3 * c.width:])
        self.o_proj = projection(c.width, c.width)

    def forward(self, u, rope):
        B, T, D = u.shape
        x = F.linear(u, self.in_proj)
        q, k, v = x[..., :3 * D].reshape(B, T, 3, self.H, self.K).permute(2, 0, 3, 1, 4)
        o = F.scaled_dot_product_attention(rotate(q, rope), rotate(k, rope), v, is_causal=True)
        o = o.transpose(1, 2).reshape(B, T, D) * x[..., 3 * D:].sigmoid()
        return F.linear(o, self.o_proj)


class Block(nn.Module):
    """y = x + Mixer(RMSNorm(x)); y + FFN(RMSNorm(y)), with SwiGLU as FFN; x [B, T, D]."""

    def __init__(self, c, kind):
        super().__init__()
        self.width = (c.width,)
        self.norm1 = nn.Parameter(torch.ones(c.width))
        self.norm2 = nn.Parameter(torch.ones(c.width))
        self.mixer = GatedDeltaNet(c) if kind == "gdn" else FullAttention(c)
        self.gate_up = projection(2 * c.ffn, c.width)
        self.down = projection(c.width, c.ffn)

    def forward(self, x, rope):
        x = x + self.mixer(F.rms_norm(x, self.width, self.norm1, 1e-6), rope)
        gate, up = F.linear(F.rms_norm(x, self.width, self.norm2, 1e-6), self.gate_up).chunk(2, -1)
        return x + F.linear(F.silu(gate) * up, self.down)


class LoopedModel(nn.Module):
    """h_0 = embed(tokens), h_t = F(h_{t-1}) + rho_t h_{t-1} for T loops; the head is tied."""

    def __init__(self, c, T):
        super().__init__()
        self.c = c
        self.embed = projection(c.vocab, c.width)
        kinds = [c.mixers[i % len(c.mixers)] for i in range(c.layers)]
        self.blocks = nn.ModuleList(Block(c, kind) for kind in kinds)
        self.rho = nn.Parameter(torch.zeros(c.loops, c.width))
        self.norm = nn.Parameter(torch.ones(c.width))
        cos, sin = rope_table(T, c.width // c.heads)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def compile_parts(self):
        """torch.compile for each kind of block and for the head: what repeats is compiled once."""
        for block in self.blocks:
            block.compile()
        self.head_loss = torch.compile(self.head_loss)

    def hidden(self, tokens):
        """tokens [B, T] -> h_T [B, T, D]."""
        rope = (self.cos[:tokens.shape[1]], self.sin[:tokens.shape[1]])
        h = F.embedding(tokens, self.embed)
        for t in range(self.c.loops):
            x = h
            for block in self.blocks:
                x = block(x, rope)
            h = x + self.rho[t] * h
        return h

    def head_loss(self, h, targets):
        """Mean cross-entropy in nats of h [B, T, D] against targets [B, T]; the head is tied."""
        logits = F.linear(F.rms_norm(h, (self.c.width,), self.norm, 1e-6), self.embed)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    def loss(self, tokens, targets):
        """Mean cross-entropy in nats; tokens and targets [B, T]."""
        return self.head_loss(self.hidden(tokens), targets)

    def groups(self, weight_decay):
        """Parameter groups: matrices and convolutions decay; norms, A_log, dt_bias, rho do not."""
        named = list(self.named_parameters())
        decays = [p for n, p in named if p.dim() > 1 and n != "rho"]
        rest = [p for n, p in named if p.dim() == 1 or n == "rho"]
        return [{"params": decays, "weight_decay": weight_decay},
                {"params": rest, "weight_decay": 0.0}]
