// lt2 ckpt diff: how far two checkpoints are from each other.
#include <cmath>
#include <iostream>
#include <memory>

#include "absl/strings/str_format.h"
#include "checkpoints/compare.h"
#include "core/status_macros.h"
#include "core/strings.h"
#include "tools/ckpt.h"
#include "tools/exit.h"

namespace lt2 {
namespace {

using Kind = TensorDifference::Kind;

nlohmann::json ToJson(const TensorDifference& tensor) {
  nlohmann::json json = {{"name", tensor.path}, {"equal", tensor.equal()}};
  if (!tensor.first.empty()) json["first"] = tensor.first;
  if (!tensor.second.empty()) json["second"] = tensor.second;
  if (tensor.kind != Kind::kCompared) return json;
  json["elements"] = tensor.elements;
  json["different"] = tensor.different;
  json["max_abs"] = tensor.max_abs;
  json["distance"] = tensor.distance;
  return json;
}

std::string Line(const TensorDifference& tensor) {
  switch (tensor.kind) {
    case Kind::kOnlyInFirst:
      return StrCat("only in the first: ", tensor.first);
    case Kind::kOnlyInSecond:
      return StrCat("only in the second: ", tensor.second);
    case Kind::kOtherShape:
      return StrCat(tensor.first, " -> ", tensor.second);
    case Kind::kCompared:
      break;
  }
  if (tensor.equal()) return "equal";
  std::string line = absl::StrFormat("max %.3e  distance %.3e  %d of %d differ", tensor.max_abs,
                                     tensor.distance, tensor.different, tensor.elements);
  if (tensor.first != tensor.second) StrAppend(&line, "  ", tensor.first, " -> ", tensor.second);
  return line;
}

absl::Status Diff(const std::string& first_path, const std::string& second_path, bool fail,
                  VerbOutput& output) {
  ASSIGN_OR_RETURN(const Checkpoint first, OpenCheckpoint(first_path));
  ASSIGN_OR_RETURN(const Checkpoint second, OpenCheckpoint(second_path));
  ProgressLine progress("comparing");
  ASSIGN_OR_RETURN(const std::vector<TensorDifference> tensors,
                   Compare(first, second, ShowingProgress(progress)));
  progress.End();
  size_t equal = 0;
  output.result = {{"first", first.directory()},
                   {"second", second.directory()},
                   {"steps", {first.info().step, second.info().step}},
                   {"tensors", nlohmann::json::array()}};
  for (const TensorDifference& tensor : tensors) {
    equal += tensor.equal();
    output.result["tensors"].push_back(ToJson(tensor));
    if (!output.json) std::cout << absl::StrFormat("%-52s %s\n", tensor.path, Line(tensor));
  }
  const bool all = equal == tensors.size();
  output.result["equal"] = all;
  if (!output.json) {
    std::cout << StrCat("step ", first.info().step, " against step ", second.info().step, ": ",
                        equal, " of ", tensors.size(), " tensors are equal bit for bit\n");
  }
  if (fail && !all) output.exit_code = kExitFailed;
  return absl::OkStatus();
}

}  // namespace

CkptSubverb AddCkptDiff(CLI::App& ckpt) {
  CLI::App* app = AddSubverb(
      ckpt, "diff",
      "Compares two checkpoints tensor by tensor, whatever meshes wrote them: the largest\n"
      "difference, the distance |a - b| / |a|, and how many elements differ in a bit.",
      "{lt2} train lt2-tiny --max-steps 2 --set checkpoint.every=1 --run-dir runs/diff && "
      "{lt2} ckpt diff runs/diff/checkpoints/step-0000000001 runs/diff");
  auto first = std::make_shared<std::string>(), second = std::make_shared<std::string>();
  auto fail = std::make_shared<bool>(false);
  app->add_option("first", *first, kCheckpointArgument)->required();
  app->add_option("second", *second, "the same")->required();
  app->add_flag("--fail", *fail, "exit 1 if they differ in a tensor");
  return {app, [=](VerbOutput& output) { return Diff(*first, *second, *fail, output); }};
}

}  // namespace lt2
