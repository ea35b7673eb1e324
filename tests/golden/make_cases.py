#!/usr/bin/env python3
"""Writes known answers for the operators and mixer layers, from the float64 formulas beside it.

Usage: make_cases.py [OUT_DIR] [--seed N]

README.md says what a file holds. Needs torch, numpy and h5py. Shapes as in formulas.py.
"""
import argparse
import json
from pathlib import Path

import h5py
import torch
import torch.nn.functional as F

from formulas import (adamw, attention, delta_layer, delta_rule, full_layer, l2_norm,
                      linear_cross_entropy, rms_norm, rms_norm_gate, rope, short_conv)

torch.set_default_dtype(torch.float64)


def exact(x):
    """x rounded to float32, as a float64 leaf: what is stored is what was computed from."""
    return x.detach().float().double().requires_grad_()


def normal(*shape, scale=1.0):
    """A random input."""
    return exact(torch.randn(*shape) * scale)


def integers(values):
    """An int32 input."""
    return torch.as_tensor(values, dtype=torch.int32)


def write(path, attributes, groups):
    """One file: attributes, and tensors by group and name, float32 or int32."""
    with h5py.File(path, "w") as file:
        file.attrs["format_version"] = 1
        for name, value in attributes.items():
            file.attrs[name] = value
        for group, tensors in groups.items():
            node = file.create_group(group)
            for name, x in tensors.items():
                node[name] = (x.detach().float() if x.is_floating_point() else x).numpy()


class Writer:
    """Writes cases into a folder."""

    def __init__(self, folder):
        self.folder = Path(folder)

    def operator(self, name, op, attributes, inputs, outputs):
        """Draws a cotangent for each output and differentiates every floating input."""
        wanted = {k: x for k, x in inputs.items() if x.requires_grad}
        differentiable = {k: y for k, y in outputs.items() if y.requires_grad}
        cotangents = {k: exact(torch.randn_like(y)) for k, y in differentiable.items()}
        grads = torch.autograd.grad(list(differentiable.values()), list(wanted.values()),
                                    list(cotangents.values())) if differentiable else []
        write(self.folder / f"{name}.h5", {"op": op, **attributes},
              {"inputs": inputs, "outputs": outputs, "cotangents": cotangents,
               "grads": dict(zip(wanted, grads))})

    def layer(self, name, mixer, layer, options, params, x):
        """One forward pass of a mixer layer."""
        write(self.folder / f"layer_{name}.h5",
              {"op": "layer", "mixer": mixer, "options": json.dumps(options)},
              {"params": params, "inputs": {"x": x}, "outputs": {"y": layer(params, x, options)}})


def delta_inputs(B, T, H, G, K, V, decay=None, beta_max=1.0, cu=None, state=False):
    """Inputs of the delta rules; decay gives g for each value head, or "random"."""
    x = {"q": exact(F.normalize(torch.randn(B, T, H, K), dim=-1)),
         "k": exact(F.normalize(torch.randn(B, T, H, K), dim=-1)), "v": normal(B, T, G, V)}
    if decay == "random":
        x["g"] = exact(F.logsigmoid(torch.randn(B, T, G)))
    elif decay is not None:
        x["g"] = exact(torch.as_tensor(decay) * torch.ones(B, T, G) * (0.5 + torch.rand(B, T, 1)))
    x["beta"] = exact(beta_max * torch.rand(B, T, G))
    if state:
        x["initial_state"] = normal(B if cu is None else len(cu) - 1, G, K, V, scale=0.3)
    if cu is not None:
        x["cu_seqlens"] = integers(cu)
    return x


