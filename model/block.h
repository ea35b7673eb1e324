// One pre-norm residual block: y = x + Mixer(RMSNorm(x)), out = y + FFN(RMSNorm(y)).
//
// With sandwich norms (Ouro, arXiv 2510.25741) what mixer and FFN give is normed too before it is
// added: y = x + RMSNorm(Mixer(RMSNorm(x))), and the same for the FFN.
//
// Ranks of a tensor-parallel group divide mixer and FFN; norms and residuals lie between them.
#pragma once

#include <memory>
#include <string>

#include "model/config.h"
#include "model/ffn.h"
#include "model/mixer.h"
#include "model/recompute.h"
#include "parallel/tensor_shard.h"

namespace lt2 {

class Block {
 public:
  // site.scope is the layer's: "layers.3."
  Block(const ModelConfig& config, const std::string& kind, const MixerSite& site);

  // The block's output, then its mixer's auxiliary loss if it has one. x_ND and the output are what
  // lies between layers.
  std::vector<Var> Forward(Tape& tape, const Var& x_ND, const MixerContext& context,
                           TensorShard* tensor, RecomputePolicy recompute);
  // One token per sequence, [B, width].
  Tensor Step(Stream& stream, const Tensor& x_BD, MixerState& state, const StepContext& context);
  double FlopsPerToken(int64_t sequence) const;
  const std::string& kind() const { return kind_; }
  const Mixer& mixer() const { return *mixer_; }

 private:
  // A half's output as it is added to the residual.
  Var Normed(Tape& tape, const Var& out_ND, Param* post) const;
  Var FeedForwardHalf(Tape& tape, const Var& x_ND, const Var& mixed_ND, TensorShard* tensor);

  std::string kind_;
  double eps_;
  Param& norm1_;
  std::unique_ptr<Mixer> mixer_;
  Param* norm1_post_ = nullptr;  // sandwich norms, or null
  Param& norm2_;
  FeedForward ffn_;
  Param* norm2_post_ = nullptr;
};

}  // namespace lt2
