"""The operators in float64, stated token by token for clearness and not for speed.

Shapes: B sequences, T tokens, H query or key heads, G value heads, K and V head widths, C channels,
N documents. Functions of sequences take cu_seqlens [N+1] where the documents of one row (B = 1) are
packed; without it each row is a document.
"""
import torch
import torch.nn.functional as F


def documents(x, cu_seqlens):
    """(sequence, begin, end) of each document of x [B, T, ...]."""
    if cu_seqlens is None:
        return [(b, 0, x.shape[1]) for b in range(x.shape[0])]
    cu = cu_seqlens.tolist()
    return [(0, begin, end) for begin, end in zip(cu, cu[1:])]


def per_document(x, cu_seqlens, function):
    """Joins function(index, sequence, begin, end) [length, ...] of all documents to [B, T, ...]."""
    parts = [function(i, *d) for i, d in enumerate(documents(x, cu_seqlens))]
    return torch.cat(parts).reshape(x.shape[:2] + parts[0].shape[1:])


def delta_rule(scale, q, k, v, beta, g=None, initial_state=None, cu_seqlens=None):
    """q, k [B, T, H, K], v [B, T, G, V], beta [B, T, G] -> o like v, states [N, G, K, V].

    g [B, T, G] decays the state, [B, T, G, K] each of its rows on its own.
    """
    group = v.shape[2] // q.shape[2]
    q, k = q.repeat_interleave(group, 2), k.repeat_interleave(group, 2)
    final = []

    def scan(i, b, begin, end):
        S = initial_state[i] if initial_state is not None else \
            v.new_zeros(v.shape[2], q.shape[3], v.shape[3])
        rows = []
        for t in range(begin, end):
            if g is not None:
                S = S * g[b, t].exp().reshape(v.shape[2], -1, 1)
            error = v[b, t] - (S * k[b, t][:, :, None]).sum(1)
            S = S + k[b, t][:, :, None] * (beta[b, t][:, None] * error)[:, None, :]
            rows.append(scale * (S * q[b, t][:, :, None]).sum(1))
        final.append(S)
        return torch.stack(rows)

    return {"o": per_document(v, cu_seqlens, scan), "final_state": torch.stack(final)}


def additive_scan(scale, q, k, v, g=None, log_gamma=None, initial_state=None, cu_seqlens=None):
    """q, k [B, T, H, K], v [B, T, G, V] -> o like v, states [N, G, K, V].

    g [B, T, G] decays the state, [B, T, G, K] each of its rows on its own; log_gamma [G] at every
    token alike.
    """
    group = v.shape[2] // q.shape[2]
    q, k = q.repeat_interleave(group, 2), k.repeat_interleave(group, 2)
    final = []

    def scan(i, b, begin, end):
        S = initial_state[i] if initial_state is not None else \
            v.new_zeros(v.shape[2], q.shape[3], v.shape[3])
        rows = []
        for t in range(begin, end):
            if g is not None:
                S = S * g[b, t].exp().reshape(v.shape[2], -1, 1)
            if log_gamma is not None:
                S = S * log_gamma.exp()[:, None, None]
            S = S + k[b, t][:, :, None] * v[b, t][:, None, :]
            rows.append(scale * (S * q[b, t][:, :, None]).sum(1))
        final.append(S)
        return torch.stack(rows)

    return {"o": per_document(v, cu_seqlens, scan), "final_state": torch.stack(final)}


def ssd(x, dt, B, C, A_log, D, dt_bias, initial_state=None, cu_seqlens=None):
    """Mamba2's state space: x [B, T, G, V], dt [B, T, G], B, C [B, T, H, K], the others [G]."""
    step = F.softplus(dt + dt_bias)
    y = additive_scan(1, C, B, step[..., None] * x, -A_log.exp() * step,
                      initial_state=initial_state, cu_seqlens=cu_seqlens)
    return {"o": y["o"] + D[:, None] * x, "final_state": y["final_state"]}


def mlstm(scale, q, k, v, i, f, initial_state=None, initial_max=None, cu_seqlens=None):
    """q, k [B, T, H, K], v [B, T, H, V], gates i, f [B, T, H] -> o like v.

    A state [N, H, K, V+1] has the sum of the keys as its last column; what is stored is to be
    multiplied by exp(initial_max) [N, H]. float64 holds exp(i), so no maximum is kept here.
    """
    def scan(n, b, begin, end):
        S = v.new_zeros(v.shape[2], q.shape[3], v.shape[3] + 1)
        if initial_state is not None:
            S = initial_max[n].exp()[:, None, None] * initial_state[n]
        rows = []
        for t in range(begin, end):
            written = F.pad(v[b, t], (0, 1), value=1.0) * i[b, t].exp()[:, None]
            S = S * f[b, t].sigmoid()[:, None, None] + k[b, t][:, :, None] * written[:, None, :]
            read = scale * (S * q[b, t][:, :, None]).sum(1)
            rows.append(read[:, :-1] / read[:, -1:].abs().clamp(min=1))
        return torch.stack(rows)

    return {"o": per_document(v, cu_seqlens, scan)}


