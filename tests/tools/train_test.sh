#!/usr/bin/env bash
# Whole runs of the program under mpirun, and what may befall them.
#   train_test.sh PROGRAM resume|validation|damage|death|space|ranks|meshes|tiles|node [cpu|cuda]
# On cuda two ranks need two GPUs: skipped by code 77 where there are fewer.
set -euo pipefail

lt2=$1
what=$2
device=${3:-cpu}
# Steps of a run, and how far losses of another mesh may differ: a GPU makes many in a short time.
steps=30 tolerance=1e-5
if [ "$device" = cuda ]; then steps=600 tolerance=2e-4; fi
folder=$(mktemp -d)
mounted=
export OMP_NUM_THREADS=1 OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_MCA_hwloc_base_binding_policy=none
if [ "$(id -u)" = 0 ]; then
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi

cleanup() {
  pkill -9 -f "run-dir $folder/" 2>/dev/null || true
  [ -z "$mounted" ] || umount "$mounted"
  rm -rf "$folder"
}
trap cleanup EXIT

fail() {
  echo "FAILED: $*" >&2
  for log in "$folder"/*.log; do
    echo "--- $log" >&2
    grep -n -i "resuming\|signal\|received" "$log" >&2 || true
    tail -n 30 "$log" >&2
  done
  exit 1
}

for i in $(seq 1 400); do
  echo "Line $((i * 7919 % 1000)) of a play, said by voice $((i % 13)) to voice $((i % 7))."
  echo
done > "$folder/text.txt"
cat > "$folder/config.toml" <<TOML
[model]
width = 48
layers = 3
loops = 2
heads = 4
ffn = 128
vocab = 256
mixers = ["gdn", "gdn", "full"]
attention_gate = true
[data]
train = [{ path = "text.txt", weight = 1.0 }]
sequence = 64
[batch]
tokens = 2048
micro_batch = 2
[optimizer]
lr = 1e-4
[schedule]
total = "$steps steps"
[checkpoint]
every = "2 steps"
verify_writes = true
keep_last = 100
[log]
every = "1 steps"
valid_tokens = 256
TOML

# train RANKS RUN [flags]: writes RUN.log, returns lt2's exit code.
train() {
  local ranks=$1 run=$2
  shift 2
  mpirun -n "$ranks" "$lt2" train "$folder/config.toml" --run-dir "$folder/$run" \
    --device "$device" "$@" > "$folder/$run.log" 2>&1 < /dev/null
}

# expect CODE COMMAND…: runs it and compares its exit code.
expect() {
  local want=$1 got=0
  shift
  "$@" || got=$?
  [ "$got" = "$want" ] || fail "'$*' ended with $got, not $want"
}

# "step loss" of each step: the last line of a step counts.
losses() {
  sed -n 's/^{"step":\([0-9]*\),.*"loss":\([^,]*\),.*/\1 \2/p' "$folder/$1/metrics.jsonl" |
    awk '{ loss[$1] = $2 } END { for (s in loss) print s, loss[s] }' | sort -n
}

valid_loss() {
  sed -n 's/^{"step":.*"valid_loss":\([^,}]*\).*/\1/p' "$folder/$1/metrics.jsonl" | tail -n 1
}

steps() {
  local last=
  [ ! -f "$folder/$1/metrics.jsonl" ] || last=$(losses "$1" | tail -n 1 | cut -d' ' -f1)
  echo "${last:-0}"
}

# wait_for SECONDS COMMAND…: until it succeeds.
wait_for() {
  local until=$((SECONDS + $1))
  shift
  until "$@"; do
    [ "$SECONDS" -lt "$until" ] || fail "waited in vain for: $*"
  done
}

half_written() { compgen -G "$folder/$1/checkpoints/*.tmp-*" > /dev/null; }
past_step() { [ "$(steps "$1")" -ge "$2" ]; }

