"""Cases of sparse attention: operators and layers."""
from case_file import exact, integers, normal
from layer_cases import weights
from sparse_formulas import (dsa_layer, indexer_loss, lightning_indexer, nsa_attention, nsa_layer)

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


def write_dsa(w):
    """The lightning indexer, its loss, and layers with the indexer trained and as released."""
    T, J, C, selected, cu, out = 30, 2, 4, 5, integers([0, 1, 10, 30]), {"margin": 0}
    while out["margin"] < MARGIN:
        x = {"q": normal(1, T, J, C), "k": normal(1, T, C), "w": normal(1, T, J), "cu_seqlens": cu}
        out = lightning_indexer(selected, **x)
    w.operator("lightning_indexer", "lightning_indexer", {"selected": selected}, x,
               {"keys": out["keys"]})

    H, G, D = 4, 2, 3
    x = {"a": x["q"], "b": x["k"], "w": x["w"], "q": normal(T, H, D).detach(),
         "k": normal(T, G, D).detach(), "lse": normal(T, H).detach(), "keys": out["keys"][0],
         "cu_seqlens": cu}
    w.operator("indexer_loss", "indexer_loss", {"scale": D ** -0.5, "weight": 0.5}, x,
               indexer_loss(D ** -0.5, 0.5, **x))

    D, H, V, tail, J, C = 12, 3, 7, 3, 4, 5
    for name, released in (("dsa", False), ("dsa_as_released", True)):
        options = {"hidden_size": D, "num_heads": H, "num_kv_heads": 1, "value_dim": V,
                   "tail_dim": tail, "top_k": 8, "index_heads": J, "index_dim": C,
                   "norm_eps": 1e-6, "as_released": released}
        shapes = {"q_proj": (H * (V + tail), D), "kv_proj": (V + tail, D), "o_proj": (D, H * V),
                  "q_score_proj": (J * C, D), "k_score_proj": (C, D)}
        shapes |= {} if released else {"w_score_proj": (J, D)}
        margin = 0
        while margin < MARGIN:
            params = weights(shapes)
            if not released:
                params["k_score_norm.weight"] = exact(1 + 0.3 * normal(C))
                params["k_score_norm.bias"] = normal(C, scale=0.3)
            x = normal(1, 22, D)
            margin = dsa_layer(params, x, options)[1]
        w.layer(name, "dsa", lambda *args: dsa_layer(*args)[0], options, params, x)