def write_sequence_operators(w):
    """Delta rules, attention and convolution."""
    packing = [0, 1, 30, 64, 65, 131]
    cases = {
        "delta_rule_odd": dict(B=2, T=67, H=3, G=3, K=7, V=9),
        "delta_rule_packed_state": dict(B=1, T=131, H=1, G=2, K=8, V=12, cu=packing, state=True),
        "gated_delta_rule_odd_state": dict(B=2, T=67, H=3, G=3, K=7, V=9, decay="random",
                                           state=True),
        "gated_delta_rule_long": dict(B=1, T=200, H=2, G=2, K=8, V=16, decay="random"),
        "gated_delta_rule_packed_state": dict(B=1, T=131, H=1, G=2, K=8, V=12, decay="random",
                                              cu=packing, state=True),
        "gated_delta_rule_hard_decay": dict(B=1, T=131, H=3, G=3, K=8, V=8, decay=[-30., 0., -3.]),
        "gated_delta_rule_packed_hard_decay": dict(B=1, T=131, H=2, G=4, K=8, V=8, cu=packing,
                                                   decay=[-40., 0., -1e-3, -5.]),
        "gated_delta_rule_slow_decay": dict(B=1, T=131, H=3, G=3, K=8, V=8, decay=-1e-3,
                                            beta_max=2.0),
        "gated_delta_rule_packed_slow_decay": dict(B=1, T=131, H=1, G=2, K=8, V=12, cu=packing,
                                                   decay=-1e-3, beta_max=2.0)}
    for name, sizes in cases.items():
        x = delta_inputs(**sizes)
        op, scale = name[:name.index("rule") + 4], sizes["K"] ** -0.5
        w.operator(name, op, {"scale": scale}, x, delta_rule(scale, **x))
    for name, B, T, H, G, K, V, window, gated, cu in (
            ("multi_head", 2, 67, 3, 3, 8, 8, 0, False, None),
            ("grouped_gated", 1, 131, 4, 2, 8, 12, 0, True, None),
            ("window", 1, 131, 2, 1, 12, 8, 17, False, None),
            ("packed", 1, 131, 4, 1, 8, 12, 0, False, packing),
            ("packed_window_gated", 1, 131, 2, 2, 10, 6, 40, True, packing),
            ("window_of_one", 1, 20, 2, 2, 4, 4, 1, False, None)):
        x = {"q": normal(B, T, H, K), "k": normal(B, T, G, K), "v": normal(B, T, G, V)}
        x |= {"gate": normal(B, T, H, V)} if gated else {}
        x |= {"cu_seqlens": integers(cu)} if cu else {}
        w.operator(f"attention_{name}", "attention", {"scale": K ** -0.5, "window": window}, x,
                   attention(K ** -0.5, window, **x))
    for name, B, T, C, bias, cu in (("plain", 2, 67, 13, False, None),
                                    ("bias", 3, 3, 8, True, None),
                                    ("packed_bias", 1, 131, 13, True, packing)):
        x = {"x": normal(B, T, C), "w": normal(C, 4)}
        x |= {"bias": normal(C)} if bias else {}
        x |= {"cu_seqlens": integers(cu)} if cu else {}
        w.operator(f"short_conv_{name}", "short_conv", {"activation": "silu"}, x, short_conv(**x))


