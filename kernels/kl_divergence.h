// Distillation's loss: how far a student's distribution over the vocabulary is from a teacher's.
//
//   KL_i = sum_v p_iv (log p_iv - log q_iv),  p = softmax(t / τ), q = softmax(s / τ)
//   loss = weight τ² sum_i KL_i
//   ds   = dloss weight τ (q - p)
//
// τ² keeps the size of the gradient where τ softens both (Hinton et al.: "Distilling the Knowledge
// in a Neural Network", 2015). A sum, not a mean: what a token is worth is known only where the
// global batch is counted; the weight carries it.
#pragma once

#include "core/tape.h"
#include "kernels/kernel.h"

namespace lt2 {

struct KlDivergenceForwardArgs {
  Tensor student_NV, teacher_NV;  // logits
  double temperature = 1, weight = 1;
  Tensor lse_N2;  // log-sum-exp of s_i / τ and of t_i / τ
  Tensor kl_N;    // KL_i
  Tensor loss;    // F64 [1]
};

struct KlDivergenceBackwardArgs {
  Tensor dloss;  // F64 [1]
  Tensor student_NV, teacher_NV, lse_N2;
  double temperature = 1, weight = 1;
  Tensor dstudent_NV;
  bool accumulate_dstudent = false;
};

LT2_KERNEL(KlDivergenceForward, KlDivergenceForwardArgs)
LT2_KERNEL(KlDivergenceBackward, KlDivergenceBackwardArgs)

// F64 [1]. The teacher gets no gradient.
Var KlDivergence(Tape& tape, Var student_NV, const Tensor& teacher_NV, double temperature,
                 double weight);

}  // namespace lt2
