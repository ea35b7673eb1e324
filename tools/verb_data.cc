// lt2 data: makes and shows token shards.
#include <iostream>
#include <memory>

#include "absl/strings/str_format.h"
#include "core/log.h"
#include "core/status_macros.h"
#include "core/strings.h"
#include "core/trace.h"
#include "data/inspect.h"
#include "data/tokenize.h"
#include "tools/flags.h"
#include "tools/progress_line.h"
#include "tools/verb.h"

namespace lt2 {
namespace {

absl::Status RunTokenize(const TokenizeOptions& options, VerbOutput& output) {
  ProgressLine progress("tokenizing");
  ASSIGN_OR_RETURN(const TokenizeReport report,
                   TokenizeFiles(options, [&](int64_t done, int64_t total) {
                     progress.Show(static_cast<double>(done), static_cast<double>(total));
                   }));
  progress.End();
  output.result = {{"out", options.out},       {"files", report.files},
                   {"bytes", report.bytes},    {"documents", report.documents},
                   {"tokens", report.tokens},  {"shards", report.shards},
                   {"seconds", report.seconds}};
  if (!output.json) {
    std::cout << StrCat(options.out, ": ", report.tokens, " tokens in ", report.documents,
                        report.documents == 1 ? " document" : " documents", ", ", report.shards,
                        report.shards == 1 ? " shard" : " shards", "\n");
  }
  return absl::OkStatus();
}

nlohmann::json ToJson(const ShardReport::Shard& shard) {
  return {{"path", shard.path},
          {"tokens", shard.tokens},
          {"documents", shard.documents},
          {"vocab_size", shard.vocab_size},
          {"dtype", shard.dtype},
          {"shortest", shard.shortest},
          {"longest", shard.longest},
          {"mean_length", shard.mean_length},
          {"largest_id", shard.largest_id},
          {"sound", shard.content_ok && shard.ids_ok}};
}

void Print(const ShardReport& report) {
  std::cout << absl::StrFormat("tokenizer  %s (%s)\ntokens     %d in %d documents\n\n",
                               report.tokenizer, report.tokenizer_hash, report.tokens,
                               report.documents);
  std::cout << absl::StrFormat("%12s %10s %6s %8s %10s %9s %6s  %s\n", "tokens", "documents",
                               "dtype", "vocab", "mean", "longest", "sound", "shard");
  for (const ShardReport::Shard& shard : report.shards) {
    std::cout << absl::StrFormat("%12d %10d %6s %8d %10.1f %9d %6s  %s\n", shard.tokens,
                                 shard.documents, shard.dtype, shard.vocab_size, shard.mean_length,
                                 shard.longest, shard.content_ok && shard.ids_ok ? "yes" : "NO",
                                 shard.path);
  }
  std::cout << "\nbegins with: " << report.preview << "\n";
}

absl::Status RunInspect(const std::string& directory, VerbOutput& output) {
  ASSIGN_OR_RETURN(const ShardReport report, InspectShards(directory));
  output.result = {{"tokenizer", report.tokenizer},
                   {"tokenizer_hash", report.tokenizer_hash},
                   {"tokens", report.tokens},
                   {"documents", report.documents},
                   {"shards", nlohmann::json::array()}};
  for (const auto& shard : report.shards) output.result["shards"].push_back(ToJson(shard));
  if (!output.json) Print(report);
  return report.Verdict();
}

}  // namespace

Verb DataVerb() {
  const std::string tokenize_example =
      "{lt2} data tokenize data/samples/tinyshakespeare.txt --tokenizer bytes --out runs/shards";
  return {.name = "data",
          .summary = "Makes and shows folders of token shards.",
          .example = tokenize_example,
          .add = [=](CLI::App& app) -> VerbBody {
            auto options = std::make_shared<TokenizeOptions>();
            auto directory = std::make_shared<std::string>();
            CLI::App* tokenize = AddSubverb(
                app, "tokenize",
                "Turns text into token shards: .txt files (blank lines separate documents), .jsonl "
                "files (one object a line with a \"text\"), or folders of them.",
                tokenize_example);
            tokenize->add_option("inputs", options->inputs, "files or folders")->required();
            tokenize->add_option("--tokenizer", options->tokenizer, "bytes");
            tokenize->add_option("--out", options->out, "the folder to make")->required();
            tokenize
                ->add_option("--tokens-per-shard", options->tokens_per_shard,
                             "a shard ends before the document that would exceed it")
                ->check(WholeNumber(1, int64_t{1} << 40));
            CLI::App* inspect = AddSubverb(
                app, "inspect",
                "Reads a folder of token shards whole: what it holds, and whether "
                "it is sound (exit 3 if not).",
                "{lt2} data tokenize data/samples/tinyshakespeare.txt --out runs/to-inspect && "
                "{lt2} data inspect runs/to-inspect");
            inspect->add_option("directory", *directory, "the folder")->required();
            return [=](VerbOutput& output) {
              return tokenize->parsed() ? RunTokenize(*options, output)
                                        : RunInspect(*directory, output);
            };
          }};
}

}  // namespace lt2
