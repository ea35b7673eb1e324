#!/usr/bin/env bash
# Random faults in short runs of two ranks: whatever happens, the run goes on to the very losses of an
# undisturbed one, and nothing damaged is taken for sound.
#   chaos_test.sh PROGRAM KILL_AT [FAULTS [SEED]]
# KILL_AT is the library of kill_at.cc.
# The seed decides which faults; where they fall in a run depends on the machine too.
set -uo pipefail

lt2=$1
kill_at=$2
faults=${3:-12}
seed=${4:-$((10#$(date +%N) % 32768))}
RANDOM=$seed
steps=12
folder=$(mktemp -d)
small=$folder/small
export OMP_NUM_THREADS=1 OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_MCA_hwloc_base_binding_policy=none
if [ "$(id -u)" = 0 ]; then
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi
echo "seed $seed"

processes() { pgrep -f "^(mpirun|$lt2) .*run-dir $1( |$)"; }
end_all() {
  local ids
  ids=$(processes "$1") && kill -9 $ids 2>/dev/null
  while processes "$1" > /dev/null; do sleep 0.05; done
}
cleanup() {
  end_all "$folder/.*"
  mountpoint -q "$small" && umount "$small"
  rm -rf "$folder"
}
trap cleanup EXIT

fail() {
  echo "FAILED: fault $fault ($what), seed $seed: $*" >&2
  tail -n 40 "$folder"/*.log >&2
  exit 1
}

for i in $(seq 1 100); do
  echo "Line $((i * 7919 % 1000)) of a play, said by voice $((i % 13)) to voice $((i % 7))."
  echo
done > "$folder/text.txt"
cat > "$folder/config.toml" <<TOML
[model]
width = 32
layers = 2
loops = 2
heads = 2
ffn = 64
vocab = 256
mixers = ["gdn", "full"]
[data]
train = [{ path = "text.txt" }]
valid = ""
sequence = 32
[batch]
tokens = 128
[optimizer]
lr = 1e-3
[schedule]
total = "$steps steps"
[checkpoint]
every = "1 steps"
keep_last = 4
[log]
every = "1 steps"
TOML

# train RUN LOG: returns lt2's exit code. If $moment is set, a rank is killed then.
train() {
  mpirun -n 2 ${moment:+-x "LD_PRELOAD=$kill_at" -x "LT2_KILL_AT=$moment"} \
    "$lt2" train "$folder/config.toml" --run-dir "$1" --device cpu \
    --set checkpoint.files="$files" > "$folder/$2.log" 2>&1 < /dev/null
} 2> /dev/null  # where the shell tells of every process killed

losses() {
  sed -n 's/^{"step":\([0-9]*\),.*"loss":\([^,]*\),.*/\1 \2/p' "$1/metrics.jsonl" |
    awk '{ loss[$1] = $2 } END { for (s in loss) print s, loss[s] }' | sort -n
}

steps_of() {
  local last=
  [ ! -f "$1/metrics.jsonl" ] || last=$(losses "$1" | tail -n 1 | cut -d' ' -f1)
  echo "${last:-0}"
}

# draw N: a random number from 0 to N - 1 in $drawn; pick A B…: one of them in $picked. No output is
# caught: a subshell would draw from a seed of its own.
draw() { drawn=$(((RANDOM * 32768 + RANDOM) % $1)); }
pick() {
  draw $#
  shift "$drawn"
  picked=$1
}
# nap N: less than N ms.
nap() {
  draw "$1"
  sleep "$(printf '%d.%03d' $((drawn / 1000)) $((drawn % 1000)))"
}

# rank_of RUN RANK: its process.
rank_of() {
  local id
  for id in $(processes "$1"); do
    grep -qsz "^OMPI_COMM_WORLD_RANK=$2$" "/proc/$id/environ" && echo "$id"
  done
}

# Waits until RUN has made a step, or for the end of the process JOB.
wait_for_step() {
  until [ "$(steps_of "$1")" -gt 0 ] || ! kill -0 "$2" 2> /dev/null; do sleep 0.02; done
}

# Kills one rank or all of what runs in RUN.
strike() {
  local ids
  mapfile -t ids < <(processes "$1")
  [ ${#ids[@]} -gt 0 ] || return
  pick "${ids[@]}"
  draw 3
  if [ "$drawn" = 0 ]; then kill -9 "${ids[@]}"; else kill -9 "$picked"; fi 2>/dev/null
}

fault_kill() {
  train "$run" first &
  nap "$whole_ms"
  strike "$run"
  wait $!
}

# Before a write, a sync or the rename of any of the first saves.
fault_kill_in_save() {
  local rank
  draw 2
  rank=$drawn
  pick "$rank write shard- 99" "$rank fsync shard- 1" "0 write index.h5 9" "0 fsync index.h5 1" \
    "0 write manifest.json 1" "0 fsync manifest.json 1" "0 fsync step- 1" "0 rename step- 1" \
    "0 fsync checkpoints 1"
  draw $((${picked##* } * steps / 2))
  moment="${picked% *} $((drawn + 1))"
  train "$run" first
  moment=
}

fault_kill_after_resume() {
  fault_kill_in_save
  end_all "$run"
  train "$run" second &
  local job=$!
  until grep -qs resuming "$folder/second.log" || ! kill -0 "$job" 2> /dev/null; do
    sleep 0.005
  done
  nap 100
  strike "$run"
  wait $!
}

# Truncates, flips or removes something of the newest checkpoint.
fault_damage() {
  fault_kill_in_save
  end_all "$run"
  local newest file size code=0
  newest=$(ls -d "$run"/checkpoints/step-?????????? 2>/dev/null | tail -n 1)
  [ -n "$newest" ] || return 0
  pick $(ls "$newest")
  file=$newest/$picked
  size=$(stat -c %s "$file")
  draw "$size"
  local at=$drawn
  pick cut flip remove
  case $picked in
    cut) truncate -s "$at" "$file" ;;
    flip)
      local byte
      byte=$(od -An -tu1 -j "$at" -N 1 "$file")
      printf "$(printf '\\x%02x' $((byte ^ (1 << (RANDOM % 8)))))" |
        dd of="$file" bs=1 seek="$at" conv=notrunc status=none
      ;;
    remove) rm "$file" ;;
  esac
  "$lt2" ckpt verify "$newest" > "$folder/verify.log" 2>&1 || code=$?
  [ "$code" = 3 ] || fail "verify of $file ended with $code, not 3"
  # Where it is the only one, there is nothing sound to go on from, and the run must say so.
  if [ "$(ls -d "$run"/checkpoints/step-?????????? | wc -l)" = 1 ]; then
    code=0
    train "$run" refused || code=$?
    [ "$code" = 3 ] || fail "a run with nothing but damage ended with $code, not 3"
    rm -r "$run"
  fi
}

fault_full_disk() {
  mountpoint -q "$small" || return 0
  draw "$whole_kib"
  mount -o remount,size="$((100 + drawn))k" "$small"
  run=$small/run
  local code=0
  train "$run" first || code=$?
  [ "$code" = 0 ] || [ "$code" = 1 ] || [ "$code" = 2 ] || fail "a full disk ended the run with $code"
  mount -o remount,size=64m "$small"
}

fault_read_only() {
  mountpoint -q "$small" || return 0
  run=$small/run
  train "$run" first &
  nap "$whole_ms"
  strike "$run"
  wait $!
  end_all "$run"
  # A process that was killed holds its files a moment longer than its name.
  local tries=0 code=0
  until mount -o remount,ro "$small" 2> /dev/null; do
    [ $((tries += 1)) -le 200 ] || fail "the folder could not be made read-only"
    sleep 0.05
  done
  train "$run" second || code=$?
  mount -o remount,rw "$small"
  [ "$code" = 1 ] || [ "$code" = 2 ] || fail "a read-only folder ended the run with $code"
}

fault_two_jobs() {
  train "$run" first &
  local first=$!
  nap 300
  train "$run" second &
  local second=$!
  draw 2
  if [ "$drawn" = 0 ]; then
    nap "$whole_ms"
    strike "$run"
  fi
  wait "$first"
  wait "$second"
}

# A rank of the first job sleeps: the second one is refused, and the first goes on.
fault_live_job() {
  train "$run" first &
  local first=$! sleeper code=0
  wait_for_step "$run" "$first"
  sleeper=$(rank_of "$run" 1)
  [ -n "$sleeper" ] && kill -STOP "$sleeper"
  train "$run" second || code=$?
  if [ "$code" = 0 ]; then
    [ "$(steps_of "$run")" = "$steps" ] || fail "a second job ran beside a living one"
  else
    grep -q "is in use by" "$folder/second.log" || fail "the second job does not say who is before it"
  fi
  [ -n "$sleeper" ] && kill -CONT "$sleeper"
  wait "$first" || fail "the first job ended with $?"
}

published() { cat "$run"/checkpoints/step-??????????/manifest.json | cksum; }

# The one that holds the lock sleeps, and is overtaken: when it wakes it publishes nothing.
fault_overtaken_job() {
  train "$run" first &
  local first=$! sleeper before
  wait_for_step "$run" "$first"
  nap "$whole_ms"
  sleeper=$(rank_of "$run" 0)
  [ -n "$sleeper" ] && kill -STOP "$sleeper"
  train "$run" second || fail "the second job ended with $?"
  before=$(published)
  [ -n "$sleeper" ] && kill -CONT "$sleeper"
  wait "$first"
  [ "$(published)" = "$before" ] || fail "who was overtaken published a checkpoint"
}

fault=0 what=none files=rank moment= cut_short=0
begun=$(date +%s%N)
train "$folder/whole" whole || fail "the undisturbed run ended with $?"
whole_ms=$((($(date +%s%N) - begun) / 1000000))
whole_kib=$(du -sk "$folder/whole" | cut -f1)
losses "$folder/whole" > "$folder/losses"
[ "$(wc -l < "$folder/losses")" = "$steps" ] || fail "not every step has a loss"
mkdir "$small"
mount -t tmpfs -o size=64m none "$small" 2> /dev/null ||
  echo "note: a small file system cannot be mounted here: no full disk, no read-only folder"

declare -A counts=()
for fault in $(seq 1 "$faults"); do
  pick kill kill kill_in_save kill_in_save kill_in_save kill_after_resume kill_after_resume damage \
    damage damage full_disk full_disk read_only read_only two_jobs live_job overtaken_job
  what=$picked
  pick rank node
  files=$picked
  run=$folder/run
  rm -rf "$run" "$small/run" "$folder"/{first,second,refused,last,verify}.log
  "fault_$what"
  end_all "$run"
  cut_short=$((cut_short + ($(steps_of "$run") < steps)))
  train "$run" last || fail "the resumed run ended with $?"
  cmp -s <(losses "$run") "$folder/losses" ||
    fail "losses differ: $(diff <(losses "$run") "$folder/losses" | head -n 4)"
  "$lt2" ckpt verify "$run" > "$folder/verify.log" 2>&1 || fail "not every checkpoint left is sound"
  compgen -G "$run/checkpoints/*.tmp-*" > /dev/null && fail "something half written was left"
  counts[$what]=$((${counts[$what]:-0} + 1))
  echo "survived $fault: $what"
done
for what in "${!counts[@]}"; do echo "$what ${counts[$what]}"; done | sort
[ "$cut_short" -gt 0 ] || fail "no fault fell into a run"
echo "ok: $faults faults, of which $cut_short cut a run short; seed $seed"
