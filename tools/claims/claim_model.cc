#include "tools/claims/claim_model.h"

#include <filesystem>

#include "core/file.h"
#include "core/philox.h"
#include "core/status_macros.h"
#include "core/strings.h"
#include "kernels/init.h"
#include "launch/model_loader.h"
#include "launch/presets.h"

namespace lt2 {

ClaimModel RandomClaimModel(const std::string& name, const std::string& toml, uint64_t seed) {
  const absl::StatusOr<ConfigTable> table = ConfigTable::Parse(toml, name);
  CHECK(table.ok()) << table.status().ToString();
  const ModelConfig config = ReadModelConfig(*table);
  CHECK(table->Finish().ok()) << table->Finish().ToString();
  ClaimModel out{.name = name, .model = std::make_unique<LanguageModel>(config)};
  for (Param* param : out.model->params().all()) {
    const Shape& shape = param->spec.shape;
    param->BindValue(Tensor::Empty(shape, DType::kF64, {Backend::kCpu}));
    InitTensor(param->spec, Box::Whole(shape), seed, param->value);
  }
  return out;
}

absl::StatusOr<ClaimModel> LoadClaimModel(const std::string& path) {
  ASSIGN_OR_RETURN(LoadedModel loaded, LoadModel(path, DType::kF64, {Backend::kCpu}));
  return ClaimModel{.name = StrCat(std::filesystem::path(path).filename().string(), " after ",
                                   loaded.step, " steps"),
                    .model = std::move(loaded.model)};
}

absl::StatusOr<std::vector<int32_t>> SampleBytes(int64_t rows, int64_t length, uint64_t seed) {
  const std::string path = ResolveInputPath("data/samples/tinyshakespeare.txt", "");
  ASSIGN_OR_RETURN(const std::string text, FileSystem::Get().ReadFile(path));
  const int64_t room = static_cast<int64_t>(text.size()) - length;
  if (room <= 0) return absl::InvalidArgumentError(StrCat(path, ": too short"));
  std::vector<int32_t> ids;
  for (int64_t row = 0; row < rows; ++row) {
    const double u = OpenUniform(Philox(seed, row)[0]);
    const int64_t begin = static_cast<int64_t>(u * static_cast<double>(room));
    for (int64_t i = 0; i < length; ++i) {
      ids.push_back(static_cast<unsigned char>(text[begin + i]));
    }
  }
  return ids;
}

}  // namespace lt2
