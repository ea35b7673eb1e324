// Attention to the last tokens of the document only (common/softmax_attention.h).
#pragma once

#include "model/mixers/common/softmax_attention.h"

namespace lt2 {

class WindowAttention : public SoftmaxAttention {
 public:
  using SoftmaxAttention::SoftmaxAttention;
  // [model.window]: window = 256 or one window per loop, as [0, 512, 256, 128]; qk_norm = false.
  static Options ReadOptions(const ModelConfig& config, const ConfigTable& table) {
    return Read(config, table, /*window=*/256);
  }
};

}  // namespace lt2
