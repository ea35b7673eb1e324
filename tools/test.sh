#!/usr/bin/env bash
# Builds the release preset and runs its tests: tools/test.sh [--all] [flags for ctest]
# Without --all the tests labelled slow are left out.
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/deps.sh

selection=(--label-exclude 'slow|gpu|slurm')
if [ "${1:-}" = --all ]; then
  selection=()
  shift
fi
lt2_build release
cores=$(nproc)  # before OMP_NUM_THREADS, which nproc heeds
lt2_test_environment
lt2_find_disassembler
ctest --test-dir build/release --output-on-failure --parallel "$cores" "${selection[@]}" "$@" </dev/null
