#include "kernels/branch_gate.h"

namespace lt2 {

Cost CostOf(const BranchGateForwardArgs& args) {
  return {.flops = 2.0 * kBranches * static_cast<double>(args.o_NHE.size()),
          .bytes = (kBranches + 1.0) * static_cast<double>(args.o_NHE.bytes()) +
                   static_cast<double>(args.gates_NH3.bytes())};
}

Cost CostOf(const BranchGateBackwardArgs& args) {
  return {.flops = 3.0 * kBranches * static_cast<double>(args.do_NHE.size()),
          .bytes = (2.0 * kBranches + 1) * static_cast<double>(args.do_NHE.bytes()) +
                   2.0 * static_cast<double>(args.gates_NH3.bytes())};
}

Var BranchGate(Tape& tape, const std::array<Var, kBranches>& branches_NHE, Var gates_NH3) {
  const Tensor& gates = gates_NH3.value;
  std::array<Tensor, kBranches> branches;
  std::vector<Var> in;
  for (int b = 0; b < kBranches; ++b) {
    branches[b] = branches_NHE[b].value;
    CHECK_EQ(branches[b].shape(), branches[0].shape());
    in.push_back(branches_NHE[b]);
  }
  in.push_back(gates_NH3);
  CHECK_EQ(gates.shape(), (Shape{branches[0].dim(0), branches[0].dim(1), kBranches}));
  const Tensor o = Tensor::Empty(branches[0].shape(), gates.dtype(), tape.device());
  BranchGateForward(tape.stream(), {.branches_NHE = branches, .gates_NH3 = gates, .o_NHE = o});
  auto backward = [&stream = tape.stream(), branches, gates](std::span<const Tensor> dy,
                                                             std::span<GradSlot> dx) {
    BranchGateBackwardArgs args{.do_NHE = dy[0], .branches_NHE = branches, .gates_NH3 = gates};
    // Slot by slot: one value may be several branches.
    for (int b = 0; b < kBranches; ++b) {
      args.accumulate_dbranches[b] = dx[b].accumulate();
      args.dbranches_NHE[b] = dx[b].to();
    }
    args.accumulate_dgates = dx[kBranches].accumulate();
    args.dgates_NH3 = dx[kBranches].to();
    BranchGateBackward(stream, args);
  };
  return tape.Record(in, {o}, {.name = "branch_gate", .input_grad = std::move(backward)})[0];
}

}  // namespace lt2
