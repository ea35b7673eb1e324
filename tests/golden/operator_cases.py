"""Cases of the operators. Shapes as in operator_formulas.py."""
import torch
import torch.nn.functional as F

from case_file import exact, integers, normal
from operator_formulas import (additive_scan, adamw, attention, delta_rule, kl_divergence, l2_norm,
                               linear_cross_entropy, mlstm, rms_norm, rms_norm_gate, rope,
                               short_conv, ssd)

PACKING = [0, 1, 30, 64, 65, 131]


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
    cases = {
        "delta_rule_odd": dict(B=2, T=67, H=3, G=3, K=7, V=9),
        "delta_rule_packed_state": dict(B=1, T=131, H=1, G=2, K=8, V=12, cu=PACKING, state=True),
        "gated_delta_rule_odd_state": dict(B=2, T=67, H=3, G=3, K=7, V=9, decay="random",
                                           state=True),
        "gated_delta_rule_long": dict(B=1, T=200, H=2, G=2, K=8, V=16, decay="random"),
        "gated_delta_rule_packed_state": dict(B=1, T=131, H=1, G=2, K=8, V=12, decay="random",
                                              cu=PACKING, state=True),
        "gated_delta_rule_hard_decay": dict(B=1, T=131, H=3, G=3, K=8, V=8, decay=[-30., 0., -3.]),
        "gated_delta_rule_packed_hard_decay": dict(B=1, T=131, H=2, G=4, K=8, V=8, cu=PACKING,
                                                   decay=[-40., 0., -1e-3, -5.]),
        "gated_delta_rule_slow_decay": dict(B=1, T=131, H=3, G=3, K=8, V=8, decay=-1e-3,
                                            beta_max=2.0),
        "gated_delta_rule_packed_slow_decay": dict(B=1, T=131, H=1, G=2, K=8, V=12, cu=PACKING,
                                                   decay=-1e-3, beta_max=2.0)}
    for name, sizes in cases.items():
        x = delta_inputs(**sizes)
        op, scale = name[:name.index("rule") + 4], sizes["K"] ** -0.5
        w.operator(name, op, {"scale": scale}, x, delta_rule(scale, **x))
    for name, B, T, H, G, K, V, window, gated, cu in (
            ("multi_head", 2, 67, 3, 3, 8, 8, 0, False, None),
            ("grouped_gated", 1, 131, 4, 2, 8, 12, 0, True, None),
            ("window", 1, 131, 2, 1, 12, 8, 17, False, None),
            ("packed", 1, 131, 4, 1, 8, 12, 0, False, PACKING),
            ("packed_window_gated", 1, 131, 2, 2, 10, 6, 40, True, PACKING),
            ("window_of_one", 1, 20, 2, 2, 4, 4, 1, False, None)):
        x = {"q": normal(B, T, H, K), "k": normal(B, T, G, K), "v": normal(B, T, G, V)}
        x |= {"gate": normal(B, T, H, V)} if gated else {}
        x |= {"cu_seqlens": integers(cu)} if cu else {}
        w.operator(f"attention_{name}", "attention", {"scale": K ** -0.5, "window": window}, x,
                   attention(K ** -0.5, window, **x))
    for name, B, T, C, bias, cu in (("plain", 2, 67, 13, False, None),
                                    ("bias", 3, 3, 8, True, None),
                                    ("packed_bias", 1, 131, 13, True, PACKING)):
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


def write_channel_decay(w):
    """The delta rule with a decay per key channel, from nothing to all in one chunk."""
    for name, B, T, H, G, K, V, rates, cu, state in (
            ("packed_state", 1, 131, 1, 2, 7, 9, (1., 0.1), PACKING, True),
            ("hard_decay", 1, 131, 2, 2, 8, 8, (0., -30., 1e-3), None, False)):
        x = delta_inputs(B, T, H, G, K, V, "random", cu=cu, state=state)
        rate = torch.tensor(rates)[torch.randint(len(rates), (B, T, G, K))]
        x["g"] = exact(torch.where(rate < 0, rate, rate * F.logsigmoid(torch.randn(B, T, G, K))))
        w.operator(f"kda_{name}", "kda", {"scale": K ** -0.5}, x, delta_rule(K ** -0.5, **x))


def additive_inputs(B, T, H, G, K, V, cu=None, state=False):
    """Inputs of the additive scans, all but the decay."""
    x = {"q": normal(B, T, H, K), "k": normal(B, T, H, K), "v": normal(B, T, G, V)}
    if state:
        x["initial_state"] = normal(B if cu is None else len(cu) - 1, G, K, V, scale=0.3)
    if cu is not None:
        x["cu_seqlens"] = integers(cu)
    return x


