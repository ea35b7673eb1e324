"""Sparse attention in float64: operators and layers. Shapes as in operator_formulas.py."""
import torch

from operator_formulas import layer_norm, per_document, rope


def nsa_attention(scale, block, selected, window, q, k, v, gate, cu_seqlens=None):
    """Native sparse attention: q [B, T, H, K], k [B, T, G, K], v [B, T, G, V], gate [B, T, H, 3].

    o [B, T, H, V]; blocks [B, T, G, selected], what each group reads, -1 for none; margin: by how
    much of its score, at least, the last block that was chosen beat the first that was not.
    """
    group, lists, margins = q.shape[2] // k.shape[2], [], [1.0]

    def choose(weight, current):
        """The blocks that a query in block `current` reads, given the weight of each before it."""
        always = {0, max(current - 1, 0), current}
        others = sorted((c for c in range(current) if c not in always), key=lambda c: -weight[c])
        free = selected - len(always)
        if len(others) > free > 0:
            margins.append(1 - float(weight[others[free]] / weight[others[free - 1]]))
        return sorted(always | set(others[:free]))

    def look(q, k, v):
        p = (scale * q @ k.T).softmax(-1)
        return p, p @ v

    def rows(_, b, begin, end):
        whole = (end - begin) // block * block
        means = [x[b, begin:begin + whole].unflatten(0, (-1, block)).mean(1) for x in (k, v)]
        out = []
        for t in range(end - begin):
            heads = []
            for g in range(k.shape[2]):
                K, V, q_t = k[b, begin:end, g], v[b, begin:end, g], q[b, begin + t]
                q_t = q_t[g * group:(g + 1) * group]
                past = (t + 1) // block
                p, by_means = look(q_t, means[0][:past, g], means[1][:past, g])
                chosen = choose(p.detach().sum(0), t // block)
                lists.append(chosen + [-1] * (selected - len(chosen)))
                seen = [j for c in chosen for j in range(c * block, min((c + 1) * block, t + 1))]
                near = slice(max(0, t + 1 - window), t + 1)
                branches = by_means, look(q_t, K[seen], V[seen])[1], look(q_t, K[near], V[near])[1]
                sigma = gate[b, begin + t, g * group:(g + 1) * group].sigmoid()
                heads.append(sum(sigma[:, i:i + 1] * x for i, x in enumerate(branches)))
            out.append(torch.cat(heads))
        return torch.stack(out)

    o = per_document(q, cu_seqlens, rows)
    blocks = torch.tensor(lists, dtype=torch.int32).view(*k.shape[:3], selected)
    return {"o": o, "blocks": blocks, "margin": min(margins)}


def nsa_layer(p, u, o):
    """Native sparse attention's layer -> y, and the margin of its selection.

    o: the options of its constructor in flash-linear-attention.
    """
    def heads(name, width):
        return (u @ p[f"{name}_proj.weight"].T).unflatten(-1, (-1, width))

    K, positions = o["head_dim"], torch.arange(u.shape[1])
    q, k = (rope(heads(n, K), positions, o["rope_theta"], "half") for n in "qk")
    out = nsa_attention(K ** -0.5, o["block_size"], o["block_counts"], o["window_size"], q, k,
                           heads("v", K), heads("g", 3))
    return out["o"].flatten(2) @ p["o_proj.weight"].T, out["margin"]


def lightning_indexer(selected, q, k, w=None, cu_seqlens=None):
    """Index heads q [B, T, J, C], keys k [B, T, C], weights w [B, T, J] -> keys [B, T, selected].

    The positions in the document that each token reads, -1 for none, and the least margin by which
    one was chosen; scores that the maximum made 0 are equal for certain.
    """
    margins = [1.0]

    def rows(_, b, begin, end):
        lists = []
        for t in range(end - begin):
            r = q[b, begin + t].detach() @ k[b, begin:begin + t + 1].detach().T
            score = r.mean(0) if w is None else w[b, begin + t].detach() @ r.clamp(min=0)
            order = sorted(range(t + 1), key=lambda s: -score[s])
            if t + 1 > selected and score[order[selected]] != 0:
                margins.append(float(score[order[selected - 1]] - score[order[selected]]))
            chosen = sorted(order[:selected])
            lists.append(torch.tensor(chosen + [-1] * (selected - len(chosen))))
        return torch.stack(lists)

    return {"keys": per_document(q, cu_seqlens, rows).int(), "margin": min(margins)}


def indexer_loss(scale, weight, a, b, w, q, k, lse, keys, cu_seqlens):
    """KL of softmax of the index scores from the attention's heads, summed over tokens."""
    loss, starts = 0, cu_seqlens.tolist()
    for t in range(q.shape[0]):
        begin = max(s for s in starts if s <= t)
        s = begin + keys[t][keys[t] >= 0].long()
        K = k[s].repeat_interleave(q.shape[1] // k.shape[1], 1)
        p = (scale * torch.einsum("hd,shd->hs", q[t], K) - lse[t][:, None]).exp().sum(0)
        p = p / p.sum()
        score = w[0, t] @ (a[0, t] @ b[0, s].T).clamp(min=0)
        loss = loss + weight * (p * (p.log() - score.log_softmax(0))).sum()
    return {"loss": loss.reshape(1)}


def dsa_layer(p, u, o):
    """DeepSeek sparse attention over one latent -> y, and the margin of its selection."""
    def project(name):
        return u @ p[f"{name}_proj.weight"].T

    V, D = o["value_dim"], o["value_dim"] + o["tail_dim"]
    q, c = project("q").unflatten(-1, (-1, D)), project("kv")
    a, b, w = project("q_score").unflatten(-1, (-1, o["index_dim"])), project("k_score"), None
    if not o["as_released"]:
        b = layer_norm(b[:, :, None], p["k_score_norm.weight"], o["norm_eps"])[:, :, 0]
        b = b + p["k_score_norm.bias"]
        w = project("w_score") * (a.shape[2] * a.shape[3]) ** -0.5
    chosen = lightning_indexer(o["top_k"], a, b, w)

    def rows(i, _, begin, end):
        out = []
        for t in range(begin, end):
            K = c[i, [s for s in chosen["keys"][i, t].tolist() if s >= 0]]
            out.append((D ** -0.5 * q[i, t] @ K.T).softmax(-1) @ K[:, :V])
        return torch.stack(out)

    y = per_document(u, None, rows).flatten(2) @ p["o_proj.weight"].T
    return y, chosen["margin"]
