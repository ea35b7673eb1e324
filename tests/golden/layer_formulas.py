"""The mixer layers in float64, over parameters p named as in the files; u [B, T, D].

o: the options of the file. Shapes as in operator_formulas.py.
"""
import torch
import torch.nn.functional as F

from operator_formulas import (additive_scan, attention, delta_rule, l2_norm, layer_norm, mlstm,
                               rms_norm, rms_norm_gate, rope, short_conv, ssd)


def delta_layer(p, u, o):
    """DeltaNet, Gated DeltaNet or Kimi delta attention, by the parameters there are.

    o: the options of its constructor in flash-linear-attention.
    """
    H = o["num_heads"]
    K = o.get("head_dim", u.shape[-1] // H)
    G = o.get("num_v_heads", H)

    def convolved(name, heads):
        x = u @ p[f"{name}_proj.weight"].T
        if o.get("use_short_conv", True):
            x = short_conv(x, p[f"{name}_conv1d.weight"][:, 0])["y"]
        else:
            x = F.silu(x)
        return x.unflatten(-1, (heads, -1))

    def low_rank(name):
        return u @ p[f"{name}.0.weight"].T @ p[f"{name}.1.weight"].T

    q, k, v = convolved("q", H), convolved("k", H), convolved("v", G)
    g = None
    if "a_proj.weight" in p:
        g = -p["A_log"].exp() * F.softplus(u @ p["a_proj.weight"].T + p["dt_bias"])
    if "f_proj.0.weight" in p:
        rate = -p["A_log"].exp()[:, None]
        g = rate * F.softplus(low_rank("f_proj") + p["dt_bias"]).unflatten(-1, (G, K))
    beta = (2 if o.get("allow_neg_eigval", False) else 1) * (u @ p["b_proj.weight"].T).sigmoid()
    y = delta_rule(K ** -0.5, l2_norm(q), l2_norm(k), v, beta, g)["o"]
    norm = p["o_norm.weight"]
    if "g_proj.weight" in p:
        gate = (u @ p["g_proj.weight"].T).view_as(y)
        y = rms_norm_gate(y, norm, gate, 1e-5, "swish")
    elif "g_proj.0.weight" in p:
        gate = (low_rank("g_proj") + p["g_proj.1.bias"]).view_as(y)
        y = rms_norm_gate(y, norm, gate, 1e-5, "sigmoid")
    else:
        y = rms_norm(y, norm, 1e-5)
    return y.flatten(2) @ p["o_proj.weight"].T


def full_layer(p, u, o):
    """Causal softmax attention: grouped heads, QK norm, rotary positions, window, output gate."""
    K, window = o["head_dim"], o.get("window_size", 0)

    def heads(name):
        x = (u @ p[f"{name}_proj.weight"].T).unflatten(-1, (-1, K))
        if o["qk_norm"] and name != "v":
            x = rms_norm(x, p[f"{name}_norm.weight"], o["norm_eps"])
        if name == "v":
            return x
        return rope(x, torch.arange(u.shape[1]), o["rope_theta"], o["rope_style"])

    y = attention(K ** -0.5, window, heads("q"), heads("k"), heads("v"))["o"].flatten(2)
    if o["attention_gate"]:
        y = y * (u @ p["gate_proj.weight"].T).sigmoid()
    return y @ p["o_proj.weight"].T


def heads_of(p, u, name, heads):
    """A projection of u, split into heads."""
    return (u @ p[f"{name}.weight"].T).unflatten(-1, (heads, -1))


def swish_gated(p, u, y):
    """The end of RetNet and GLA: a norm of each head, a gate, the output projection."""
    gate = (u @ p["g_proj.weight"].T).view_as(y)
    y = rms_norm_gate(y, p["g_norm_swish_gate.weight"], gate, 1e-5, "swish")
    return y.flatten(2) @ p["o_proj.weight"].T


def linear_layer(p, u, o):
    """Linear attention without the normaliser, by its feature map."""
    H = o["num_heads"]

    def features(name):
        x = heads_of(p, u, f"{name}_proj", H)
        if o["feature_map"] == "elu":
            return F.elu(x) + 1
        first, second = (x @ p[f"feature_map_{name}.layer{n}.weight"].T
                         + p[f"feature_map_{name}.layer{n}.bias"] for n in (1, 2))
        return first * second

    q, k, v = features("q"), features("k"), heads_of(p, u, "v_proj", H)
    y = additive_scan(q.shape[-1] ** -0.5, q, k, v)["o"]
    return rms_norm(y, p["norm.weight"], 1e-5).flatten(2) @ p["o_proj.weight"].T


def retnet_layer(p, u, o):
    """Multi-scale retention: rotated queries and keys, head h decays by 1 - 2^(-5 - h)."""
    H = o["num_heads"]
    q, k = (rope(heads_of(p, u, f"{n}_proj", H), torch.arange(u.shape[1]), 1e4, "half")
            for n in "qk")
    log_gamma = torch.tensor([1 - 2.0 ** (-5 - h) for h in range(H)]).log()
    y = additive_scan(q.shape[-1] ** -0.5, q, k, heads_of(p, u, "v_proj", H), log_gamma=log_gamma)
    return swish_gated(p, u, y["o"])


def gla_layer(p, u, o):
    """Gated linear attention: a decay per key channel, of low rank."""
    q, k, v = (heads_of(p, u, f"{n}_proj", o["num_heads"]) for n in "qkv")
    gate = u @ p["gk_proj.0.weight"].T @ p["gk_proj.1.weight"].T + p["gk_proj.1.bias"]
    g = F.logsigmoid(gate).view_as(q) / o["gate_logit_normalizer"]
    return swish_gated(p, u, additive_scan(q.shape[-1] ** -0.5, q, k, v, g)["o"])


def hgrn2_layer(p, u, o):
    """HGRN2 as the first layer has it, where nothing bounds the forget gate from below."""
    H, K = u.shape[-1] // o["expand_ratio"], o["expand_ratio"]
    forget = heads_of(p, u, "f_proj", H).sigmoid()
    q = F.silu(heads_of(p, u, "q_proj", H))
    y = additive_scan(K ** -0.5, q, 1 - forget, heads_of(p, u, "i_proj", H), forget.log())["o"]
    return rms_norm(y.flatten(2), p["g_norm.weight"], 1e-5) @ p["o_proj.weight"].T


def mamba2_layer(p, u, o):
    """Mamba2: one projection to z, x, B, C, dt, the middle three convolved; a norm a group."""
    H, groups = o["num_heads"], o["n_groups"]
    inner, keys = int(o["expand"] * u.shape[-1]), groups * o["state_size"]
    z, xBC, dt = (u @ p["in_proj.weight"].T).split([inner, inner + 2 * keys, H], -1)
    xBC = short_conv(xBC, p["conv1d.weight"][:, 0], p["conv1d.bias"])["y"]
    x, B, C = xBC.split([inner, keys, keys], -1)
    y = ssd(x.unflatten(-1, (H, -1)), dt, B.unflatten(-1, (groups, -1)),
            C.unflatten(-1, (groups, -1)), p["A_log"], p["D"], p["dt_bias"])["o"]
    y, norm = (y.flatten(2) * F.silu(z)).unflatten(-1, (groups, -1)), p["norm.weight"]
    y = rms_norm(y, norm.unflatten(0, (groups, -1)), 1e-5).flatten(2)
    return y @ p["out_proj.weight"].T


def mlstm_layer(p, u, o):
    """The mLSTM block of xLSTM-7B: softly bounded gates, a layer norm of each head."""
    H, cap = o["num_heads"], o["gate_soft_cap"]
    q, k, v = (heads_of(p, u, n, H) for n in "qkv")
    i, f = (cap * ((u @ p[f"{n}gate_preact.weight"].T + p[f"{n}gate_preact.bias"]) / cap).tanh()
            for n in "if")
    y = mlstm(q.shape[-1] ** -0.5, q, k, v, i, f)["o"]
    y = layer_norm(y, p["multihead_norm.weight"].unflatten(0, (H, -1)), 1e-6).flatten(2)
    return (y * (u @ p["ogate_preact.weight"].T).sigmoid()) @ p["out_proj.weight"].T
