// Which tensor of a model in safetensors each parameter of ours is.
//
// Three ways of naming are known, and mixtures of the last two: lt2's own; Llama's, Qwen's and
// Ouro's (model.layers.0.self_attn.q_proj.weight); flash-linear-attention's
// (model.layers.0.attn.q_proj.weight). What a mixer's parameters are called is in its import table.
// Matrices are [out, in] everywhere, so nothing is transposed; where one tensor over there is
// several of ours, these are its rows one after another; extents of 1 are no difference.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "checkpoints/import.h"
#include "model/config.h"

namespace lt2 {

// Every parameter of the model, in the order of the names. InvalidArgument: one message with all
// that is missing, left over or of another shape, with the nearest names; or `rope_style` is not
// "half" where theirs is.
absl::StatusOr<std::vector<ImportedParam>> MatchParams(const ModelConfig& config,
                                                       const SafetensorsModel& model);

}  // namespace lt2
