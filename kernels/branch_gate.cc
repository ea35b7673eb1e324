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
  std::array<Saved, kBranches> saved;
  std::vector<Var> in;
  for (int b = 0; b < kBranches; ++b) {
    saved[b] = tape.Save(branches_NHE[b]);
    CHECK_EQ(branches_NHE[b].shape(), branches_NHE[0].shape());
    in.push_back(branches_NHE[b]);
  }
  in.push_back(gates_NH3);
  CHECK_EQ(gates.shape(),
           (Shape{branches_NHE[0].value.dim(0), branches_NHE[0].value.dim(1), kBranches}));
  const Var o = tape.Make([&stream = tape.stream(), saved, gates = tape.Save(gates_NH3)] {
    BranchGateForwardArgs args{.branches_NHE = {}, .gates_NH3 = gates.get(), .o_NHE = {}};
    for (int b = 0; b < kBranches; ++b) args.branches_NHE[b] = saved[b].get();
    const Tensor& like = args.branches_NHE[0];
    args.o_NHE = Tensor::Empty(like.shape(), args.gates_NH3.dtype(), like.device());
    BranchGateForward(stream, args);
    return args.o_NHE;
  });
  auto backward = [&stream = tape.stream(), saved, gates = tape.Save(gates_NH3)](
                      std::span<const Tensor> dy, std::span<GradSlot> dx) {
    BranchGateBackwardArgs args{.do_NHE = dy[0], .branches_NHE = {}, .gates_NH3 = gates.get()};
    // Slot by slot: one value may be several branches.
    for (int b = 0; b < kBranches; ++b) {
      args.branches_NHE[b] = saved[b].get();
      args.accumulate_dbranches[b] = dx[b].accumulate();
      args.dbranches_NHE[b] = dx[b].to();
    }
    args.accumulate_dgates = dx[kBranches].accumulate();
    args.dgates_NH3 = dx[kBranches].to();
    BranchGateBackward(stream, args);
  };
  return tape.Record(in, std::vector<Var>{o},
                     {.name = "branch_gate", .input_grad = std::move(backward)})[0];
}

}  // namespace lt2
