#!/usr/bin/env bash
# Runs `lt2 bench step` and its PyTorch peer by turns and prints the median ratio of tokens/s.
#
# Usage: compare_step.sh [ROUNDS [FLAG of bench_step.py …]]      (3 rounds by default)
#   PYTHON  interpreter with torch (python3)      LT2     the program (build/release/lt2)
#   PRESET  model to run (lt2-tiny)               CORES   both programs' CPUs, if set (taskset)
# Exits with 77 where PyTorch is missing.
set -euo pipefail

cd "$(dirname "$0")/../.."
rounds=${1:-3}
python=${PYTHON:-python3}
lt2=${LT2:-build/release/lt2}
preset=${PRESET:-lt2-tiny}
pin=()
[[ -n ${CORES:-} ]] && pin=(taskset -c "$CORES")

if [[ ! -x $lt2 ]]; then
  echo "no program at $lt2: build it (cmake --build --preset release), or set LT2" >&2
  exit 2
fi
if ! "$python" -c 'import torch' 2>/dev/null; then
  echo "skipped: $python has no PyTorch (pip install torch, or set PYTHON)" >&2
  exit 77
fi

results=$(mktemp)
trap 'rm -f "$results"' EXIT
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-2}
for ((round = 1; round <= rounds; ++round)); do
  echo "round $round of $rounds: lt2" >&2
  "${pin[@]}" "$lt2" bench step "$preset" --json | tail -n 1 >>"$results"
  echo "round $round of $rounds: PyTorch" >&2
  "${pin[@]}" "$python" tests/peers/bench_step.py --preset "$preset" \
    --threads "$OMP_NUM_THREADS" "${@:2}" | tail -n 1 >>"$results"
done

"$python" - "$results" <<'PY'
import json
import statistics
import sys

lines = [json.loads(line) for line in open(sys.argv[1])]
lt2, torch = lines[0::2], lines[1::2]
ratios = [a["tokens_per_s"] / b["tokens_per_s"] for a, b in zip(lt2, torch)]
for name, runs in (("lt2", lt2), ("torch", torch)):
    print(f"{name:6}", " ".join(f"{run['tokens_per_s']:10.0f}" for run in runs), "tokens/s")
print(f"{'ratio':6}", " ".join(f"{ratio:10.2f}" for ratio in ratios))
print(json.dumps({"ratio": statistics.median(ratios),
                  "lt2_tokens_per_s": statistics.median(r["tokens_per_s"] for r in lt2),
                  "torch_tokens_per_s": statistics.median(r["tokens_per_s"] for r in torch),
                  "torch": torch[0]["torch"], "torch_modes": [r["mode"] for r in torch],
                  "params": {"lt2": lt2[0].get("params"), "torch": torch[0]["params"]}}))
PY
