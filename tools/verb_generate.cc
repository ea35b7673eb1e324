// lt2 generate: samples text from a checkpoint.
#include <iostream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "core/allocator.h"
#include "core/status_macros.h"
#include "core/strings.h"
#include "launch/memory_plan.h"
#include "launch/model_loader.h"
#include "launch/threads.h"
#include "model/decoder.h"
#include "tools/device.h"
#include "tools/flags.h"

namespace lt2 {
namespace {

struct GenerateFlags {
  std::string checkpoint, prompt, ids, device = "auto";
  int64_t max_tokens = 200;
  double exit_threshold = 1;
  SampleOptions sample;
};

absl::StatusOr<std::vector<int32_t>> PromptIds(const GenerateFlags& flags,
                                               const Tokenizer& tokenizer, int64_t vocab) {
  std::vector<int32_t> ids;
  if (flags.ids.empty()) {
    ids = tokenizer.Encode(flags.prompt);
    if (ids.empty()) {
      return absl::InvalidArgumentError("the prompt is empty; give --prompt TEXT or --ids 1,2,3");
    }
  } else {
    for (const auto piece : absl::StrSplit(flags.ids, ',')) {
      int32_t id = 0;
      if (!absl::SimpleAtoi(piece, &id)) {
        return absl::InvalidArgumentError(
            StrCat("--ids: '", std::string(piece), "' is no number; write 1,2,3"));
      }
      ids.push_back(id);
    }
  }
  for (int32_t id : ids) {
    if (id < 0 || id >= vocab) {
      return absl::InvalidArgumentError(
          StrCat("token id ", id, " is outside the vocabulary of ", vocab));
    }
  }
  return ids;
}

// The caches of a generation must fit beside what is loaded.
absl::Status CheckCaches(const LoadedModel& loaded, Device device, int64_t prompt,
                         int64_t max_tokens) {
  const MetaMeter meter;
  const auto states =
      loaded.model->MakeStates(1, prompt + max_tokens, loaded.dtype, {Backend::kMeta});
  const int64_t needed = meter.memory().live, budget = MemoryBudget(device, 1);
  if (needed <= budget) return absl::OkStatus();
  return absl::InvalidArgumentError(
      StrCat("--max-tokens ", max_tokens, " after a prompt of ", prompt, " needs caches of ",
             needed >> 20, " MiB; there are ", budget >> 20, ": sample fewer tokens"));
}

absl::Status RunGenerate(const GenerateFlags& flags, VerbOutput& output) {
  ASSIGN_OR_RETURN(const Device device, ChooseDevice(flags.device));
  UseThreadsFor(*MakeGroupOfOne("world"));
  ASSIGN_OR_RETURN(const LoadedModel loaded, LoadModel(flags.checkpoint, DType::kF32, device));
  ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer,
                   MakeTokenizer(loaded.config.data.tokenizer));
  if (flags.exit_threshold < 1 && !loaded.config.model.exit_gate) {
    return absl::InvalidArgumentError(
        StrCat("--exit-threshold ", flags.exit_threshold, ": ", loaded.checkpoint,
               " has no exit gate (model.exit_gate); every token leaves after the last loop"));
  }
  loaded.model->set_exit_threshold(flags.exit_threshold);
  const int64_t vocab = loaded.config.model.vocab;
  ASSIGN_OR_RETURN(const std::vector<int32_t> prompt, PromptIds(flags, *tokenizer, vocab));

  RETURN_IF_ERROR(
      CheckCaches(loaded, device, static_cast<int64_t>(prompt.size()), flags.max_tokens));
  Stream stream{.device = device};
  const int64_t capacity = static_cast<int64_t>(prompt.size()) + flags.max_tokens;
  Decoder decoder(*loaded.model, stream, 1, capacity, loaded.dtype);
  std::vector<int32_t> ids;
  std::string text;
  Tensor logits = decoder.Prefill(std::span(&prompt, 1));
  while (static_cast<int64_t>(ids.size()) < flags.max_tokens) {
    ids.push_back(SampleToken(logits.ToDoubles(), flags.sample, ids.size()));
    if (ids.back() < tokenizer->vocab_size()) {
      ASSIGN_OR_RETURN(const std::string piece, tokenizer->Decode(std::span(&ids.back(), 1)));
      text += piece;
      if (!output.json) std::cout << piece << std::flush;
    }
    if (static_cast<int64_t>(ids.size()) < flags.max_tokens) {
      logits = decoder.Step(std::span(&ids.back(), 1));
    }
  }
  if (!output.json) std::cout << std::endl;
  output.result = {{"checkpoint", loaded.checkpoint}, {"ids", ids}, {"text", text}};
  return absl::OkStatus();
}

}  // namespace

Verb GenerateVerb() {
  return {.name = "generate",
          .summary = "Samples text from a checkpoint or a run's newest one.",
          .example =
              "{lt2} train lt2-tiny --max-steps 20 --run-dir runs/first && "
              "{lt2} generate runs/first --prompt ROMEO: --max-tokens 100",
          .add = [](CLI::App& app) -> VerbBody {
            auto flags = std::make_shared<GenerateFlags>();
            app.add_option("checkpoint", flags->checkpoint, "a checkpoint or a run directory")
                ->required();
            app.add_option("--prompt", flags->prompt, "text to go on from");
            app.add_option("--ids", flags->ids, "token ids instead of text: 1,2,3")
                ->excludes("--prompt");
            app.add_option("--max-tokens", flags->max_tokens, "how many to sample")
                ->check(WholeNumber(1, 1 << 30));
            app.add_option("--temperature", flags->sample.temperature, "0: always the likeliest")
                ->check(NumberFrom(0));
            app.add_option("--top-k", flags->sample.top_k, "among the k likeliest; 0: all")
                ->check(WholeNumber(0));
            app.add_option("--top-p", flags->sample.top_p,
                           "among the likeliest that together have this probability")
                ->check(Share());
            app.add_option("--exit-threshold", flags->exit_threshold,
                           "with an exit gate: read a token out after the first loop by which it "
                           "leaves with this probability; 1: after the last")
                ->check(Share());
            app.add_option("--seed", flags->sample.seed, "the same seed, the same text")
                ->check(WholeNumber(0));
            AddDeviceFlag(app, &flags->device);
            return [flags](VerbOutput& output) { return RunGenerate(*flags, output); };
          }};
}

}  // namespace lt2
