"""Cases of the mixer layers: options and parameters as the files name them."""
import torch

from case_file import exact, normal
from layer_formulas import (delta_layer, full_layer, gla_layer, hgrn2_layer, linear_layer,
                            mamba2_layer, mlstm_layer, retnet_layer)


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


def norm_weight(width):
    """The weight of a norm, near one."""
    return exact(1 + 0.3 * torch.randn(width))


def write_linear_layers(w):
    """Linear attention."""
    for name, D, H, K, V in (("hadamard", 18, 3, 6, 6), ("elu", 20, 2, 5, 10)):
        params = weights({"q_proj": (H * K, D), "k_proj": (H * K, D), "v_proj": (H * V, D),
                          "o_proj": (D, H * V)})
        params["norm.weight"] = norm_weight(V)
        if name == "hadamard":
            maps = [f"feature_map_{n}.layer{i}" for n in "qk" for i in (1, 2)]
            params |= weights({n: (K, K) for n in maps})
            params |= {f"{n}.bias": normal(K, scale=0.5) for n in maps}
        options = {"hidden_size": D, "num_heads": H, "expand_k": H * K / D, "expand_v": H * V / D,
                   "feature_map": {"hadamard": "elementwise_product"}.get(name, name)}
        w.layer(f"linear_{name}", "linear", linear_layer, options, params, normal(2, 67, D))


def write_gated_layers(w):
    """RetNet, GLA and HGRN2."""
    D, H, K, V = 18, 3, 6, 12
    params = weights({"q_proj": (H * K, D), "k_proj": (H * K, D), "v_proj": (H * V, D),
                      "g_proj": (H * V, D), "o_proj": (D, H * V)})
    params["g_norm_swish_gate.weight"] = norm_weight(V)
    options = {"hidden_size": D, "num_heads": H, "expand_k": H * K / D, "expand_v": H * V / D}
    w.layer("retnet", "retnet", retnet_layer, options, params, normal(2, 67, D))
    D, H, K, V, rank = 20, 2, 5, 10, 3
    params = weights({"q_proj": (H * K, D), "k_proj": (H * K, D), "v_proj": (H * V, D),
                      "g_proj": (H * V, D), "o_proj": (D, H * V), "gk_proj.0": (rank, D),
                      "gk_proj.1": (H * K, rank)})
    params["gk_proj.1.bias"] = normal(H * K)
    params["g_norm_swish_gate.weight"] = norm_weight(V)
    options = {"hidden_size": D, "num_heads": H, "expand_k": H * K / D, "expand_v": H * V / D,
               "gate_low_rank_dim": rank, "gate_logit_normalizer": 4}
    w.layer("gla", "gla", gla_layer, options, params, normal(2, 67, D))
    D, K = 21, 7
    params = weights({f"{n}_proj": (D, D) for n in "qfio"})
    params["g_norm.weight"] = norm_weight(D)
    w.layer("hgrn2", "hgrn2", hgrn2_layer, {"hidden_size": D, "expand_ratio": K}, params,
            normal(2, 67, D))


def write_mamba2_layer(w):
    """Mamba2, two heads to a group."""
    D, H, groups, K, inner = 20, 4, 2, 5, 36
    convolved = inner + 2 * groups * K
    params = weights({"in_proj": (inner + convolved + H, D), "conv1d": (convolved, 1, 4),
                      "out_proj": (D, inner)})
    params["conv1d.bias"], params["dt_bias"], params["D"] = normal(convolved), normal(H), normal(H)
    params["A_log"] = exact(torch.linspace(0.1, 12, H).log())
    params["norm.weight"] = norm_weight(inner)
    options = {"hidden_size": D, "num_heads": H, "head_dim": inner // H, "expand": inner / D,
               "state_size": K, "n_groups": groups}
    w.layer("mamba2", "mamba2", mamba2_layer, options, params, normal(2, 67, D))


def write_mlstm_layer(w):
    """mLSTM; gates that reach their bound, denominators on both sides of one."""
    D, H, K, V = 20, 2, 5, 10
    params = weights({"q": (H * K, D), "k": (H * K, D), "v": (H * V, D), "ogate_preact": (H * V, D),
                      "out_proj": (D, H * V)})
    for n, bias in (("i", -2.0), ("f", 3.0)):
        params[f"{n}gate_preact.weight"] = normal(H, D, scale=0.5)
        params[f"{n}gate_preact.bias"] = exact(bias + torch.randn(H))
    params["multihead_norm.weight"] = norm_weight(H * V)
    options = {"hidden_size": D, "num_heads": H, "qk_dim_factor": H * K / D,
               "v_dim_factor": H * V / D, "gate_soft_cap": 5}
    w.layer("mlstm", "mlstm", mlstm_layer, options, params, normal(2, 67, D))
