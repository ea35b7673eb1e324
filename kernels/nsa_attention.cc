#include "kernels/nsa_attention.h"

#include "kernels/attention.h"
#include "kernels/block_mean.h"
#include "kernels/branch_gate.h"
#include "kernels/compressed_attention.h"
#include "kernels/select_blocks.h"
#include "kernels/selected_attention.h"

namespace lt2 {

NsaOutput NsaAttention(Tape& tape, const Var& q_NHD, const Var& k_NGD, const Var& v_NGE,
                       const Var& gates_NH3, const NsaOptions& options,
                       const Documents& documents) {
  const auto& [scale, block, selected, window] = options;
  const Var k_mean = BlockMean(tape, k_NGD, block, documents);
  const Var v_mean = BlockMean(tape, v_NGE, block, documents);
  const Var by_means =
      CompressedAttention(tape, q_NHD, k_mean, v_mean, {.scale = scale, .block = block}, documents);
  const Tensor blocks =
      SelectBlocks(tape, q_NHD.value, k_mean.value,
                   {.scale = scale, .block = block, .selected = selected}, documents);
  const Var by_blocks = SelectedAttention(tape, q_NHD, k_NGD, v_NGE, blocks,
                                          {.scale = scale, .block = block}, documents);
  const Var near =
      Attention(tape, q_NHD, k_NGD, v_NGE, {.scale = scale, .window = window}, documents);
  return {.o_NHE = BranchGate(tape, {by_means, by_blocks, near}, gates_NH3),
          .blocks_NGS = blocks,
          .k_CGD = k_mean.value,
          .v_CGE = v_mean.value};
}

}  // namespace lt2