# ask_to_stop RUN: USR1 to mpirun, which says so and passes it on; to one rank where mpirun does not
# hear it. What is started with a signal blocked is deaf to it: mpirun, but not lt2.
ask_to_stop() {
  kill -USR1 "$(pgrep -f "^mpirun .*run-dir $folder/$1")"
  local until=$((SECONDS + 5))
  until grep -q "Forwarding signal\|USR1 received" "$folder/$1.log"; do
    if [ "$SECONDS" -ge "$until" ]; then
      echo "note: mpirun does not hear USR1 here"
      pgrep -f "^$lt2 .*run-dir $folder/$1" | tail -n 1 | xargs kill -USR1
      return
    fi
    sleep 0.1
  done
}

test_resume() {
  expect 0 train 2 whole
  grep -q '"mpi": "[^n]' "$folder/whole/env.json" || fail "env.json names no MPI"
  train 2 parts &
  wait_for 60 past_step parts 9
  wait_for 60 half_written parts
  pkill -9 -f "run-dir $folder/parts" || fail "nothing left to kill"
  wait $! && fail "a killed run ended well"
  half_written parts || echo "note: the kill came between two saves"

  train 2 parts &
  wait_for 60 grep -q resuming "$folder/parts.log"
  wait_for 60 past_step parts 14
  ask_to_stop parts
  local code=0
  wait $! || code=$?
  [ "$code" = 75 ] || fail "after USR1 the run ended with $code, not 75"
  local stopped
  stopped=$(steps parts)
  [ "$stopped" -lt "$steps" ] || fail "USR1 came too late"
  [ -z "$(comm -3 <(losses parts) <(losses whole | head -n "$stopped"))" ] ||
    fail "losses differ from the uninterrupted run's up to step $stopped"

  # The last step again; then with a record of it that says something else.
  local before
  before=$(cat "$folder/parts/metrics.jsonl" "$folder/parts/events.jsonl" | md5sum)
  expect 0 train 2 parts --replay "$stopped"
  grep -q "comes back bit for bit" "$folder/parts.log" || fail "a step does not repeat"
  [ "$(cat "$folder/parts/metrics.jsonl" "$folder/parts/events.jsonl" | md5sum)" = "$before" ] ||
    fail "a replay wrote into the run directory"
  cp "$folder/parts/metrics.jsonl" "$folder/metrics.kept"
  echo "{\"step\":$stopped,\"loss\":1.0,\"grad_norm\":1.0}" >> "$folder/parts/metrics.jsonl"
  expect 1 train 2 parts --replay "$stopped"
  grep -q "not with the record" "$folder/parts.log" || fail "a wrong record is not told"
  mv "$folder/metrics.kept" "$folder/parts/metrics.jsonl"

  # Sums in another order grow apart, so not for long.
  local last=$((stopped + 16 < steps ? stopped + 16 : steps))
  expect 0 train 1 parts --max-steps "$last"
  losses parts | paste -d' ' - <(losses whole | head -n "$last") |
    awk -v steps="$last" -v near="$tolerance" '
      $1 != $3 || ($2 - $4) ^ 2 > (near * $4) ^ 2 { print; bad = 1 }
      END { exit bad || NR != steps }' || fail "another mesh gives other losses"
}

# A validation of minutes that `$2` ends, in a run of this name.
end_validation() {
  local run=$1 code=0
  train 2 "$run" "${long[@]}" --set log.valid_every="1 steps" &
  wait_for 60 past_step "$run" 1
  sleep 1
  "$2" "$run"
  local begun=$SECONDS
  wait $! || code=$?
  [ "$code" = 75 ] || fail "asked to stop the run ended with $code, not 75"
  [ $((SECONDS - begun)) -le 10 ] || fail "it stopped after $((SECONDS - begun)) s"
  [ "$(steps "$run")" = 2 ] || fail "$(steps "$run") steps were made, not 2"
  grep -q "step 1 is not validated" "$folder/$run.log" || fail "no line says what was left out"
}
put_stop_file() { touch "$folder/$1/stop"; }

