#!/usr/bin/env python3
"""The peers of `lt2 bench op --device cuda`: flash-linear-attention's scans and cuDNN's attention.

  bench_gpu_ops.py [attention] [gated_delta_rule] [kda]     all of them, if none is named

bfloat16, forward and forward with backward, as CUDA graphs of many launches over rotated inputs;
medians. The last line of standard output is one JSON object in milliseconds. Exits with 77 where
PyTorch, a GPU or the library is missing.
"""
import json
import sys

try:
    import torch
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel
except ImportError:
    sys.exit(77)
if not torch.cuda.is_available():
    sys.exit(77)

LAUNCHES, ROTATED, REPEATS = 20, 4, 9
stream = torch.cuda.Stream()


def graph_ms(calls):
    """Median time of one of `calls` when LAUNCHES of them in turn are one graph."""
    for call in calls:
        call()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for i in range(LAUNCHES):
            calls[i % len(calls)]()
    graph.replay()
    times = []
    for _ in range(REPEATS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / LAUNCHES)
    return sorted(times)[REPEATS // 2]


def measure(run, make):
    """{forward, both} of run(*make()), whose result is one tensor."""
    sets = [make() for _ in range(ROTATED)]
    gradients = [torch.randn_like(run(*inputs)) for inputs in sets]

    def both(inputs, gradient):
        leaves = [x for x in inputs if x.requires_grad]
        torch.autograd.grad(run(*inputs), leaves, gradient)

    with torch.no_grad():
        forward = graph_ms([lambda inputs=inputs: run(*inputs) for inputs in sets])
    return {
        "forward_ms": round(forward, 4),
        "both_ms": round(graph_ms([lambda i=i, g=g: both(i, g)
                                   for i, g in zip(sets, gradients)]), 4),
    }


def leaf(x):
    return x.detach().requires_grad_()


def random(*shape, dtype=torch.bfloat16):
    return torch.randn(*shape, device="cuda", dtype=dtype)


def attention():
    def run(q, k, v):
        with sdpa_kernel([SDPBackend.CUDNN_ATTENTION]):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return measure(run, lambda: [leaf(random(2, 4096, 16, 128).transpose(1, 2))
                                 for _ in range(3)])


def gated_delta_rule():
    import fla.ops.common.chunk_o as chunk_o
    chunk_o.IS_NVIDIA_HOPPER = False  # a guard against wrong results of this Triton: times only
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule

    def make():
        q, k = (leaf(F.normalize(random(2, 4096, 16, 96), dim=-1)) for _ in range(2))
        g = leaf(F.logsigmoid(random(2, 4096, 16, dtype=torch.float32)))
        return [q, k, leaf(random(2, 4096, 16, 192)), g, leaf(random(2, 4096, 16).sigmoid())]
    return measure(lambda q, k, v, g, beta: chunk_gated_delta_rule(q, k, v, g, beta)[0], make)


def kda():
    from fla.ops.kda import chunk_kda

    def make():
        q, k = (leaf(F.normalize(random(4, 4096, 16, 128), dim=-1)) for _ in range(2))
        g = leaf(F.logsigmoid(random(4, 4096, 16, 128, dtype=torch.float32)))
        return [q, k, leaf(random(4, 4096, 16, 128)), g, leaf(random(4, 4096, 16).sigmoid())]
    return measure(lambda q, k, v, g, beta: chunk_kda(q, k, v, g, beta)[0], make)


def main():
    results = {}
    with torch.cuda.stream(stream):
        for peer in (attention, gated_delta_rule, kda):
            if len(sys.argv) > 1 and peer.__name__ not in sys.argv[1:]:
                continue
            try:
                results[peer.__name__] = peer()
            except Exception as error:  # one missing peer must not hide the others
                results[peer.__name__] = {"error": str(error)[:500]}
            print(peer.__name__, results[peer.__name__], file=sys.stderr, flush=True)
            torch.cuda.empty_cache()
    print(json.dumps(results))


if __name__ == "__main__":
    main()
