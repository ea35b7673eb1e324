#include "data/inspect.h"

#include <algorithm>

#include "core/status_macros.h"
#include "core/strings.h"
#include "data/shard.h"
#include "data/tokenizer.h"

namespace lt2 {
namespace {

constexpr int64_t kPreviewTokens = 160;

ShardReport::Shard Examine(const Shard& shard) {
  const ShardHeader& header = shard.header();
  ShardReport::Shard out;
  out.path = shard.path();
  out.tokens = header.tokens;
  out.documents = header.documents;
  out.vocab_size = header.vocab_size;
  out.dtype = shard.width() == 2 ? "u16" : "u32";
  const std::span<const int64_t> starts = shard.document_starts();
  out.shortest = header.tokens;
  for (size_t d = 0; d < starts.size(); ++d) {
    const int64_t length = (d + 1 < starts.size() ? starts[d + 1] : header.tokens) - starts[d];
    out.shortest = std::min(out.shortest, length);
    out.longest = std::max(out.longest, length);
  }
  out.mean_length = static_cast<double>(header.tokens) / static_cast<double>(header.documents);
  std::vector<int32_t> ids(4096);
  uint32_t largest = 0;  // an id beyond int32 shows as itself
  for (int64_t at = 0; at < header.tokens; at += static_cast<int64_t>(ids.size())) {
    const int64_t count = std::min<int64_t>(ids.size(), header.tokens - at);
    WidenTokens(shard.token_bytes().data() + at * shard.width(), shard.width(), count,
                header.vocab_size, ids.data());
    for (int64_t i = 0; i < count; ++i) largest = std::max(largest, static_cast<uint32_t>(ids[i]));
  }
  out.largest_id = largest;
  out.ids_ok = out.largest_id < header.vocab_size;
  out.content_ok = ContentHash(shard.token_bytes(), starts) == header.content_hash;
  return out;
}

std::string Preview(const Shard& shard) {
  std::vector<int32_t> ids(std::min(kPreviewTokens, shard.header().tokens));
  WidenTokens(shard.token_bytes().data(), shard.width(), static_cast<int64_t>(ids.size()),
              shard.header().vocab_size, ids.data());
  const absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer =
      MakeTokenizer(shard.header().tokenizer);
  if (tokenizer.ok() && (*tokenizer)->hash() == shard.header().tokenizer_hash) {
    if (absl::StatusOr<std::string> text = (*tokenizer)->Decode(ids); text.ok()) return *text;
  }
  std::string text;
  for (const int32_t id : ids) StrAppend(&text, text.empty() ? "" : " ", id);
  return text;
}

}  // namespace

absl::StatusOr<ShardReport> InspectShards(const std::string& directory) {
  ASSIGN_OR_RETURN(const std::vector<std::string> paths, ListShards(directory));
  ShardReport report;
  for (const std::string& path : paths) {
    ASSIGN_OR_RETURN(const Shard shard, Shard::Open(path));
    const ShardHeader& header = shard.header();
    report.shards.push_back(Examine(shard));
    if (report.shards.size() == 1) {
      report.tokenizer = header.tokenizer;
      report.tokenizer_hash = header.tokenizer_hash;
      report.preview = Preview(shard);
    }
    if (report.odd_shard.empty() && (header.tokenizer_hash != report.tokenizer_hash ||
                                     header.vocab_size != report.shards[0].vocab_size)) {
      report.odd_shard = path;
      report.odd_tokenizer = StrCat("\"", header.tokenizer, "\" (", header.tokenizer_hash,
                                    ", vocabulary ", header.vocab_size, ")");
    }
    report.tokens += header.tokens;
    report.documents += header.documents;
  }
  return report;
}

absl::Status ShardReport::Verdict() const {
  for (const Shard& shard : shards) {
    if (!shard.ids_ok) {
      return absl::DataLossError(StrCat(shard.path, ": holds token id ", shard.largest_id,
                                        "; the vocabulary is 0 … ", shard.vocab_size - 1));
    }
    if (!shard.content_ok) {
      return absl::DataLossError(
          StrCat(shard.path, ": tokens or document starts differ from the header's content hash"));
    }
  }
  if (!odd_shard.empty()) {
    return absl::InvalidArgumentError(
        StrCat(odd_shard, ": was made with tokenizer ", odd_tokenizer, ", but ", shards[0].path,
               " with \"", tokenizer, "\" (", tokenizer_hash, ", vocabulary ", shards[0].vocab_size,
               "); a folder holds shards of one tokenizer"));
  }
  return absl::OkStatus();
}

}  // namespace lt2
