#!/usr/bin/env bash
# Draws the losses of a metrics.jsonl as text: tools/curve.sh RUN_DIR/metrics.jsonl
set -euo pipefail
awk '
function field(name,   rest) {
  if (!match($0, "\"" name "\": *[-+0-9.eE]+")) return ""
  rest = substr($0, RSTART, RLENGTH)
  sub(/.*: */, "", rest)
  return rest
}
{
  step = field("step"); loss = field("loss"); valid = field("valid_loss")
  if (step == "") next
  if (loss != "") { train[step] = loss; if (step + 0 > last) last = step + 0 }
  if (valid != "") { held[step] = valid; if (step + 0 > last) last = step + 0 }
}
END {
  if (!last) { print "no losses yet"; exit }
  rows = 16; columns = 64; low = 1e30; high = -1e30
  # Every column shows the mean of its steps.
  for (s in train) { c = column(s); sum[c] += train[s]; count[c]++ }
  for (c in sum) { mean[c] = sum[c] / count[c]; if (mean[c] < low) low = mean[c]; if (mean[c] > high) high = mean[c] }
  for (s in held) { if (held[s] < low) low = held[s]; if (held[s] > high) high = held[s] }
  if (high <= low) high = low + 1
  for (c in mean) grid[row(mean[c]), c] = "o"
  for (s in held) grid[row(held[s]), column(s)] = "V"
  for (r = 0; r < rows; r++) {
    line = sprintf("%7.3f |", high - (high - low) * r / (rows - 1))
    for (c = 0; c < columns; c++) line = line (((r, c) in grid) ? grid[r, c] : " ")
    sub(/ +$/, "", line)
    print line
  }
  line = "        +"
  for (c = 0; c < columns; c++) line = line "-"
  print line
  printf "         step 1%*d\n", columns - 6, last
  best = 0
  for (s in held) if (s + 0 >= best) best = s + 0
  if (best in held) printf "validation loss after step %d: %.4f nats\n", best, held[best]
}
function column(s) { return last > 1 ? int((s - 1) * (columns - 1) / (last - 1) + 0.5) : 0 }
function row(v) { return int((high - v) * (rows - 1) / (high - low) + 0.5) }
' "$1"