# Of the last step the state is safe before it is validated.
test_validation() {
  head -c 20000000 < <(yes "Line of a play, said by nobody.") > "$folder/long.txt"
  local long=(--set data.valid="$folder/long.txt" --set log.valid_tokens=0) code
  end_validation file put_stop_file
  end_validation run ask_to_stop

  train 2 run "${long[@]}" --max-steps 3 &
  wait_for 60 test -d "$folder/run/checkpoints/step-0000000003"
  pkill -9 -f "run-dir $folder/run" || fail "nothing left to kill"
  wait $! && fail "a killed run ended well"
  [ -z "$(valid_loss run)" ] || fail "there was no validation to kill"
  code=0
  train 2 run "${long[@]}" --max-steps 3 &
  wait_for 60 grep -q "nothing left to do" "$folder/run.log"
  sleep 1
  ask_to_stop run
  wait $! || code=$?
  [ "$code" = 75 ] || fail "stopped before its last validation the run ended with $code, not 75"
  expect 0 train 2 run --max-steps 3
  [ -n "$(valid_loss run)" ] || fail "what was killed is not validated when it goes on"
}

test_damage() {
  expect 0 train 2 run --max-steps 6
  local newest="$folder/run/checkpoints/step-0000000006"
  expect 0 "$lt2" ckpt verify "$newest" > "$folder/verify.log" 2>&1
  local shard="$newest/shard-00001.h5"
  local middle=$(($(stat -c %s "$shard") / 2))
  printf '\xa5\x5a\xa5\x5a' | dd of="$shard" bs=1 seek=$middle conv=notrunc status=none
  expect 3 "$lt2" ckpt verify "$newest" > "$folder/verify.log" 2>&1
  grep -q shard-00001.h5 "$folder/verify.log" || fail "verify does not name the shard"
  cp -r "$newest" "$folder/damaged"
  expect 0 train 2 run --max-steps 8
  grep -q "warning: $newest is damaged" "$folder/run.log" &&
    grep -q shard-00001.h5 "$folder/run.log" || fail "no warning names the shard"
  grep -q "resuming after step 4 " "$folder/run.log" || fail "did not fall back to step 4"
  expect 3 train 2 other --resume "$folder/damaged"
}

# Ends a rank of a run and holds the others to ending with it; says whether one named a layer.
kill_a_rank() {
  local run=$1
  train 4 "$run" --set parallel.cp=4 &
  wait_for 60 past_step "$run" 3
  local begun=$SECONDS
  pgrep -f "^$lt2 .*run-dir $folder/$run" | tail -n 1 | xargs kill -9
  local code=0
  wait $! || code=$?
  [ "$code" != 0 ] || fail "the run ended well without one of its ranks"
  [ $((SECONDS - begun)) -le 10 ] || fail "the others lived on for $((SECONDS - begun)) s"
  grep -q "rank [0-9].*signal 9" "$folder/$run.log" || fail "no line says which rank died"
  grep -q 'TERM came while waiting for .* on cp.*, in "' "$folder/$run.log" ||
    fail "no line says in which exchange and phase the others were"
  grep -q 'TERM came while waiting for .* on cp, layer [0-9]* of loop [0-9]' "$folder/$run.log"
}

# Few exchanges of a step are of no layer: of three deaths not all fall on one of those.
test_death() {
  kill_a_rank first || kill_a_rank second || kill_a_rank third ||
    fail "no line says in which layer the others were"
}

test_space() {
  mkdir "$folder/small"
  if ! mount -t tmpfs -o size=2500k none "$folder/small" 2> "$folder/mount.log"; then
    echo "skipped: a small file system cannot be mounted here"
    exit 77
  fi
  mounted=$folder/small
  local code=0
  mpirun -n 2 "$lt2" train "$folder/config.toml" --run-dir "$folder/small/run" \
    --device "$device" > "$folder/space.log" 2>&1 < /dev/null || code=$?
  [ "$code" = 1 ] || fail "ended with $code, not 1"
  local good
  good=$(ls -d "$folder"/small/run/checkpoints/step-?????????? | tail -n 1)
  grep -q "No space left.*$(basename "$good")\|$(basename "$good").*No space left" "$folder/space.log" ||
    fail "the message names neither the reason nor the last good checkpoint, $good"
  expect 0 "$lt2" ckpt verify "$good" > "$folder/verify.log" 2>&1
}