def write_row_operators(w):
    """Norms, gates, rotary positions, loss and optimizer."""
    B, T, C, vocab = 3, 11, 40, 131
    rows = 10.0 ** -(torch.arange(B * T).view(B, T, 1) % 5).double()  # small rows show eps
    x, weight, gate = exact(torch.randn(B, T, C) * rows), normal(C), normal(B, T, C)
    norm = {"x": x, "w": weight}
    w.operator("rms_norm", "rms_norm", {"eps": 1e-6}, norm, {"y": rms_norm(x, weight, 1e-6)})
    for kind in ("swish", "sigmoid"):
        w.operator(f"rms_norm_gate_{kind}", "rms_norm_gate", {"eps": 1e-5, "gate": kind},
                   {**norm, "gate": gate}, {"y": rms_norm_gate(x, weight, gate, 1e-5, kind)})
    w.operator("l2_norm", "l2_norm", {"eps": 1e-6}, {"x": x}, {"y": l2_norm(x)})
    up = normal(B, T, C)
    w.operator("swiglu", "swiglu", {}, {"gate": gate, "up": up},
               {"y": gate * gate.sigmoid() * up})
    for style in ("half", "interleaved"):
        x, positions = normal(2, 9, 3, 14), torch.tensor([0, 1, 2, 0, 1, 4095, 77, 5, 6])
        w.operator(f"rope_{style}", "rope", {"theta": 10000.0, "style": style},
                   {"x": x, "positions": integers(positions)},
                   {"y": rope(x, positions, 1e4, style)})
    for name, z_loss in (("plain", 0.0), ("z_loss", 1e-2)):
        x, head = normal(B * T, C), normal(vocab, C, scale=0.3)
        target = torch.randint(0, vocab, (B * T,))
        target[::7] = -100
        w.operator(f"linear_cross_entropy_{name}", "linear_cross_entropy",
                   {"z_loss": z_loss, "ignore_index": -100},
                   {"x": x, "w": head, "target": integers(target)},
                   {"loss": linear_cross_entropy(x, head, target, z_loss)})
    sizes = 10.0 ** -(torch.arange(37) % 10).double()  # small gradients show eps
    inputs = {"param": normal(37).detach(), "grads": normal(3, 37).detach() * sizes}
    inputs = {k: exact(v).detach() for k, v in inputs.items()}
    options = {"lr": 3e-3, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1}
    w.operator("adamw", "adamw", options, inputs, adamw(**inputs, **options))


def weights(shapes):
    """Random projections and convolutions by name; deviation fan_in^-1/2."""
    return {f"{name}.weight": normal(*s, scale=s[-1] ** -0.5) for name, s in shapes.items()}


def write_gdn_layers(w):
    """Gated DeltaNet layers; options as flash-linear-attention's constructor names them."""
    for name, D, H, G, K, V, conv, negative in (
            ("gdn", 24, 3, 3, 6, 12, True, False),
            ("gdn_grouped_negative", 20, 2, 4, 8, 8, True, True),
            ("gdn_no_conv", 20, 2, 4, 6, 9, False, False)):
        shapes = {"q_proj": (H * K, D), "k_proj": (H * K, D), "v_proj": (G * V, D),
                  "g_proj": (G * V, D), "a_proj": (G, D), "b_proj": (G, D), "o_proj": (D, G * V)}
        if conv:
            shapes |= {f"{n}_conv1d": (shapes[f"{n}_proj"][0], 1, 4) for n in "qkv"}
        params = weights(shapes)
        params["A_log"] = exact(torch.linspace(0.1, 12, G).log())
        params["dt_bias"] = normal(G)
        params["o_norm.weight"] = exact(1 + 0.3 * torch.randn(V))
        options = {"hidden_size": D, "num_heads": H, "num_v_heads": G, "head_dim": K,
                   "expand_v": V / K, "use_short_conv": conv, "allow_neg_eigval": negative}
        w.layer(name, "gdn", delta_layer, options, params, normal(2, 70, D))


def write_full_layers(w):
    """Softmax attention layers."""
    for name, D, H, G, K, style, gate, norm in (
            ("full", 24, 4, 4, 6, "half", True, False),
            ("full_grouped", 24, 3, 1, 8, "interleaved", False, True)):
        shapes = {"q_proj": (H * K, D), "k_proj": (G * K, D), "v_proj": (G * K, D),
                  "o_proj": (D, H * K)}
        if gate:
            shapes["gate_proj"] = (H * K, D)
        params = weights(shapes)
        if norm:
            params |= {f"{n}_norm.weight": exact(1 + 0.3 * torch.randn(K)) for n in "qk"}
        options = {"hidden_size": D, "num_heads": H, "num_kv_heads": G, "head_dim": K,
                   "rope_theta": 10000.0, "rope_style": style, "attention_gate": gate,
                   "qk_norm": norm, "norm_eps": 1e-6}
        w.layer(name, "full", full_layer, options, params, normal(2, 70, D))


