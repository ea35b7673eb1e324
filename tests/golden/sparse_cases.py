"""Cases of sparse attention: operators and layers."""
from case_file import integers, normal
from layer_cases import weights
from sparse_formulas import nsa_attention, nsa_layer

MARGIN = 1e-4  # of a selection, far from where rounding to float32 would turn it


def write_nsa(w):
    """Native sparse attention, the operator and the layer."""
    for name, B, T, H, G, K, V, block, selected, window, cu in (
            ("grouped", 2, 30, 4, 2, 4, 3, 2, 5, 4, None),
            ("packed", 1, 70, 3, 1, 3, 5, 5, 4, 7, [0, 1, 30, 31, 70]),
            ("head_alone", 1, 20, 1, 1, 5, 3, 3, 3, 1, None)):
        scale, out = K ** -0.5, {"margin": 0}
        while out["margin"] < MARGIN:
            x = {"q": normal(B, T, H, K, scale=2.0), "k": normal(B, T, G, K),
                 "v": normal(B, T, G, V), "gate": normal(B, T, H, 3)}
            x |= {"cu_seqlens": integers(cu)} if cu else {}
            out = nsa_attention(scale, block, selected, window, **x)
        del out["margin"]
        w.operator(f"nsa_{name}", "nsa", {"scale": scale, "block": block, "selected": selected,
                                          "window": window}, x, out)
    D, H, G, K = 12, 32, 2, 2
    options = {"hidden_size": D, "num_heads": H, "num_kv_heads": G, "head_dim": K,
               "block_size": 4, "block_counts": 5, "window_size": 6, "rope_theta": 10000.0}
    margin = 0
    while margin < MARGIN:
        params = weights({"q_proj": (H * K, D), "k_proj": (G * K, D), "v_proj": (G * K, D),
                          "g_proj": (3 * H, D), "o_proj": (D, H * K)})
        x = normal(2, 40, D)
        margin = nsa_layer(params, x, options)[1]
    w.layer("nsa", "nsa", lambda *args: nsa_layer(*args)[0], options, params, x)
