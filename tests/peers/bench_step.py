#!/usr/bin/env python3
"""The PyTorch peer of `lt2 bench step`: a training step of the same looped model, float32, CPU.

Runs eager and torch.compile, and counts the faster. The last line of standard output is one JSON
object; progress goes to standard error. Exits with 77 where PyTorch is missing.
"""
import argparse
import ctypes
import json
import math
import statistics
import sys
import time
import tomllib
from pathlib import Path

try:
    import torch
except ImportError:
    print("skipped: PyTorch is not installed (pip install torch)", file=sys.stderr)
    sys.exit(77)

from looped_model import Config, LoopedModel, delta_rule

PRESETS = Path(__file__).resolve().parents[2] / "launch" / "presets"


def note(text):
    """Progress, for people."""
    print(text, file=sys.stderr, flush=True)


def keep_memory():
    """Makes glibc keep freed memory instead of returning it to the kernel after every tensor."""
    try:
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(-3, 1 << 30)  # M_MMAP_THRESHOLD
        libc.mallopt(-1, (1 << 31) - 1)  # M_TRIM_THRESHOLD
    except OSError:
        pass


def read_arguments():
    """Flags; what is not given comes from the preset."""
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--preset", default="lt2-tiny", help="a preset's name or a TOML file")
    for name in ("width", "layers", "loops", "heads", "ffn"):
        p.add_argument(f"--{name}", type=int, help="instead of the preset's")
    p.add_argument("--chunk", type=int, default=Config.chunk, help="tokens a chunk, delta rule")
    p.add_argument("--batch", type=int, default=8, help="sequences a step")
    p.add_argument("--seq", type=int, default=256, help="tokens a sequence")
    p.add_argument("--steps", type=int, default=30, help="measured steps")
    p.add_argument("--warmup-steps", type=int, default=5, help="steps before the measured ones")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--mode", choices=["both", "eager", "compile"], default="both",
                   help="both: measure both, count the faster (--train: eager)")
    p.add_argument("--lr", type=float, default=6e-3)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--train", metavar="FILE", help="train on the bytes of a text; print the curve")
    p.add_argument("--eval-at", default="205000,922000,1430000",
                   help="training bytes after which to validate; the last ends the run")
    p.add_argument("--warmup", type=int, default=100, help="steps of rising rate (--train)")
    p.add_argument("--min-ratio", type=float, default=0.1, help="final rate / peak (--train)")
    p.add_argument("--selfcheck", action="store_true", help="check the delta rule, then stop")
    return p.parse_args()


