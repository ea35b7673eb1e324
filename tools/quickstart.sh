#!/usr/bin/env bash
# Installs what is missing, builds, pretrains the preset lt2-tiny on two ranks, and shows the result.
#   tools/quickstart.sh [flags for lt2 train, such as --max-steps 100]
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/deps.sh

run=runs/quickstart
lt2=build/release/lt2

lt2_install_deps
lt2_build release lt2
lt2_mpi_environment

echo "== mpirun -n 2 $lt2 train lt2-tiny --run-dir $run $*"
mpirun -n 2 "$lt2" train lt2-tiny --run-dir "$run" "$@" </dev/null

echo
echo "== loss in nats per byte (o training, V validation)"
tools/curve.sh "$run/metrics.jsonl"

checkpoint=$(ls -d "$run"/checkpoints/step-* | grep -E 'step-[0-9]+$' | sort | tail -n 1)
echo
echo "== 200 characters from $checkpoint"
"$lt2" generate "$checkpoint" --prompt "ROMEO:" --max-tokens 200 --temperature 0.8 --seed 1

echo
echo "run directory: $run"
echo "checkpoint:    $checkpoint"
