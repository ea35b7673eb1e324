// A mixer added by "Adding a mixer" in model/README.md, to the tests only: a gated convolution over
// each token and the three before it.
//
//   y = W_o (conv4(W_x u) ⊙ σ(W_g u))
#pragma once

#include "core/config.h"
#include "core/param_set.h"
#include "model/config.h"
#include "model/mixer.h"

namespace lt2 {

class DummyMixer : public Mixer {
 public:
  struct Options {
    int64_t width;
    int64_t channels;
    bool gate;
  };
  // [model.dummy]: channels (width), gate = true.
  static Options ReadOptions(const ModelConfig& config, const ConfigTable& table);
  static ForeignTable ForeignNames();
  static std::vector<HeadCount> HeadCounts(const Options& options) {
    return {{"channels", options.channels}};
  }
  static std::vector<SizeLimit> GpuLimits(const Options&, const RunSizes&) { return {}; }

  DummyMixer(const Options& options, const MixerSite& site);
  MixerOutput Forward(Tape& tape, const Var& x_ND, const MixerContext& context) override;
  Tensor Step(Stream& stream, const Tensor& x_BD, MixerState& state,
              const StepContext& context) override;
  std::vector<StateEntry> StateSpec(int64_t sequences, int64_t capacity,
                                    DType dtype) const override;
  double FlopsPerToken(int64_t sequence) const override;
  SequenceStrategy strategy() const override { return SequenceStrategy::kHalo; }

 private:
  Var Output(Tape& tape, const Var& convolved_NC, const Var& x_ND, RowSums* sums = nullptr);

  const Options options_;
  Param &x_proj_, &conv_, &o_proj_;
  Param* gate_proj_ = nullptr;
};

}  // namespace lt2
