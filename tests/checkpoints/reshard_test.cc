#include "checkpoints/reshard.h"

#include <gtest/gtest.h>

#include "checkpoints/compare.h"
#include "core/strings.h"
#include "tests/checkpoints/saving.h"
#include "tests/support/faulty_file.h"
#include "tests/support/temporary_directory.h"

namespace lt2 {
namespace {

TEST(Reshard, KeepsEveryBitAndReadsEachOnce) {
  for (const auto& [ranks, files] : std::vector<std::pair<int, int>>{{3, 1}, {1, 4}, {4, 7}}) {
    SCOPED_TRACE(StrCat(ranks, " -> ", files));
    constexpr int64_t kScale = 1000;
    TemporaryDirectory directory;
    const uint64_t seed = static_cast<uint64_t>(files);
    const auto saved = SaveSample(directory.path(), 3, seed, ranks, {}, kScale);
    const std::string out = JoinPath(directory.path(), "new/resharded");

    const auto from = Checkpoint::Open(saved->path);
    ASSERT_TRUE(from.ok()) << from.status();
    const auto bytes = Reshard(*from, out + "/", files);
    ASSERT_TRUE(bytes.ok()) << bytes.status();
    int64_t needed = 0;
    for (const StoredTensor& tensor : from->manifest().tensors) needed += tensor.bytes();
    EXPECT_LE(from->bytes_read(), needed + needed / 20) << needed;

    const auto report = Verify(out);
    ASSERT_TRUE(report.ok() && report->sound()) << report->status();
    const Manifest& manifest = report->manifest;
    EXPECT_EQ(manifest.bytes(), *bytes);
    EXPECT_EQ(manifest.files.size(), size_t(files) + 1);  // and the index
    EXPECT_EQ(manifest.info.ranks, files);
    EXPECT_NE(manifest.info.id, from->info().id);
    EXPECT_EQ(manifest.info.extra, from->info().extra);
    for (const StoredTensor& tensor : manifest.tensors) {
      EXPECT_EQ(tensor.boxes.size(), std::min<size_t>(files, tensor.shape[0])) << tensor.path();
    }
    int64_t largest = 0, smallest = *bytes;
    for (int r = 0; r < files; ++r) {
      largest = std::max(largest, manifest.files[r].bytes);
      smallest = std::min(smallest, manifest.files[r].bytes);
    }
    EXPECT_LT(largest - smallest, needed / 20) << "shares are not even";
    ExpectSample(out, seed, kScale);
    const auto second = Checkpoint::Open(out);
    const auto differences = Compare(*from, *second);
    for (const TensorDifference& tensor : *differences) {
      EXPECT_TRUE(tensor.equal()) << tensor.path;
    }
  }
}

TEST(Reshard, DamageIsToldAndLeavesNothing) {
  TemporaryDirectory directory;
  const auto saved = SaveSample(directory.path(), 3, 1, 2);
  const auto from = Checkpoint::Open(saved->path);
  const StoredTensor& tensor = from->manifest().tensors[5];
  const StoredBox& box = tensor.boxes[0];
  const std::byte wrong[4] = {};
  ASSERT_TRUE(
      ByteFile::OpenToWrite(JoinPath(saved->path, box.file))->Write(box.offset, wrong).ok());
  const std::string out = JoinPath(directory.path(), "out");
  const absl::Status status = Reshard(*from, out, 2).status();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_NE(status.message().find(tensor.path()), std::string::npos) << status;
  EXPECT_EQ(Leftovers(directory.path()), std::vector<std::string>{});
}

TEST(Reshard, AnExistingNameIsRefused) {
  TemporaryDirectory directory;
  const auto saved = SaveSample(directory.path(), 3, 1, 2);
  const auto from = Checkpoint::Open(saved->path);
  const absl::Status status = Reshard(*from, saved->path, 2).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  ExpectSample(saved->path, 1);
}

TEST(Reshard, WhateverFailsTheNameIsWholeOrAbsent) {
  for (const auto mode : {FaultyFileSystem::Mode::kOnce, FaultyFileSystem::Mode::kCrash}) {
    int failed = 0;
    for (int k = 1;; ++k) {
      SCOPED_TRACE(testing::Message() << "change " << k);
      TemporaryDirectory directory;
      const auto saved = SaveSample(directory.path(), 3, 1, 2);
      const auto from = Checkpoint::Open(saved->path);
      const std::string out = JoinPath(directory.path(), "out");
      FaultyFileSystem files;
      files.FailAt(k, mode);
      const absl::Status status = Reshard(*from, out, 3).status();
      if (files.Exists(out)) ExpectSample(out, 1);
      if (status.ok()) break;
      ++failed;
      EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
      if (mode == FaultyFileSystem::Mode::kOnce && !files.Exists(out)) {
        EXPECT_EQ(Leftovers(directory.path()), std::vector<std::string>{});
      }
    }
    EXPECT_EQ(failed, 9);  // the folder, three shards, index, manifest, two folders, the name
  }
}

}  // namespace
}  // namespace lt2
