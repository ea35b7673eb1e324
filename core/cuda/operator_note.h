// What the calling thread launches, for messages: the operator and the tensors it was given.
#pragma once

#include <string>

#include "core/tensor.h"

namespace lt2::cuda {

void NoteOperator(const char* name);     // a literal; its tensors follow
void NoteTensor(const Tensor& operand);  // the first few are kept
// "scan_delta_forward of bf16 [8192, 16, 96], f32 [8192, 16]"; "no operator yet".
std::string OperatorNote();

}  // namespace lt2::cuda
