// Batches of token windows, whose order is a pure function of (seed, sample number).
//
// A source's tokens are cut into windows of `sequence` inputs at stride `sequence`; the target of
// an input is the token after it, so that a window reads sequence + 1 tokens, and what is left at
// the end is dropped. Sample i of the run, counted from 0 over all ranks and steps, goes by the
// mixture to a source as its k-th sample; of its n windows it is the one at place P(k mod n), where
// P is the keyed permutation of epoch k / n. No rank, micro-batch or history enters, so any mesh
// reads the same samples and a run resumes from a number.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "data/data_config.h"
#include "data/mixture.h"
#include "data/source.h"
#include "data/tokenizer.h"

namespace lt2 {

inline constexpr int32_t kIgnoredTarget = -100;

struct Batch {
  std::vector<int32_t> ids, targets;  // [rows · sequence]; kIgnoredTarget is not counted
  // Where documents begin, 0 first and rows · sequence last: every row, and with documents =
  // "reset" every document inside a row.
  std::vector<int32_t> cu_seqlens;
  int64_t counted = 0;  // targets that are not ignored
  int64_t rows = 0;
};

class Loader {
 public:
  // Opens and checks every source. NotFound; InvalidArgument (tokenizer differs, vocabulary larger
  // than the model's, fewer than sequence + 1 tokens); DataLoss (damaged shard).
  // model_vocab = 0 leaves the vocabulary unchecked.
  static absl::StatusOr<std::unique_ptr<Loader>> Open(const DataConfig& config, uint64_t seed,
                                                      int64_t model_vocab);

  // Row r of the batch is sample_numbers[r]. Vectors are reused. DataLoss where a shard holds an id
  // outside its vocabulary. May be called from several threads.
  absl::Status Read(std::span<const int64_t> sample_numbers, Batch* batch) const;
  // Validation windows [first, first + count) in the order of the text; inside valid_windows().
  absl::Status ReadValid(int64_t first, int64_t count, Batch* batch) const;
  int64_t valid_windows() const { return valid_windows_; }

  // The most documents that `rows` rows of training or validation can hold.
  int64_t max_documents(int64_t rows) const { return rows * max_documents_per_row_; }
  // How often every source has been read through completely before this sample.
  int64_t epoch(int64_t sample) const;
  // Training windows in one pass over a source.
  int64_t windows(int source) const { return train_[source].windows; }
  int sources() const { return static_cast<int>(train_.size()); }
  // Which window of which source a sample is: what Read reads.
  struct Place {
    int source;
    int64_t window;
  };
  Place PlaceOf(int64_t sample) const;

  int64_t sequence() const { return config_.sequence; }
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  // 32 hexadecimal digits over all that decides what sample i holds: seed, sources' content and
  // weights, split, sequence, documents.
  const std::string& fingerprint() const { return fingerprint_; }

 private:
  // Whole documents of a source, cut into windows.
  struct Part {
    std::shared_ptr<const Source> source;
    int64_t begin, end;  // tokens
    int64_t windows;
  };

  Loader(const DataConfig& config, uint64_t seed);
  absl::Status OpenSources(int64_t model_vocab);
  absl::Status AddPart(const std::shared_ptr<const Source>& source, int64_t first_document,
                       int64_t last_document, std::vector<Part>* parts);
  void CountDocuments(const Part& part);
  void SetFingerprint();
  void Clear(int64_t rows, Batch* batch) const;
  absl::Status ReadRow(const Part& part, int64_t window, int64_t row, Batch* batch) const;
  void Finish(Batch* batch) const;

  DataConfig config_;
  uint64_t seed_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::vector<Part> train_, valid_;
  std::unique_ptr<Mixture> mixture_;
  int64_t valid_windows_ = 0, max_documents_per_row_ = 1;
  std::string fingerprint_;
};

}  // namespace lt2
