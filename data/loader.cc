#include "data/loader.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "core/check.h"
#include "core/hash.h"
#include "core/philox.h"
#include "core/status_macros.h"
#include "core/strings.h"
#include "data/permutation.h"

namespace lt2 {
namespace {

// Of D documents the last max(1, D / 10) are for validation.
int64_t FirstValidDocument(int64_t documents) {
  return documents - std::max<int64_t>(1, documents / 10);
}

uint64_t PermutationKey(uint64_t seed, int source, int64_t epoch) {
  static const uint64_t purpose = Hash64("data order");
  const Philox4 word =
      Philox(seed ^ purpose, static_cast<uint64_t>(source), static_cast<uint64_t>(epoch));
  return static_cast<uint64_t>(word[1]) << 32 | word[0];
}

}  // namespace

Loader::Loader(const DataConfig& config, uint64_t seed) : config_(config), seed_(seed) {}

absl::StatusOr<std::unique_ptr<Loader>> Loader::Open(const DataConfig& config, uint64_t seed,
                                                     int64_t model_vocab) {
  CHECK_GE(config.sequence, 1);
  CHECK(!config.train.empty());
  std::unique_ptr<Loader> loader(new Loader(config, seed));
  ASSIGN_OR_RETURN(loader->tokenizer_, MakeTokenizer(config.tokenizer, model_vocab));
  RETURN_IF_ERROR(loader->OpenSources(model_vocab));
  std::vector<double> weights;
  for (const DataConfig::Train& train : config.train) weights.push_back(train.weight);
  loader->mixture_ = std::make_unique<Mixture>(weights);
  loader->SetFingerprint();
  return loader;
}

absl::Status Loader::OpenSources(int64_t model_vocab) {
  const auto open = [&](const std::string& path) -> absl::StatusOr<std::shared_ptr<const Source>> {
    ASSIGN_OR_RETURN(std::shared_ptr<const Source> source, Source::Open(path, *tokenizer_));
    if (model_vocab > 0 && source->vocab_size() > model_vocab) {
      return absl::InvalidArgumentError(StrCat(path, ": has a vocabulary of ", source->vocab_size(),
                                               ", more than model.vocab = ", model_vocab,
                                               "; raise model.vocab"));
    }
    return source;
  };
  bool valid_found = false;
  for (const DataConfig::Train& train : config_.train) {
    ASSIGN_OR_RETURN(const std::shared_ptr<const Source> source, open(train.path));
    const int64_t documents = source->documents();
    const bool split = config_.valid ? *config_.valid == train.path : source->is_text();
    const int64_t first_valid = split ? FirstValidDocument(documents) : documents;
    if (first_valid == 0) {
      return absl::InvalidArgumentError(
          StrCat(train.path,
                 ": has a single document, so nothing is left to train on after the "
                 "last tenth of the documents is set aside for validation; separate documents by "
                 "blank lines, name another text in data.valid, or set data.valid = \"\""));
    }
    RETURN_IF_ERROR(AddPart(source, 0, first_valid, &train_));
    if (split) RETURN_IF_ERROR(AddPart(source, first_valid, documents, &valid_));
    valid_found |= split;
  }
  if (config_.valid && !config_.valid->empty() && !valid_found) {
    ASSIGN_OR_RETURN(const std::shared_ptr<const Source> source, open(*config_.valid));
    RETURN_IF_ERROR(AddPart(source, 0, source->documents(), &valid_));
  }
  for (const Part& part : valid_) valid_windows_ += part.windows;
  return absl::OkStatus();
}

absl::Status Loader::AddPart(const std::shared_ptr<const Source>& source, int64_t first_document,
                             int64_t last_document, std::vector<Part>* parts) {
  Part part{.source = source,
            .begin = source->DocumentStart(first_document),
            .end = source->DocumentStart(last_document),
            .windows = 0};
  part.windows = (part.end - part.begin - 1) / config_.sequence;
  if (part.windows < 1) {
    return absl::InvalidArgumentError(
        StrCat(source->path(), ": the ", parts == &valid_ ? "validation" : "training", " part has ",
               part.end - part.begin, " tokens, but data.sequence = ", config_.sequence, " needs ",
               config_.sequence + 1, "; give more text, or a smaller data.sequence",
               parts == &valid_ ? ", or set data.valid = \"\"" : ""));
  }
  CountDocuments(part);
  parts->push_back(part);
  return absl::OkStatus();
}

void Loader::CountDocuments(const Part& part) {
  if (config_.documents == DocumentMode::kIgnore) return;
  int64_t window = -1, documents = 0;
  const int64_t end = part.begin + part.windows * config_.sequence;
  part.source->ForEachStart(part.begin, end, [&](int64_t start) {
    const int64_t at = start - part.begin;
    if (at / config_.sequence != window) documents = 1;
    window = at / config_.sequence;
    if (at % config_.sequence != 0) ++documents;
    max_documents_per_row_ = std::max(max_documents_per_row_, documents);
  });
}

void Loader::SetFingerprint() {
  std::string text = StrCat("order 1 seed ", seed_, " sequence ", config_.sequence, " documents ",
                            static_cast<int>(config_.documents), " tokenizer ", tokenizer_->hash());
  for (size_t s = 0; s < train_.size(); ++s) {
    StrAppend(&text, " source ", train_[s].source->content_hash(), " ", train_[s].begin, " ",
              train_[s].end, " weight ", std::bit_cast<uint64_t>(config_.train[s].weight));
  }
  fingerprint_ = Hash128(std::as_bytes(std::span(text)));
}

Loader::Place Loader::PlaceOf(int64_t sample) const {
  const Mixture::Choice choice = (*mixture_)(sample);
  const int64_t n = train_[choice.source].windows;
  const Permutation order(PermutationKey(seed_, choice.source, choice.index / n), n);
  return {.source = choice.source, .window = order(choice.index % n)};
}

int64_t Loader::epoch(int64_t sample) const {
  int64_t passes = std::numeric_limits<int64_t>::max();
  for (int s = 0; s < sources(); ++s) {
    passes = std::min(passes, mixture_->Count(s, sample) / train_[s].windows);
  }
  return passes;
}

absl::Status Loader::Read(std::span<const int64_t> sample_numbers, Batch* batch) const {
  const int64_t rows = static_cast<int64_t>(sample_numbers.size());
  Clear(rows, batch);
  for (int64_t row = 0; row < rows; ++row) {
    const Place place = PlaceOf(sample_numbers[row]);
    RETURN_IF_ERROR(ReadRow(train_[place.source], place.window, row, batch));
  }
  Finish(batch);
  return absl::OkStatus();
}

absl::Status Loader::ReadValid(int64_t first, int64_t count, Batch* batch) const {
  CHECK(first >= 0 && count >= 0 && count <= valid_windows_ - first)
      << first << "+" << count << " of " << valid_windows_;
  Clear(count, batch);
  int64_t row = 0;
  for (const Part& part : valid_) {
    for (; row < count && first + row < part.windows; ++row) {
      RETURN_IF_ERROR(ReadRow(part, first + row, row, batch));
    }
    first -= part.windows;
  }
  Finish(batch);
  return absl::OkStatus();
}

void Loader::Clear(int64_t rows, Batch* batch) const {
  CHECK_LE(rows, std::numeric_limits<int32_t>::max() / config_.sequence);
  batch->rows = rows;
  batch->ids.resize(rows * config_.sequence);
  batch->targets.resize(rows * config_.sequence);
  batch->cu_seqlens.clear();
  batch->cu_seqlens.reserve(max_documents(rows) + 1);
  batch->counted = rows * config_.sequence;
}

absl::Status Loader::ReadRow(const Part& part, int64_t window, int64_t row, Batch* batch) const {
  const int64_t length = config_.sequence, begin = part.begin + window * length;
  const std::span<int32_t> ids(batch->ids.data() + row * length, length);
  const std::span<int32_t> targets(batch->targets.data() + row * length, length);
  RETURN_IF_ERROR(part.source->ReadWindow(begin, ids));
  RETURN_IF_ERROR(part.source->ReadWindow(begin + 1, targets));
  batch->cu_seqlens.push_back(static_cast<int32_t>(row * length));
  if (config_.documents == DocumentMode::kIgnore) return absl::OkStatus();
  part.source->ForEachStart(begin + 1, begin + length + 1, [&](int64_t start) {
    const int64_t at = start - begin;
    targets[at - 1] = kIgnoredTarget;  // nothing in a document tells how the next one begins
    --batch->counted;
    if (at < length) batch->cu_seqlens.push_back(static_cast<int32_t>(row * length + at));
  });
  return absl::OkStatus();
}

void Loader::Finish(Batch* batch) const {
  batch->cu_seqlens.push_back(static_cast<int32_t>(batch->rows * config_.sequence));
}

}  // namespace lt2