# Losses in float64 agree whatever the mesh, and a run goes on from another mesh's checkpoint.
test_meshes() {
  local exact=(--set parallel.precision=fp64 --max-steps 6)
  expect 0 train 1 alone "${exact[@]}"
  expect 0 train 4 mixed --set parallel.cp=2 "${exact[@]}"
  expect 0 train 3 chain --set parallel.cp=3 --set parallel.state_exchange=chain "${exact[@]}"
  expect 0 train 4 divided --set parallel.cp=2 --set parallel.tp=2 \
    --set parallel.sequence_parallel=true "${exact[@]}"
  expect 0 train 3 ring --set parallel.pp=3 "${exact[@]}"
  expect 0 train 4 drained --set parallel.pp=2 --set parallel.cp=2 \
    --set parallel.pipeline=ring-zb "${exact[@]}"
  expect 0 train 1 moved --set parallel.precision=fp64 --max-steps 2
  expect 0 train 2 moved --set parallel.cp=2 --set parallel.precision=fp64 --max-steps 4
  expect 0 train 3 moved --set parallel.pp=3 --set parallel.precision=fp64 --max-steps 5
  expect 0 train 4 moved --set parallel.tp=4 "${exact[@]}"
  expect 0 train 2 joined --set parallel.tp=2 --set parallel.precision=fp64 --max-steps 4
  expect 0 train 1 joined "${exact[@]}"
  local run
  for run in mixed chain divided ring drained moved joined; do
    losses "$run" | paste -d' ' - <(losses alone) | awk '
      $1 != $3 || ($2 - $4) ^ 2 > (1e-10 * $4) ^ 2 { print; bad = 1 }
      END { exit bad || NR != 6 }' || fail "the losses of '$run' are not those of one rank"
    valid_loss "$run" | paste -d' ' - <(valid_loss alone) | awk '
      ($1 - $2) ^ 2 > (1e-10 * $2) ^ 2 { print; bad = 1 }
      END { exit bad || NR != 1 }' || fail "the validation of '$run' is not that of one rank"
  done
}

