#!/usr/bin/env bash
# The rules that need no compiler: format, layers, file sizes, READMEs. tools/check.sh [--fix]
set -uo pipefail
cd "$(dirname "$0")/.."

failures=0
fail() {
  echo "check: $*" >&2
  failures=$((failures + 1))
}
sources=$(git ls-files --cached --others --exclude-standard -- '*.h' '*.cc' '*.cu' '*.cuh' |
  while read -r file; do [ -f "$file" ] && echo "$file"; done)

check_format() {
  if ! command -v clang-format-14 >/dev/null; then
    echo "check: clang-format-14 is not here; the format was not checked" >&2
    return
  fi
  if [ "${1:-}" = --fix ]; then
    clang-format-14 -i $sources
  fi
  local file
  for file in $sources; do
    clang-format-14 --dry-run -Werror "$file" 2>/dev/null ||
      fail "format: $file is not as .clang-format wants it: run tools/check.sh --fix"
  done
}

# A folder includes only itself and what is named here.
declare -A may_include=(
  [core]=""
  [kernels]="core"
  [parallel]="core kernels"
  [model]="core kernels parallel"
  [data]="core"
  [checkpoints]="core parallel"
  [launch]="core kernels parallel model data checkpoints"
  [tools]="core kernels parallel model data checkpoints launch"
)

check_layers() {
  local folder line target
  for folder in "${!may_include[@]}"; do
    while IFS= read -r line; do
      target=${line##*#include \"}
      target=${target%%/*}
      [ "$target" = tests ] || [[ -v may_include[$target] ]] || continue
      case " $folder ${may_include[$folder]} " in
        *" $target "*) ;;
        *) fail "layers: $folder must not include $target: $line" ;;
      esac
    done < <(echo "$sources" | grep "^$folder/" | xargs -r grep -Hn '^ *#include "[a-z_]*/')
  done
}

# At most 400 lines a file; what must be longer is listed with its reason in tools/long_files.txt.
check_sizes() {
  local file lines
  for file in $sources $(git ls-files -- '*.sh' '*.cmake' '*CMakeLists.txt' '*.py' .ci/run); do
    lines=$(wc -l <"$file")
    if [ "$lines" -gt 400 ] && ! grep -q "^$file " tools/long_files.txt; then
      fail "sizes: $file has $lines lines, 400 are allowed: split it, or list it in tools/long_files.txt"
    fi
  done
}

check_readmes() {
  local folder
  for folder in "${!may_include[@]}" tests; do
    [ -s "$folder/README.md" ] || fail "readme: $folder/README.md is missing"
  done
}

check_format "${1:-}"
check_layers
check_sizes
check_readmes
if [ "$failures" -gt 0 ]; then
  echo "check: $failures found" >&2
  exit 1
fi
echo "check: format, layers, sizes and READMEs are in order"
