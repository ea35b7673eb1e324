#!/usr/bin/env bash
# What the compiler made of the kernels of scans, attention, SwiGLU and narrow products for sm_90a:
# sass_test.sh OBJECT_FOLDER
#
# Every bfloat16 kernel of them but those listed here multiplies on tensor cores, those by
# warpgroups with HGMMA, and none spills to local memory. Needs cuobjdump and nvdisasm: on the PATH,
# beside nvcc, or in LT2_DISASSEMBLER; is skipped (77) where they are not.
set -euo pipefail

# One token or element at a time, or for widths that tiles do not cover.
without_products='Step|Pieces?I|Plain|ForEachKernel|FinishSums|AddNarrow|QueryStats|Maxes'
# What names bfloat16 in its arguments, or reads it through a tensor map.
in_bfloat16='bfloat16|Narrow'
by_warpgroups='Warpgroup'

export PATH="${LT2_DISASSEMBLER:-}:$PATH:$(dirname "$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)")"
if ! command -v cuobjdump >/dev/null || ! command -v nvdisasm >/dev/null; then
  echo "skipped: there is no cuobjdump or nvdisasm here (LT2_DISASSEMBLER names their folder)"
  exit 77
fi

summary() {
  cuobjdump --dump-sass "$1" | awk '
    /Function : / { name = $3; seen[name] = 1 }
    /HGMMA/ { warpgroup[name]++ }
    /HMMA/ { warp[name]++ }
    /[ \t](LDL|STL)[. ]/ { memory[name]++ }
    END { for (n in seen) print n, warpgroup[n] + 0, warp[n] + 0, memory[n] + 0 }'
}

kernels=0 bad=0
complain() { echo "$1"; bad=$((bad + 1)); }
for object in "$1"/scan_*.cu.o "$1"/attention*.cu.o "$1"/{swiglu_ffn_warpgroup,narrow_linear}.cu.o; do
  while read -r name warpgroup warp memory; do
    if [[ ! $name =~ $in_bfloat16 && ! $name =~ $by_warpgroups ]]; then continue; fi
    kernels=$((kernels + 1))
    if [ "$memory" -gt 0 ]; then complain "$name: $memory accesses to local memory"; fi
    if [[ $name =~ $by_warpgroups ]]; then
      if [ "$warpgroup" -eq 0 ]; then complain "$name: no HGMMA"; fi
    elif [[ ! $name =~ $without_products && $warp -eq 0 ]]; then
      complain "$name: neither HGMMA nor HMMA"
    fi
  done < <(summary "$object")
done
echo "$kernels kernels, $bad complaints"
[ "$kernels" -gt 0 ] && [ "$bad" -eq 0 ]
