// What a model's config.json says that its tensors' shapes do not.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "model/config.h"

namespace lt2 {

// A line for each of heads, widths, rope_theta, norm_eps, loops and tying in which `json`, in the
// words of Hugging Face's Llama, Qwen and Ouro, differs from `config`, and for what this program
// does not have. Keys that are not there say nothing. DataLoss naming `source` if it is no JSON.
absl::StatusOr<std::vector<std::string>> DifferencesFrom(std::string_view json,
                                                         const std::string& source,
                                                         const ModelConfig& config);

}  // namespace lt2