def make_config(args):
    """The preset's shape under the flags'."""
    path = PRESETS / f"{args.preset}.toml"
    path = path if path.exists() else Path(args.preset)
    if not path.exists():
        sys.exit(f"no preset {args.preset}: neither {PRESETS / args.preset}.toml nor a file")
    model = tomllib.loads(path.read_text())["model"]
    gdn = model.get("gdn", {})
    c = Config(mixers=tuple(model["mixers"]), vocab=model["vocab"], chunk=args.chunk)
    for name in ("width", "layers", "loops", "heads", "ffn"):
        flag = getattr(args, name)
        setattr(c, name, flag if flag is not None else model.get(name, getattr(c, name)))
    c.gdn_heads = gdn.get("heads", c.heads)
    c.gdn_head_dim = gdn.get("head_dim", c.width * 3 // 4 // c.gdn_heads)
    c.gdn_v_dim = round(gdn.get("expand_v", 2) * c.gdn_head_dim)
    return c


class Trainer:
    """A model with AdamW and clipping; step() is what is measured."""

    def __init__(self, config, args, mode):
        torch.manual_seed(args.seed)
        self.model = LoopedModel(config, args.seq)
        self.optimizer = torch.optim.AdamW(self.model.groups(0.1), lr=args.lr, betas=(0.9, 0.95),
                                           fused=True)
        if mode == "compile":
            self.model.compile_parts()

    def step(self, tokens, targets):
        """One update; the loss before it, a tensor."""
        loss = self.model.loss(tokens, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()


def bench(config, args, mode):
    """Median seconds of a step on a fixed random batch, and the losses."""
    trainer = Trainer(config, args, mode)
    ids = torch.randint(0, config.vocab, (args.batch, args.seq + 1),
                        generator=torch.Generator().manual_seed(args.seed))
    tokens, targets = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
    start = time.perf_counter()
    losses = [trainer.step(tokens, targets).item()]
    note(f"{mode}: first step {time.perf_counter() - start:.1f} s")
    seconds = []
    for i in range(args.warmup_steps + args.steps):
        start = time.perf_counter()
        losses.append(trainer.step(tokens, targets).item())
        if i >= args.warmup_steps:
            seconds.append(time.perf_counter() - start)
    median = statistics.median(seconds)
    note(f"{mode}: {median * 1e3:.1f} ms a step (fastest {min(seconds) * 1e3:.1f})")
    return {"seconds": median, "loss_first": losses[0], "loss_last": losses[-1],
            "params": sum(p.numel() for p in trainer.model.parameters())}


def run_bench(config, args):
    """Measures the modes asked for; prints the faster one's line."""
    results, reasons = {}, {}
    for mode in ("eager", "compile") if args.mode == "both" else (args.mode,):
        try:
            results[mode] = bench(config, args, mode)
        except Exception as e:  # torch.compile needs a C++ compiler and fails in many ways
            if mode == "eager":
                raise
            reasons[mode] = str(e).strip().splitlines()[0][:200]
            note(f"{mode}: not available: {reasons[mode]}")
    if not results:
        sys.exit(1)
    mode = min(results, key=lambda m: results[m]["seconds"])
    best = results[mode]
    print(json.dumps({
        "tokens_per_s": args.batch * args.seq / best["seconds"], "step_ms": best["seconds"] * 1e3,
        "mode": mode, "threads": torch.get_num_threads(), "torch": torch.__version__,
        "params": best["params"], "loss_first": best["loss_first"], "loss_last": best["loss_last"],
        "step_ms_by_mode": {m: r["seconds"] * 1e3 for m, r in results.items()},
        "not_measured": reasons}))


def validate(model, text, args):
    """Mean loss over consecutive windows of `text` [bytes]."""
    count = (len(text) - 1) // args.seq
    tokens = text[:count * args.seq].view(count, args.seq)
    targets = text[1:count * args.seq + 1].view(count, args.seq)
    with torch.no_grad(), torch.compiler.set_stance("force_eager"):
        total = sum(model.loss(tokens[i:i + 32], targets[i:i + 32]).item() * len(tokens[i:i + 32])
                    for i in range(0, count, 32))
    return total / count


def train(config, args):
    """Trains on random windows of the first nine tenths; prints the validation curve."""
    text = torch.frombuffer(bytearray(Path(args.train).read_bytes()), dtype=torch.uint8).long()
    split = len(text) * 9 // 10
    marks = sorted(int(x) for x in args.eval_at.split(","))
    per_step = args.batch * args.seq
    total = -(-marks[-1] // per_step)
    mode = "compile" if args.mode == "compile" else "eager"
    trainer = Trainer(config, args, mode)
    generator = torch.Generator().manual_seed(args.seed)
    curve, seconds = [], 0.0
    for step in range(1, total + 1):
        begin = time.perf_counter()
        at = torch.randint(0, split - args.seq, (args.batch,), generator=generator)
        ids = text[at[:, None] + torch.arange(args.seq + 1)]
        progress = max(0.0, (step - args.warmup) / max(1, total - args.warmup))
        cosine = args.min_ratio + (1 - args.min_ratio) * (1 + math.cos(math.pi * progress)) / 2
        for group in trainer.optimizer.param_groups:
            group["lr"] = args.lr * min(1.0, step / max(1, args.warmup)) * cosine
        loss = trainer.step(ids[:, :-1].contiguous(), ids[:, 1:].contiguous()).item()
        seconds += time.perf_counter() - begin
        if step % 50 == 0:
            note(f"step {step}/{total}: loss {loss:.4f}, {seconds:.0f} s")
        while marks and step * per_step >= marks[0]:
            valid = validate(trainer.model, text[split:], args)
            curve.append({"bytes": step * per_step, "valid_loss": valid, "seconds": seconds})
            note(f"{marks.pop(0)} bytes: validation loss {valid:.4f}")
    print(json.dumps({"curve": curve, "mode": mode, "seed": args.seed, "torch": torch.__version__,
                      "params": sum(p.numel() for p in trainer.model.parameters())}))


def recurrence(q, k, v, g, beta):
    """The delta rule token by token; shapes as in delta_rule."""
    S, rows = q.new_zeros(*q.shape[:2], q.shape[-1], v.shape[-1]), []
    for t in range(q.shape[2]):
        S = S * g[:, :, t, None, None].exp()
        u = beta[:, :, t, None] * (v[:, :, t] - (S * k[:, :, t, :, None]).sum(2))
        S = S + k[:, :, t, :, None] * u[:, :, None]
        rows.append((S * q[:, :, t, :, None]).sum(2))
    return torch.stack(rows, 2)


def selfcheck():
    """delta_rule against the recurrence in float64, values and gradients."""
    torch.manual_seed(0)
    for T, chunk, decay in ((150, 64, 1.0), (64, 64, 30.0), (77, 32, 0.002), (5, 16, 1.0)):
        shapes = [(2, 3, T, 8), (2, 3, T, 8), (2, 3, T, 12), (2, 3, T), (2, 3, T)]
        q, k, v, g, beta = (torch.randn(s, dtype=torch.float64) for s in shapes)
        k = torch.nn.functional.normalize(k, dim=-1)
        leaves = [x.requires_grad_() for x in (q, k, v, -decay * g.abs(), 2 * beta.sigmoid())]
        results = []
        cotangent = torch.randn(2, 3, T, 12, dtype=torch.float64)
        for o in (delta_rule(*leaves, chunk), recurrence(*leaves)):
            results.append([o, *torch.autograd.grad(o, leaves, cotangent)])
        for name, ours, known in zip(("o", "dq", "dk", "dv", "dg", "dbeta"), *results):
            error = ((ours - known).norm() / known.norm().clamp(min=1e-6)).item()
            note(f"T {T} chunk {chunk} decay {decay}: {name} {error:.1e}")
            if not error < 1e-10:
                sys.exit(f"selfcheck failed: {name} is off by {error:.1e}")
    print(json.dumps({"selfcheck": "ok"}))


def main():
    """Reads the flags and does what they ask."""
    args = read_arguments()
    keep_memory()
    torch.set_num_threads(args.threads)
    if args.selfcheck:
        selfcheck()
    elif args.train:
        train(make_config(args), args)
    else:
        run_bench(make_config(args), args)


if __name__ == "__main__":
    main()
