// Token-by-token decoding of a batch of sequences, with caches per (layer, loop).
#pragma once

#include <span>
#include <vector>

#include "model/language_model.h"

namespace lt2 {

class Decoder {
 public:
  // Room for `sequences` sequences of at most `capacity` tokens each. The model's parameters are
  // bound on the stream's device with this dtype.
  Decoder(LanguageModel& model, Stream& stream, int64_t sequences, int64_t capacity, DType dtype);

  // Reads all prompts at once (one each, none empty) and returns the logits after each, [B, vocab].
  Tensor Prefill(std::span<const std::vector<int32_t>> prompts);
  // Appends one token to each sequence; the logits after it, [B, vocab].
  Tensor Step(std::span<const int32_t> ids);

  int64_t length(int64_t sequence) const { return lengths_[sequence]; }
  int64_t capacity() const { return capacity_; }

 private:
  LanguageModel& model_;
  Stream& stream_;
  int64_t capacity_;
  std::vector<MixerState> states_;
  std::vector<int32_t> lengths_;
};

// How the next token is drawn from logits.
struct SampleOptions {
  double temperature = 1;  // 0: the most likely token
  int64_t top_k = 0;       // keep the k most likely; 0: all
  double top_p = 1;        // keep the most likely tokens that together have this probability
  uint64_t seed = 0;
};

// A token from one row of logits: a pure function of (options, draw). Ties go to the smaller id.
int32_t SampleToken(std::span<const double> logits, const SampleOptions& options, uint64_t draw);

}  // namespace lt2