def hard_decays(*shape):
    """Log-decays of nothing, of all and of hardly anything side by side."""
    rate = torch.tensor([0., -30., 1e-3])[torch.randint(3, shape)]
    return exact(torch.where(rate < 0, rate, rate * F.logsigmoid(torch.randn(shape))))


def write_additive_scans(w):
    """Linear attention, retention and gated linear attention."""
    odd = dict(B=2, T=67, H=3, G=3, K=3, V=5)
    state = dict(B=2, T=67, H=1, G=2, K=3, V=5, state=True)
    packed = dict(B=1, T=131, H=1, G=2, K=7, V=3, cu=PACKING, state=True)
    hard = dict(B=1, T=131, H=1, G=2, K=5, V=3)
    for op, sizes_of in (("linear_attention", {"odd": odd, "packed_state": packed}),
                         ("retention", {"odd_state": state, "packed_state": packed}),
                         ("simple_gla", {"packed_state": packed, "hard_decay": hard}),
                         ("gla", {"odd_state": state, "packed_state": packed,
                                  "hard_decay": hard})):
        for name, sizes in sizes_of.items():
            x = additive_inputs(**sizes)
            shape = tuple(sizes[n] for n in ("BTG" if op == "simple_gla" else "BTGK"))
            if op == "retention":
                x["log_gamma"] = exact(torch.linspace(-3, -0.01, sizes["G"])).detach()
            elif op != "linear_attention":
                x["g"] = hard_decays(*shape) if name == "hard_decay" else \
                    exact(F.logsigmoid(torch.randn(shape)))
            scale = sizes["K"] ** -0.5
            w.operator(f"{op}_{name}", op, {"scale": scale}, x, additive_scan(scale, **x))


def write_ssd(w):
    """Mamba2's state space, heads sharing B and C in groups."""
    for name, B, T, H, G, K, V, cu in (("odd", 2, 67, 1, 3, 5, 3, None),
                                       ("groups_packed_state", 1, 131, 2, 4, 5, 3, PACKING)):
        x = additive_inputs(B, T, H, G, K, V, cu, state=cu is not None)
        x = {{"q": "C", "k": "B", "v": "x"}.get(n, n): y for n, y in x.items()}
        x |= {"dt": normal(B, T, G, scale=2), "dt_bias": normal(G), "D": normal(G),
              "A_log": exact(torch.linspace(0.1, 12, G).log())}
        w.operator(f"ssd_{name}", "ssd", {}, x, ssd(**x))


def write_mlstm(w):
    """The matrix memory of xLSTM; keys and queries of one sign, so that no denominator cancels."""
    for name, B, T, H, K, V, cu in (("odd", 2, 67, 2, 3, 5, None),
                                    ("hard_gates", 1, 131, 2, 5, 3, None),
                                    ("packed_state", 1, 131, 2, 7, 3, PACKING)):
        sign = torch.where(torch.rand(B, T, H, 1) < 0.5, -1.0, 1.0)
        x = {"q": exact(sign * torch.randn(B, T, H, K).abs()),
             "k": exact(torch.randn(B, T, H, K).abs()), "v": normal(B, T, H, V)}
        if name == "hard_gates":
            x["i"] = normal(B, T, H, scale=10)
            x["f"] = exact(torch.tensor([5., -30.])[torch.randint(2, (B, T, H))])
        else:
            x["i"] = exact(2 * torch.randn(B, T, H) - 3)
            x["f"] = exact(torch.randn(B, T, H) + 3)
        if cu is not None:
            N = len(cu) - 1
            x["initial_state"] = exact(0.3 * torch.randn(N, H, K, V + 1).abs())
            x["initial_max"] = normal(N, H).detach()
            x["cu_seqlens"] = integers(cu)
        w.operator(f"mlstm_{name}", "mlstm", {"scale": K ** -0.5}, x, mlstm(K ** -0.5, **x))


def write_kl_divergence(w):
    """Distillation's loss; the teacher gets no gradient."""
    for name, rows, vocab, temperature, size in (("plain", 9, 67, 1.0, 1.0),
                                                 ("temperature", 5, 131, 2.0, 4.0)):
        x = {"student": normal(rows, vocab, scale=size),
             "teacher": normal(rows, vocab, scale=size).detach()}
        w.operator(f"kl_divergence_{name}", "kl_divergence", {"temperature": temperature}, x,
                   {"loss": kl_divergence(**x, temperature=temperature)})
