// Checkpoints to safetensors and back.
#include "checkpoints/export.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "checkpoints/compare.h"
#include "checkpoints/import.h"
#include "tests/checkpoints/safetensors_sample.h"
#include "tests/checkpoints/saving.h"
#include "tests/support/faulty_file.h"
#include "tests/support/temporary_directory.h"

namespace lt2 {
namespace {

constexpr int64_t kScale = 1000;

// All tensors of a model as parameters of the same names.
std::vector<ImportedParam> AllOf(const SafetensorsModel& model) {
  std::vector<ImportedParam> params;
  for (const auto& [name, tensor] : model.tensors()) {
    params.push_back({.name = name, .shape = tensor.shape, .from = name});
  }
  return params;
}

std::vector<std::string> FilesIn(const std::string& folder) {
  return FileSystem::Get().List(folder).value();
}

class ExportTest : public testing::Test {
 protected:
  Checkpoint Save(int ranks, uint64_t seed, int64_t scale = 1) {
    const auto saved = SaveSample(Path("run"), 3, seed, ranks, {}, scale);
    EXPECT_TRUE(saved.ok()) << saved.status();
    saved_ = saved->path;
    return Checkpoint::Open(saved_).value();
  }
  std::string Path(const std::string& name) const { return JoinPath(directory_.path(), name); }
  TemporaryDirectory directory_;
  std::string saved_;
};

TEST_F(ExportTest, ParametersComeBackBitForBit) {
  for (const int64_t file_bytes : {int64_t{0}, int64_t{1} << 20, int64_t{1}}) {
    SCOPED_TRACE(testing::Message() << "file_bytes " << file_bytes);
    const uint64_t seed = 5 + static_cast<uint64_t>(file_bytes);
    const Checkpoint from = Save(3, seed, kScale);
    const std::string out = Path(StrCat("out", file_bytes)),
                      back = Path(StrCat("back", file_bytes));
    const int64_t before = from.bytes_read();
    const auto exported = ExportSafetensors(from, out + "/", {.file_bytes = file_bytes});
    ASSERT_TRUE(exported.ok()) << exported.status();
    EXPECT_EQ(from.bytes_read() - before, exported->bytes) << "each byte is read once";

    const auto model = SafetensorsModel::Open(out);
    ASSERT_TRUE(model.ok()) << model.status();
    EXPECT_EQ(model->metadata().at("format"), "pt");
    EXPECT_EQ(model->metadata().at(kMetadataConfig), from.info().config);
    EXPECT_EQ(model->metadata().at(kMetadataStep), "3");
    EXPECT_EQ(FileSystem::Get().ReadFile(JoinPath(out, "config.toml")).value(), from.info().config);
    const auto bytes = ImportParams(*model, AllOf(*model), from.info(), back);
    ASSERT_TRUE(bytes.ok()) << bytes.status();
    EXPECT_LT(model->bytes_read(), exported->bytes * 21 / 20);

    const auto report = Verify(back);
    ASSERT_TRUE(report.ok() && report->sound()) << report->status();
    EXPECT_EQ(report->manifest.bytes(), *bytes);
    const auto again = Checkpoint::Open(back);
    const auto differences = Compare(from, *again);
    ASSERT_TRUE(differences.ok()) << differences.status();
    int64_t params = 0;
    for (const TensorDifference& tensor : *differences) {
      const bool param = tensor.path.starts_with("param/");
      EXPECT_EQ(tensor.equal(), param) << tensor.path;
      EXPECT_TRUE(param || tensor.kind == TensorDifference::Kind::kOnlyInFirst) << tensor.path;
      params += param;
    }
    EXPECT_EQ(params, exported->tensors);
  }
}

TEST_F(ExportTest, FilesAreAtMostAsLargeAsAskedForOrOfOneTensor) {
  const Checkpoint from = Save(2, 1, kScale);
  constexpr int64_t kMost = 1 << 20;
  const auto exported = ExportSafetensors(from, Path("out"), {.file_bytes = kMost});
  ASSERT_TRUE(exported.ok()) << exported.status();
  int files = 0;
  for (const std::string& name : FilesIn(Path("out"))) {
    if (!name.ends_with(".safetensors")) continue;
    ++files;
    const auto model = SafetensorsModel::Open(JoinPath(Path("out"), name));
    ASSERT_TRUE(model.ok()) << model.status();
    int64_t bytes = 0;
    for (const auto& [tensor, stored] : model->tensors()) bytes += stored.bytes;
    EXPECT_TRUE(bytes <= kMost || model->tensors().size() == 1) << name;
  }
  EXPECT_EQ(files, exported->files);
  EXPECT_GT(files, 2);
  EXPECT_LT(files, exported->tensors);
  EXPECT_TRUE(FileSystem::Get().Exists(JoinPath(Path("out"), kSafetensorsIndexFile)));
}

TEST_F(ExportTest, BFloat16IsRounded) {
  const Checkpoint from = Save(2, 4);
  ASSERT_TRUE(ExportSafetensors(from, Path("out"), {.type = FloatType::kBF16}).ok());
  const auto model = SafetensorsModel::Open(Path("out"));
  ASSERT_TRUE(model.ok()) << model.status();
  for (const SampleTensor& tensor : SampleTensors()) {
    if (tensor.group != "param") continue;
    const SafeTensor* found = model->Find(tensor.name);
    ASSERT_NE(found, nullptr) << tensor.name;
    EXPECT_EQ(found->dtype, "BF16");
    std::vector<uint16_t> bits(found->shape.size());
    ASSERT_TRUE(model->Read(tensor.name, 0, std::as_writable_bytes(std::span(bits))).ok());
    const std::vector<double> values =
        SamplePiece(tensor, Box::Whole(tensor.shape), 4).tensor.ToDoubles();
    for (size_t i = 0; i < bits.size(); ++i) {
      ASSERT_EQ(bits[i], BFloat16::Of(static_cast<float>(values[i])).bits)
          << tensor.name << " " << i;
    }
  }
}

TEST_F(ExportTest, DamageIsToldAndLeavesNothing) {
  const Checkpoint from = Save(2, 1);
  const StoredTensor& tensor = *from.manifest().Find("param/embed.weight");
  const StoredBox& box = tensor.boxes[0];
  const std::byte wrong[4] = {};
  ASSERT_TRUE(ByteFile::OpenToWrite(JoinPath(saved_, box.file))->Write(box.offset, wrong).ok());
  const absl::Status status = ExportSafetensors(from, Path("out"), {}).status();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_NE(status.message().find(tensor.path()), std::string::npos) << status;
  EXPECT_EQ(FilesIn(directory_.path()), std::vector<std::string>{"run"});
}

TEST_F(ExportTest, AFileThatGetsShorterIsDamageAndLeavesNothing) {
  const Checkpoint from = Save(2, 1, kScale);
  ASSERT_TRUE(ExportSafetensors(from, Path("out"), {}).ok());
  const auto model = SafetensorsModel::Open(Path("out"));
  ASSERT_TRUE(model.ok()) << model.status();
  std::filesystem::resize_file(JoinPath(Path("out"), kSafetensorsFile), 100'000);
  const absl::Status status =
      ImportParams(*model, AllOf(*model), from.info(), Path("back")).status();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_NE(status.message().find(kSafetensorsFile), std::string::npos) << status;
  EXPECT_EQ(FilesIn(directory_.path()), (std::vector<std::string>{"out", "run"}));
}

TEST_F(ExportTest, AnExistingNameIsRefused) {
  const Checkpoint from = Save(2, 1);
  EXPECT_TRUE(absl::IsInvalidArgument(ExportSafetensors(from, saved_, {}).status()));
  ExpectSample(saved_, 1);
}

TEST_F(ExportTest, PartsZerosAndOtherTypes) {
  const std::vector<float> floats = {1, 2, 3, 4, 5, 6};
  const std::string bytes(reinterpret_cast<const char*>(floats.data()), sizeof(float) * 6);
  const std::string path = Path("m.safetensors");
  ASSERT_TRUE(FileSystem::Get()
                  .WriteFile(path, SafetensorsBytes(
                                       {{"w", "F32", {3, 2}, bytes}, {"n", "I32", {6}, bytes}}))
                  .ok());
  const auto model = SafetensorsModel::Open(path);
  ASSERT_TRUE(model.ok()) << model.status();
  const std::vector<ImportedParam> params = {{.name = "a", .shape = {1, 2}, .from = "w"},
                                             {.name = "b", .shape = {4}, .from = "w", .begin = 2},
                                             {.name = "z", .shape = {2, 1}, .from = ""}};
  ASSERT_TRUE(ImportParams(*model, params, SampleInfo(0), Path("back")).ok());
  auto back = Checkpoint::Open(Path("back"));
  ASSERT_TRUE(back.ok()) << back.status();
  const auto values = [&](const char* name, const Shape& shape) {
    TensorPiece piece = EmptyPiece({"param", name, DType::kF32, shape}, Box::Whole(shape));
    EXPECT_TRUE(back->Load({&piece, 1}).ok()) << name;
    return piece.tensor.ToDoubles();
  };
  EXPECT_EQ(values("a", {1, 2}), (std::vector<double>{1, 2}));
  EXPECT_EQ(values("b", {4}), (std::vector<double>{3, 4, 5, 6}));
  EXPECT_EQ(values("z", {2, 1}), (std::vector<double>{0, 0}));

  const std::vector<ImportedParam> whole = {{.name = "n", .shape = {6}, .from = "n"}};
  const absl::Status status = ImportParams(*model, whole, SampleInfo(0), Path("more")).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_NE(status.message().find("n is stored as I32"), std::string::npos) << status;
}

TEST_F(ExportTest, WhateverFailsTheNameIsWholeOrAbsent) {
  const Checkpoint from = Save(2, 1);
  for (const auto mode : {FaultyFileSystem::Mode::kOnce, FaultyFileSystem::Mode::kCrash}) {
    int failed = 0;
    for (int k = 1;; ++k) {
      SCOPED_TRACE(testing::Message() << "change " << k);
      const std::string folder = Path(StrCat("mode", static_cast<int>(mode), "-", k));
      const std::string out = JoinPath(folder, "out");
      FaultyFileSystem files;
      files.FailAt(k, mode);
      const absl::Status status = ExportSafetensors(from, out, {.file_bytes = 3000}).status();
      if (files.Exists(out)) {
        EXPECT_TRUE(SafetensorsModel::Open(out).ok());
      }
      if (status.ok()) break;
      ++failed;
      EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
      if (mode == FaultyFileSystem::Mode::kOnce && !files.Exists(out) && files.Exists(folder)) {
        EXPECT_EQ(FilesIn(folder), std::vector<std::string>{});
      }
    }
    EXPECT_GE(failed, 8);  // the folder, files, index, config, two folders, the name
  }
}

}  // namespace
}  // namespace lt2
