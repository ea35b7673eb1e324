// lt2 score: log-probabilities of given token ids; the parity door for other programs.
#include <filesystem>
#include <iostream>
#include <sstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "core/file.h"
#include "core/hdf5.h"
#include "core/status_macros.h"
#include "core/strings.h"
#include "kernels/token_log_probs.h"
#include "launch/model_loader.h"
#include "launch/threads.h"
#include "tools/device.h"
#include "tools/flags.h"

namespace lt2 {
namespace {

struct ScoreFlags {
  std::string checkpoint, ids_file, out, precision = "fp32", device = "auto";
};

// One sequence a line, ids separated by blanks or commas.
absl::StatusOr<std::vector<std::vector<int32_t>>> ReadSequences(const std::string& path,
                                                                int64_t vocab) {
  ASSIGN_OR_RETURN(std::string text, FileSystem::Get().ReadFile(path, kMostText));
  std::vector<std::vector<int32_t>> sequences;
  std::istringstream lines(text);
  std::string line;
  for (int64_t number = 1; std::getline(lines, line); ++number) {
    std::vector<int32_t> ids;
    for (const auto word : absl::StrSplit(line, absl::ByAnyChar(", \t\r"), absl::SkipEmpty())) {
      int32_t id = 0;
      if (!absl::SimpleAtoi(word, &id) || id < 0 || id >= vocab) {
        return absl::InvalidArgumentError(StrCat(path, ":", number, ": '", std::string(word),
                                                 "' is no token id; they are 0 to ", vocab - 1));
      }
      ids.push_back(id);
    }
    if (!ids.empty()) sequences.push_back(std::move(ids));
  }
  if (sequences.empty()) return absl::InvalidArgumentError(StrCat(path, " holds no token ids"));
  return sequences;
}

bool SameFile(const std::string& a, const std::string& b) {
  namespace fs = std::filesystem;
  std::error_code error;
  return fs::weakly_canonical(fs::absolute(a), error) ==
             fs::weakly_canonical(fs::absolute(b), error) ||
         fs::equivalent(a, b, error);
}

struct Scored {
  std::vector<int32_t> ids, cu_seqlens;
  Tensor logits, log_probs;
};

absl::Status WriteScored(const std::string& path, const Scored& scored) {
  const auto rows = [](const std::vector<int32_t>& x) {
    return Shape{static_cast<int64_t>(x.size())};
  };
  const Tensor logits = scored.logits.To({Backend::kCpu});
  const Tensor log_probs = scored.log_probs.To({Backend::kCpu});
  const h5::Type type = logits.dtype() == DType::kF64 ? h5::Type::kF64 : h5::Type::kF32;
  ASSIGN_OR_RETURN(h5::File file, h5::File::Create(path));
  RETURN_IF_ERROR(file.Write("ids", h5::Type::kI32, rows(scored.ids), scored.ids.data()));
  RETURN_IF_ERROR(
      file.Write("cu_seqlens", h5::Type::kI32, rows(scored.cu_seqlens), scored.cu_seqlens.data()));
  RETURN_IF_ERROR(file.Write("logits", type, logits.shape(), logits.raw()));
  RETURN_IF_ERROR(file.Write("log_probs", type, log_probs.shape(), log_probs.raw()));
  return file.Close();
}

// The file is whole or it is not there.
absl::Status PublishScored(const std::string& path, const Scored& scored) {
  const std::string temporary = TemporaryName(path);
  absl::Status status = WriteScored(temporary, scored);
  if (status.ok()) status = FileSystem::Get().Rename(temporary, path);
  if (!status.ok()) (void)FileSystem::Get().RemoveAll(temporary);
  return status;
}

absl::Status RunScore(const ScoreFlags& flags, VerbOutput& output) {
  ASSIGN_OR_RETURN(const Device device, ChooseDevice(flags.device));
  if (!flags.out.empty() && SameFile(flags.out, flags.ids_file)) {
    return absl::InvalidArgumentError(
        StrCat("--out ", flags.out, " would replace --ids-file; name another file"));
  }
  UseThreadsFor(*MakeGroupOfOne("world"));
  ASSIGN_OR_RETURN(const DType dtype, ChooseDType(flags.precision, device));
  ASSIGN_OR_RETURN(const LoadedModel loaded, LoadModel(flags.checkpoint, dtype, device));
  const int64_t vocab = loaded.config.model.vocab;
  ASSIGN_OR_RETURN(const auto sequences, ReadSequences(flags.ids_file, vocab));

  std::vector<int32_t> ids, targets, cu = {0};
  for (const std::vector<int32_t>& sequence : sequences) {
    ids.insert(ids.end(), sequence.begin(), sequence.end());
    targets.insert(targets.end(), sequence.begin() + 1, sequence.end());
    targets.push_back(-1);  // nothing follows the last one
    cu.push_back(static_cast<int32_t>(ids.size()));
  }
  Stream stream{.device = device};
  const Shape shape = {static_cast<int64_t>(ids.size())};
  const Documents documents = Documents::Of(cu, device);
  const Tensor hidden =
      loaded.model->Hidden(stream, Tensor::FromHost(ids, shape, device), documents);
  const Tensor logits = loaded.model->Logits(stream, hidden);
  const Tensor log_probs = Tensor::Empty(shape, dtype, device);
  TokenLogProbs(stream, {.logits_NV = logits,
                         .targets_N = Tensor::FromHost(targets, shape, device),
                         .log_probs_N = log_probs});

  const std::vector<double> values = log_probs.ToDoubles();
  nlohmann::json rows = nlohmann::json::array();
  double sum = 0;
  for (size_t s = 0; s < sequences.size(); ++s) {
    const std::vector<double> row(values.begin() + cu[s], values.begin() + cu[s + 1] - 1);
    double row_sum = 0;
    for (double value : row) row_sum += value;
    sum += row_sum;
    rows.push_back(row);
    if (!output.json) {
      std::cout << absl::StrFormat("sequence %d: %d tokens, log-probability %.6f\n", s,
                                   sequences[s].size(), row_sum);
    }
  }
  if (!flags.out.empty()) {
    RETURN_IF_ERROR(PublishScored(flags.out, {.ids = std::move(ids),
                                              .cu_seqlens = std::move(cu),
                                              .logits = logits,
                                              .log_probs = log_probs}));
  }
  output.result = {{"checkpoint", loaded.checkpoint}, {"log_probs", rows}, {"sum", sum}};
  return absl::OkStatus();
}

}  // namespace

Verb ScoreVerb() {
  return {.name = "score",
          .summary = "Prints log-probabilities of given token ids, and writes logits.",
          .example =
              "{lt2} train lt2-tiny --max-steps 20 --run-dir runs/first && "
              "echo 82 79 77 69 79 58 > runs/ids.txt && "
              "{lt2} score runs/first --ids-file runs/ids.txt",
          .add = [](CLI::App& app) -> VerbBody {
            auto flags = std::make_shared<ScoreFlags>();
            app.add_option("checkpoint", flags->checkpoint, "a checkpoint or a run directory")
                ->required();
            app.add_option("--ids-file", flags->ids_file,
                           "one sequence a line: token ids separated by blanks or commas")
                ->required();
            app.add_option("--out", flags->out,
                           "HDF5 file for ids, cu_seqlens, logits [tokens, vocab] and log_probs")
                ->check(NewFile());
            app.add_option("--precision", flags->precision, "fp32 or fp64")
                ->check(CLI::IsMember({"fp32", "fp64"}));
            AddDeviceFlag(app, &flags->device);
            return [flags](VerbOutput& output) { return RunScore(*flags, output); };
          }};
}

}  // namespace lt2
