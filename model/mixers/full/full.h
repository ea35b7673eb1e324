// Attention to every earlier token of the document (common/softmax_attention.h).
#pragma once

#include "model/mixers/common/softmax_attention.h"

namespace lt2 {

class FullAttention : public SoftmaxAttention {
 public:
  using SoftmaxAttention::SoftmaxAttention;
  // [model.full]: qk_norm = false, window = 0 or one window per loop, as [0, 512, 256, 128].
  static Options ReadOptions(const ModelConfig& config, const ConfigTable& table) {
    return Read(config, table, /*window=*/0);
  }
};

}  // namespace lt2