# Rows in tiles: the same bits for each cp, also where a run moves between them.
test_tiles() {
  local tiles=(--set parallel.row_tiles=4 --set optimizer.clip=0.5)
  expect 0 train 1 alone "${tiles[@]}" --max-steps 3
  expect 0 train 2 two --set parallel.cp=2 "${tiles[@]}" --max-steps 3
  expect 0 train 4 four --set parallel.cp=4 --set parallel.zero=0 "${tiles[@]}" --max-steps 3
  expect 0 train 1 moved "${tiles[@]}" --max-steps 1
  expect 0 train 2 moved --set parallel.cp=2 "${tiles[@]}" --max-steps 3
  expect 0 train 2 replicas "${tiles[@]}" --max-steps 3
  expect 0 train 4 shared_replicas --set parallel.cp=2 "${tiles[@]}" --max-steps 3
  expect 0 train 2 divided --set parallel.tp=2 "${tiles[@]}" --max-steps 3
  expect 0 train 4 shared_divided --set parallel.tp=2 --set parallel.cp=2 "${tiles[@]}" --max-steps 3
  local pair
  for pair in alone:two alone:four alone:moved replicas:shared_replicas divided:shared_divided; do
    local a=${pair%:*} b=${pair#*:}
    [ "$(losses "$a" | wc -l)" = 3 ] && [ "$(losses "$a")" = "$(losses "$b")" ] ||
      fail "the losses of '$b' are not those of '$a'"
    [ "$(valid_loss "$a")" = "$(valid_loss "$b")" ] ||
      fail "the validation of '$b' is not that of '$a'"
    expect 0 "$lt2" ckpt diff "$folder/$a" "$folder/$b" --fail > "$folder/diff.log" 2>&1
  done
}

# The ranks of a host write one file; other meshes and other files go on from it.
test_node() {
  local odd=(--set batch.tokens=1536)
  expect 0 train 3 own "${odd[@]}" --max-steps 4
  expect 0 train 3 shared "${odd[@]}" --max-steps 4 --set checkpoint.files=node
  local shared="$folder/shared/checkpoints/step-0000000004"
  [ "$(ls "$shared")" = "$(printf 'index.h5\nmanifest.json\nshard-00000.h5')" ] ||
    fail "there is more than one shard: $(ls "$shared")"
  expect 0 "$lt2" ckpt verify "$shared" > "$folder/verify.log" 2>&1
  expect 0 "$lt2" ckpt diff "$folder/own" "$folder/shared" --fail > "$folder/diff.log" 2>&1

  expect 0 train 3 shared "${odd[@]}" --max-steps 8
  expect 0 train 3 own "${odd[@]}" --max-steps 8
  expect 0 "$lt2" ckpt reshard "$shared" "$folder/resharded" --ranks 5 > "$folder/reshard.log" 2>&1
  expect 0 train 3 moved "${odd[@]}" --max-steps 8 --resume "$folder/resharded"
  local run
  for run in shared moved; do
    expect 0 "$lt2" ckpt diff "$folder/own" "$folder/$run" --fail > "$folder/diff.log" 2>&1
  done
}

# once LOG TEXT: in exactly one line.
once() {
  [ "$(grep -c -- "$2" "$folder/$1.log")" = 1 ] || fail "'$2' is not once in $1.log"
}

test_ranks() {
  local config=$folder/config.toml code=0
  mpirun -n 1 "$lt2" train "$config" --run-dir "$folder/run" : \
    -n 1 "$lt2" train "$folder/nope.toml" --run-dir "$folder/run" --json \
    > "$folder/missing.log" 2>&1 < /dev/null || code=$?
  [ "$code" = 2 ] || fail "a rank without its configuration: $code, not 2"
  once missing "error: rank 1 (.*nope.toml"

  expect 2 mpirun -n 1 "$lt2" train "$config" --run-dir "$folder/run" : \
    -n 1 "$lt2" train "$config" --run-dir "$folder/run" --set optimizer.lr=1.0 \
    > "$folder/differ.log" 2>&1 < /dev/null
  once differ "error: rank 1 (.*runs another configuration than rank 0"
  [ ! -e "$folder/run" ] || fail "a run was begun all the same"

  expect 2 mpirun -n 2 "$lt2" train "$folder/nope.toml" --json > "$folder/all.log" 2>&1 < /dev/null
  once all "^error: .*nope.toml"
  once all '"exit":2'

  expect 2 mpirun -n 1 "$lt2" train "$config" --run-dir "$folder/run" : \
    -n 1 "$lt2" train "$config" --max-step 3 > "$folder/flag.log" 2>&1 < /dev/null
  once flag "rank 1 (.*unknown flag '--max-step'"

  expect 0 train 2 run --max-steps 1
  expect 0 mpirun -n 2 "$lt2" generate "$folder/run" --prompt a --max-tokens 5 --json \
    > "$folder/generate.log" 2>&1 < /dev/null
  once generate '"ids":'
  once generate "runs in one process"
}

if [ "$device" = cuda ]; then
  code=0
  mpirun -n 2 "$lt2" bench comm --device cuda --most-mib 1 --repeats 1 > "$folder/gpus.log" \
    2>&1 < /dev/null || code=$?
  cat "$folder/gpus.log"
  if [ "$code" = 2 ]; then exit 77; fi
  [ "$code" = 0 ] || fail "bench comm ended with $code"
fi
"test_$what"
echo "ok: $what"