def write_channel_decay(w):
    """The delta rule with a decay per key channel, from nothing to all in one chunk."""
    packing = [0, 1, 30, 64, 65, 131]
    for name, B, T, H, G, K, V, rates, cu, state in (
            ("packed_state", 1, 131, 1, 2, 7, 9, (1., 0.1), packing, True),
            ("hard_decay", 1, 131, 2, 2, 8, 8, (0., -30., 1e-3), None, False)):
        x = delta_inputs(B, T, H, G, K, V, "random", cu=cu, state=state)
        rate = torch.tensor(rates)[torch.randint(len(rates), (B, T, G, K))]
        x["g"] = exact(torch.where(rate < 0, rate, rate * F.logsigmoid(torch.randn(B, T, G, K))))
        w.operator(f"kda_{name}", "kda", {"scale": K ** -0.5}, x, delta_rule(K ** -0.5, **x))


def write_more_delta_layers(w):
    """DeltaNet and Kimi delta attention layers, options as flash-linear-attention names them."""
    def shapes(D, H, G, K, V):
        channels = {"q": H * K, "k": H * K, "v": G * V}
        return {f"{n}_proj": (c, D) for n, c in channels.items()} | {
            f"{n}_conv1d": (c, 1, 4) for n, c in channels.items()} | {
            "b_proj": (G, D), "o_proj": (D, G * V)}

    for name, D, H, gate in (("deltanet", 24, 3, False), ("deltanet_gate", 24, 4, True)):
        params = weights(shapes(D, H, H, D // H, D // H) | ({"g_proj": (D, D)} if gate else {}))
        params["o_norm.weight"] = exact(1 + 0.3 * torch.randn(D // H))
        w.layer(name, "deltanet", delta_layer,
                {"hidden_size": D, "num_heads": H, "use_gate": gate}, params, normal(2, 70, D))
    for name, D, H, G, K, V in (("kda", 24, 3, 3, 8, 8), ("kda_grouped", 20, 2, 4, 6, 9)):
        params = weights(shapes(D, H, G, K, V) | {"f_proj.0": (V, D), "f_proj.1": (G * K, V),
                                                  "g_proj.0": (V, D), "g_proj.1": (G * V, V)})
        params["g_proj.1.bias"], params["dt_bias"] = normal(G * V), normal(G * K)
        params["A_log"] = exact(torch.linspace(1, 16, G).log())
        params["o_norm.weight"] = exact(1 + 0.3 * torch.randn(V))
        options = {"hidden_size": D, "num_heads": H, "num_v_heads": G, "head_dim": K,
                   "expand_v": V / K}
        w.layer(name, "kda", delta_layer, options, params, normal(2, 70, D))


def write_window_layer(w):
    """Softmax attention to the last tokens only."""
    D, H, G, K = 24, 4, 2, 6
    params = weights({"q_proj": (H * K, D), "k_proj": (G * K, D), "v_proj": (G * K, D),
                      "o_proj": (D, H * K)})
    options = {"hidden_size": D, "num_heads": H, "num_kv_heads": G, "head_dim": K,
               "rope_theta": 10000.0, "rope_style": "half", "attention_gate": False,
               "qk_norm": False, "norm_eps": 1e-6, "window_size": 9}
    w.layer("window", "window", full_layer, options, params, normal(2, 70, D))


def main():
    """Writes every case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out_dir", nargs="?", default=Path(__file__).parent)
    parser.add_argument("--seed", type=int, default=20)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    Path(args.out_dir).mkdir(parents=True, exist_ok=True)
    writer = Writer(args.out_dir)
    write_sequence_operators(writer)
    write_row_operators(writer)
    write_gdn_layers(writer)
    write_full_layers(writer)
    write_channel_decay(writer)
    write_more_delta_layers(writer)
    write_window_layer(writer)
    files = list(Path(args.out_dir).glob("*.h5"))
    print(f"{len(files)} cases, {sum(f.stat().st_size for f in files) / 2**20:.2f} MiB")


if __name__ == "__main__":
    main()