def attention(scale, window, q, k, v, gate=None, cu_seqlens=None):
    """q [B, T, H, K], k [B, T, G, K], v [B, T, G, V], gate [B, T, H, V] -> o [B, T, H, V]."""
    group = q.shape[2] // k.shape[2]
    k, v = k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)

    def rows(_, b, begin, end):
        out = []
        for i in range(begin, end):
            first = max(begin, i - window + 1) if window else begin
            score = scale * (q[b, i] * k[b, first:i + 1]).sum(-1)
            out.append((score.softmax(0)[..., None] * v[b, first:i + 1]).sum(0))
        return torch.stack(out)

    o = per_document(q, cu_seqlens, rows)
    return {"o": o if gate is None else o * gate.sigmoid()}


def short_conv(x, w, bias=None, cu_seqlens=None):
    """x [B, T, C], w [C, W] with w[:, W-1] on the current token -> SiLU of the convolution."""
    width = w.shape[1]

    def rows(_, b, begin, end):
        out = []
        for t in range(begin, end):
            taps = [w[:, width - 1 - back] * x[b, t - back]
                    for back in range(min(width, t - begin + 1))]
            out.append(sum(taps) if bias is None else sum(taps) + bias)
        return F.silu(torch.stack(out))

    return {"y": per_document(x, cu_seqlens, rows)}


def rms_norm(x, w, eps):
    """x [..., C] over its root mean square, times w."""
    return w * x / (x.square().mean(-1, keepdim=True) + eps).sqrt()


def rms_norm_gate(x, w, gate, eps, kind):
    """RMSNorm times swish or sigmoid of the gate."""
    return rms_norm(x, w, eps) * (gate.sigmoid() if kind == "sigmoid" else gate * gate.sigmoid())


def layer_norm(x, w, eps):
    """x [..., C] without its mean, over its deviation, times w."""
    centred = x - x.mean(-1, keepdim=True)
    return w * centred / (centred.square().mean(-1, keepdim=True) + eps).sqrt()


def l2_norm(x, eps=1e-6):
    """x [..., C] over its length."""
    return x / (x.square().sum(-1, keepdim=True) + eps).sqrt()


def rope(x, positions, theta, style):
    """x [B, T, H, K]: the complex number of pair i turns by position * theta^(-2i/K)."""
    half = x.shape[-1] // 2
    angle = positions.double()[:, None] * theta ** (-torch.arange(half).double() / half)
    if style == "half":
        pair = torch.complex(x[..., :half], x[..., half:])
    else:
        pair = torch.complex(x[..., 0::2], x[..., 1::2])
    turned = pair * torch.polar(torch.ones_like(angle), angle)[:, None, :]
    both = torch.stack([turned.real, turned.imag], -2 if style == "half" else -1)
    return both.flatten(-2)


def linear_cross_entropy(x, w, target, z_loss):
    """x [N, C], w [vocabulary, C], target [N] with -100 ignored -> loss [1]."""
    rows = [(x[n] @ w.T, int(t)) for n, t in enumerate(target) if t != -100]
    losses = [torch.logsumexp(z, 0) - z[t] + z_loss * torch.logsumexp(z, 0) ** 2 for z, t in rows]
    return (sum(losses) / len(losses)).reshape(1)


def kl_divergence(student, teacher, temperature):
    """Logits [N, vocabulary] -> temperature^2 times the mean of KL(teacher || student) [1]."""
    p, q = (teacher / temperature).softmax(-1), (student / temperature).softmax(-1)
    return (temperature ** 2 * (p * (p.log() - q.log())).sum(-1).mean()).reshape(1)


def adamw(param, grads, lr, beta1, beta2, eps, weight_decay):
    """One step for each row of grads [steps, C]: decoupled decay, bias correction."""
    m, v = torch.zeros_like(param), torch.zeros_like(param)
    for n, grad in enumerate(grads, 1):
        m = beta1 * m + (1 - beta1) * grad
        v = beta2 * v + (1 - beta2) * grad * grad
        update = (m / (1 - beta1 ** n)) / ((v / (1 - beta2 ** n)).sqrt() + eps)
        param = param - lr * weight_decay * param - lr * update
    return {"param": param, "m": m, "v": v}
