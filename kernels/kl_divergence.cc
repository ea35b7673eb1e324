#include "kernels/kl_divergence.h"

namespace lt2 {

Cost CostOf(const KlDivergenceForwardArgs& args) {
  return {.flops = 12.0 * args.student_NV.size(), .bytes = 2.0 * args.student_NV.bytes()};
}

Cost CostOf(const KlDivergenceBackwardArgs& args) {
  return {.flops = 8.0 * args.student_NV.size(),
          .bytes = (args.accumulate_dstudent ? 4.0 : 3.0) * args.student_NV.bytes()};
}

Var KlDivergence(Tape& tape, Var student_NV, const Tensor& teacher_NV, double temperature,
                 double weight) {
  CHECK_EQ(student_NV.shape().rank(), 2);
  CHECK_EQ(student_NV.shape(), teacher_NV.shape());
  CHECK_EQ(student_NV.value.dtype(), teacher_NV.dtype());
  CHECK_GT(temperature, 0);
  Stream& stream = tape.stream();
  const Tensor& student = student_NV.value;
  const int64_t N = student.dim(0);
  const DType statistic = AccumulatorOf(student.dtype());
  const Tensor lse = Tensor::Empty({N, 2}, statistic, tape.device());
  const Tensor loss = Tensor::Empty({1}, DType::kF64, tape.device());
  KlDivergenceForward(stream, {.student_NV = student,
                               .teacher_NV = teacher_NV,
                               .temperature = temperature,
                               .weight = weight,
                               .lse_N2 = lse,
                               .kl_N = Tensor::Empty({N}, statistic, tape.device()),
                               .loss = loss});
  auto backward = [&stream, student = tape.Save(student_NV), teacher_NV, lse, temperature, weight](
                      std::span<const Tensor> dy, std::span<GradSlot> dx) {
    const bool accumulate = dx[0].accumulate();
    KlDivergenceBackward(stream, {.dloss = dy[0],
                                  .student_NV = student.get(),
                                  .teacher_NV = teacher_NV,
                                  .lse_N2 = lse,
                                  .temperature = temperature,
                                  .weight = weight,
                                  .dstudent_NV = dx[0].to(),
                                  .accumulate_dstudent = accumulate});
  };
  return tape.Record({student_NV}, loss,
                     {.name = "kl_divergence", .input_grad = std::move(backward)});
}

}  // namespace lt2
