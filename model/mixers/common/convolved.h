// A projection of a layer's input and, where there is one, the short convolution over it
// (kernels/short_conv.h).
//
// Filters start uniform in ±1/2, one over the root of their width, as PyTorch's do
// (flash-linear-attention's own models draw them from N(0, 0.02²)); biases start at 0.
#pragma once

#include "core/param_set.h"
#include "model/mixers/common/recurrent_mixer.h"

namespace lt2 {

inline constexpr int64_t kConvWidth = 4;

class Convolved {
 public:
  enum class Conv { kNone, kPlain, kBiased };
  // <name>_proj.weight [channels, width], <name>_conv1d.weight and, of a biased one, .bias; the
  // channels are those of `heads` heads of head_dim.
  Convolved(const MixerSite& site, const std::string& name, int64_t heads, int64_t head_dim,
            int64_t width, Conv conv);

  // [N, width] -> [N, channels]; silu: behind the convolution alone. entry: of its tail.
  // meanwhile: RecurrentRun's, of the convolution.
  Var operator()(Tape& tape, const Var& x_ND, const RecurrentRun& run, bool silu, int entry,
                 const Meanwhile& meanwhile = Nothing) const;
  // For what takes projection and convolution apart: [N, width] -> [N, channels], and the filter of
  // a plain one.
  Var Project(Tape& tape, const Var& x_ND) const;
  Param* filter() const { return conv_; }
  // Adds the tail that a decoding step carries.
  void AddState(int64_t sequences, DType dtype, std::vector<StateEntry>* spec) const;
  double flops() const;                                     // per token
  int64_t channels() const { return proj_.spec.shape[0]; }  // of all heads

 private:
  const std::string name_;
  Param& proj_;
  Param *conv_ = nullptr, *bias_ = nullptr;
};

}  // namespace lt2
