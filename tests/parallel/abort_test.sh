#!/bin/bash
# A rank that ends, in whatever way, ends all of them within ten seconds, with a non-zero code.
#   abort_test.sh MPIRUN PROGRAM RANKS MODE…
# The program skips by code 77.
set -u
mpirun=$1
program=$2
ranks=$3
shift 3
run() {
  timeout 10 "$mpirun" --allow-run-as-root --oversubscribe --bind-to none -n "$ranks" "$program" \
    "$1" </dev/null >"$log" 2>&1
}
log=$(mktemp)
trap 'rm -f "$log"' EXIT
failed=0
# how rank 1 ends : mpirun's exit code : what is printed
for case in 'abort:7:' 'abort_in_split:7:' "check:134:rank 1 .*a programmer's error" \
            "truncate:1:rank 1 .*Receive 'short_receive' failed" 'kill:137:'; do
  IFS=: read -r mode expected message <<<"$case"
  case " $* " in *" $mode "*) ;; *) continue ;; esac
  run "--$mode"
  code=$?
  if [ "$code" -eq 77 ]; then
    cat "$log"
    exit 77
  fi
  echo "$mode: exit code $code"
  if [ "$code" -ne "$expected" ] || ! grep -q -- "$message" "$log"; then
    echo "expected $expected and '$message'; it printed:"
    cat "$log"
    failed=1
  fi
done
exit $failed
