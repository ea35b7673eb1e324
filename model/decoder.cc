#include "model/decoder.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/philox.h"

namespace lt2 {

Decoder::Decoder(LanguageModel& model, Stream& stream, int64_t sequences, int64_t capacity,
                 DType dtype)
    : model_(model),
      stream_(stream),
      capacity_(capacity),
      states_(model.MakeStates(sequences, capacity, dtype, stream.device)),
      lengths_(sequences, 0) {}

Tensor Decoder::Prefill(std::span<const std::vector<int32_t>> prompts) {
  CHECK_EQ(prompts.size(), lengths_.size());
  std::vector<int32_t> ids, cu = {0};
  for (size_t b = 0; b < prompts.size(); ++b) {
    CHECK(lengths_[b] == 0 && !prompts[b].empty()) << "prefill wants one prompt for each sequence";
    CHECK_LE(static_cast<int64_t>(prompts[b].size()), capacity_);
    ids.insert(ids.end(), prompts[b].begin(), prompts[b].end());
    cu.push_back(static_cast<int32_t>(ids.size()));
    lengths_[b] = static_cast<int32_t>(prompts[b].size());
  }
  const Documents documents = Documents::Of(cu, stream_.device);
  const Tensor ids_N = Tensor::FromHost(ids, {static_cast<int64_t>(ids.size())}, stream_.device);
  const Tensor hidden = model_.Hidden(stream_, ids_N, documents, {.states = &states_});
  Tensor last = Tensor::Empty({static_cast<int64_t>(prompts.size()), hidden.dim(1)}, hidden.dtype(),
                              hidden.device());
  for (int64_t b = 0; b < last.dim(0); ++b) {
    last.Rows(b, b + 1).CopyFrom(hidden.Rows(cu[b + 1] - 1, cu[b + 1]));
  }
  return model_.Logits(stream_, last);
}

Tensor Decoder::Step(std::span<const int32_t> ids) {
  CHECK_EQ(ids.size(), lengths_.size());
  const Shape batch = {static_cast<int64_t>(ids.size())};
  for (int32_t length : lengths_) CHECK_LT(length, capacity_) << "the caches are full";
  StepContext context{.positions_B = Tensor::FromHost(lengths_, batch, stream_.device)};
  for (int32_t& length : lengths_) ++length;
  context.lengths_B = Tensor::FromHost(lengths_, batch, stream_.device);
  return model_.Step(stream_, Tensor::FromHost(ids, batch, stream_.device), context, states_);
}

int32_t SampleToken(std::span<const double> logits, const SampleOptions& options, uint64_t draw) {
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
  if (options.temperature <= 0) return order[0];
  if (options.top_k > 0 && options.top_k < static_cast<int64_t>(order.size())) {
    order.resize(options.top_k);
  }
  std::vector<double> weight;
  for (int32_t id : order) {
    weight.push_back(std::exp((logits[id] - logits[order[0]]) / options.temperature));
  }
  const double all = std::accumulate(weight.begin(), weight.end(), 0.0);
  double kept = 0;
  size_t count = 0;
  while (count < weight.size() && (count == 0 || kept < options.top_p * all)) {
    kept += weight[count++];
  }
  double left = OpenUniform(Philox(options.seed, draw)[0]) * kept;
  for (size_t i = 0; i < count; ++i) {
    left -= weight[i];
    if (left < 0) return order[i];
  }
  return order[count - 1];
}

}  // namespace lt2
