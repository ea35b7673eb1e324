// The shape of a model: `[model]` of the configuration.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "core/config.h"
#include "parallel/tensor_split.h"

namespace lt2 {

struct ModelConfig {
  int64_t width = 0;     // d
  int64_t layers = 0;    // N distinct blocks
  int64_t loops = 1;     // T: how often the N blocks run with the same weights
  int64_t heads = 0;     // query heads of full attention
  int64_t kv_heads = 0;  // default: heads
  int64_t head_dim = 0;  // default: width / heads
  int64_t ffn = 0;       // SwiGLU's hidden size; default: 2/3 · 4d, rounded up to 256
  int64_t vocab = 0;     // true size, never padded
  bool tie_embeddings = true;
  double rope_theta = 10000;
  bool rope_interleaved = false;  // rope_style = "half" | "interleaved"
  double norm_eps = 1e-6;
  std::vector<std::string> mixers = {"full"};  // kinds of one period of layers
  std::string layout = "interleave";           // where the layers of the last kind go
  bool attention_gate = false;                 // sigmoid output gate of full attention
  bool loop_residual = true;   // h_t = F(h_{t-1}) + rho_t · h_{t-1}, rho = 0 at first
  bool sandwich_norm = false;  // norms after mixer and FFN too, before the residual
  bool loop_norm = false;      // every loop ends with the final norm
  bool exit_gate = false;      // a gate says after which loop a token leaves; the loss is expected
  double exit_entropy = 0.1;   // weight of the entropy of the way out, subtracted from the loss
  std::map<std::string, ConfigTable> mixer_options;  // [model.<kind>], read by the mixer itself
};

// Reads and checks `[model]`; every mistake is noted on the table (ConfigTable::Finish reports).
ModelConfig ReadModelConfig(const ConfigTable& model);

// The mixer kind of each of the config's layers, by pattern and layout:
//   interleave  the pattern repeats
//   bookend:K   layers of the pattern's last kind: K at each end, the others between
//   front/back  as many layers of the last kind as the pattern would give, all first / all last
// InvalidArgument says what is allowed.
absl::StatusOr<std::vector<std::string>> LayerKinds(const ModelConfig& config);

// Whether tensor-parallel ranks can divide the model: heads of its mixers, channels of the FFN and
// rows of the vocabulary. InvalidArgument names what they cannot, and all numbers of ranks that
// can.
absl::Status CheckSplit(const ModelConfig& config, const TensorSplit& split);
// The numbers of ranks that can, ascending.
std::vector<int64_t> LegalSplits(const ModelConfig& config);

}  // namespace lt2
