// Damaged checkpoints: every flipped bit is found and named, and an older checkpoint takes over.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "tests/checkpoints/saving.h"
#include "tests/support/faulty_file.h"
#include "tests/support/temporary_directory.h"

namespace lt2 {
namespace {

void FlipBit(const std::string& path, int64_t byte, int bit) {
  std::string content = FileSystem::Get().ReadFile(path).value();
  content[byte] = static_cast<char>(content[byte] ^ (1 << bit));
  ASSERT_TRUE(FileSystem::Get().WriteFile(path, content).ok());
}

// The tensor whose bytes include this one, or "".
std::string TensorAt(const Manifest& manifest, const std::string& file, int64_t byte) {
  for (const auto& [tensor, stored] : manifest.BoxesOf(file)) {
    const int64_t end = stored->offset + stored->box.size() * SizeOf(tensor->dtype);
    if (stored->offset <= byte && byte < end) return tensor->path();
  }
  return "";
}

class DamageTest : public testing::Test {
 protected:
  void SetUp() override {
    older_ = SaveSample(directory_.path(), 1, 21, 2).value().path;
    newer_ = SaveSample(directory_.path(), 2, 22, 3).value().path;
    manifest_ = ReadManifest(newer_).value();
  }
  // This rank's rows of every tensor.
  static std::vector<TensorPiece> RowsOf(const Communicator& world) {
    std::vector<TensorPiece> pieces;
    for (const SampleTensor& tensor : SampleTensors()) {
      const int64_t rows = tensor.shape[0];
      pieces.push_back(
          EmptyPiece(tensor, Box::RowsOf(tensor.shape, rows * world.rank() / world.size(),
                                         rows * (world.rank() + 1) / world.size())));
    }
    return pieces;
  }
  // Loads rows of every tensor on each of several ranks, which must get the same status.
  absl::Status LoadByGroup(int ranks) {
    std::vector<absl::Status> statuses(ranks);
    RunRanks(ranks, [&](Communicator& world) {
      absl::StatusOr<Checkpoint> checkpoint = Checkpoint::Open(newer_, world);
      absl::Status& status = statuses[world.rank()];
      status = checkpoint.status();
      if (!status.ok()) return;
      status = checkpoint->Load(RowsOf(world));
    });
    for (const absl::Status& status : statuses) EXPECT_EQ(status, statuses[0]);
    return statuses[0];
  }
  // Verify finds it in this file and tensor, so do ranks that load the checkpoint, and
  // FindNewestSound falls back with a warning.
  void ExpectFound(const std::string& file, const std::string& tensor) {
    const auto report = Verify(newer_);
    ASSERT_TRUE(report.ok()) << report.status();
    const bool found =
        std::any_of(report->damages.begin(), report->damages.end(), [&](const Damage& damage) {
          return damage.file == JoinPath(newer_, file) && damage.tensor == tensor &&
                 damage.what.find(file) != std::string::npos &&
                 damage.what.find(tensor) != std::string::npos;
        });
    EXPECT_TRUE(found) << report->status();
    EXPECT_TRUE(absl::IsDataLoss(report->status()));

    for (int ranks : {1, 3}) {
      const absl::Status loaded = LoadByGroup(ranks);
      EXPECT_TRUE(absl::IsDataLoss(loaded)) << loaded;
      EXPECT_NE(loaded.message().find(JoinPath(newer_, file)), std::string::npos) << loaded;
      EXPECT_NE(loaded.message().find(tensor), std::string::npos) << loaded;
    }

    std::vector<std::string> warnings;
    const auto sound = FindNewestSound(
        directory_.path(), [&](const std::string& warning) { warnings.push_back(warning); });
    ASSERT_TRUE(sound.ok()) << sound.status();
    EXPECT_EQ(*sound, older_);
    ASSERT_EQ(warnings.size(), 1u);
    EXPECT_NE(warnings[0].find(file), std::string::npos) << warnings[0];
    EXPECT_NE(warnings[0].find(tensor), std::string::npos) << warnings[0];
  }

  TemporaryDirectory directory_;
  std::string older_, newer_;
  Manifest manifest_;
};

TEST_F(DamageTest, AFlippedBitAnywhereIsFoundAndNamed) {
  constexpr uint64_t kSeed = 5;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  Dice dice(kSeed);
  int in_tensors = 0, in_frames = 0;
  for (int trial = 0; trial < 150; ++trial) {
    const StoredFile& file = manifest_.files[dice.Below(manifest_.files.size())];
    const int64_t byte = dice.Below(file.bytes);
    const int bit = static_cast<int>(dice.Below(8));
    SCOPED_TRACE(testing::Message() << file.name << " byte " << byte << " bit " << bit);
    const std::string tensor = TensorAt(manifest_, file.name, byte);
    FlipBit(JoinPath(newer_, file.name), byte, bit);
    ExpectFound(file.name, tensor);
    if (tensor.empty()) {
      ++in_frames;
      EXPECT_TRUE(absl::IsDataLoss(Checkpoint::Open(newer_).status()));
    } else {
      ++in_tensors;
      for (const SampleTensor& sample : SampleTensors()) {
        auto checkpoint = Checkpoint::Open(newer_);
        ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
        TensorPiece piece = EmptyPiece(sample, Box::Whole(sample.shape));
        const absl::Status loaded = checkpoint->Load({&piece, 1});
        EXPECT_EQ(absl::IsDataLoss(loaded), sample.path() == tensor) << loaded;
      }
    }
    FlipBit(JoinPath(newer_, file.name), byte, bit);
  }
  EXPECT_GT(in_tensors, 10);
  EXPECT_GT(in_frames, 10);
  EXPECT_TRUE(Verify(newer_)->sound());
}

TEST_F(DamageTest, TruncatedShard) {
  const std::string path = JoinPath(newer_, ShardName(1));
  for (int64_t bytes : {int64_t{0}, int64_t{100}, int64_t{5000}}) {
    std::filesystem::resize_file(path, bytes);
    ExpectFound(ShardName(1), "");
    // The tensors that lay in what is gone are named as well.
    EXPECT_GT(Verify(newer_)->damages.size(), 1u);
  }
}

TEST_F(DamageTest, MissingShard) {
  std::filesystem::remove(JoinPath(newer_, ShardName(2)));
  ExpectFound(ShardName(2), "");
}

TEST_F(DamageTest, ShardOfAnotherSaveOfTheSameState) {
  TemporaryDirectory other;
  const auto again = SaveSample(other.path(), 2, 22, 3);
  ASSERT_TRUE(again.ok());
  std::filesystem::copy_file(JoinPath(again->path, ShardName(0)), JoinPath(newer_, ShardName(0)),
                             std::filesystem::copy_options::overwrite_existing);
  ExpectFound(ShardName(0), "");
}

TEST_F(DamageTest, TruncatedOrMissingManifest) {
  const std::string path = JoinPath(newer_, kManifestFile);
  std::filesystem::resize_file(path, std::filesystem::file_size(path) / 2);
  ExpectFound(kManifestFile, "");
  std::filesystem::remove(path);
  ExpectFound(kManifestFile, "");
}

TEST_F(DamageTest, AllDamagedIsAnErrorNotAFreshStart) {
  for (const std::string& path : {older_, newer_}) {
    std::filesystem::remove(JoinPath(path, ShardName(0)));
  }
  int warnings = 0;
  const auto sound = FindNewestSound(directory_.path(), [&](const std::string&) { ++warnings; });
  EXPECT_TRUE(absl::IsDataLoss(sound.status())) << sound.status();
  EXPECT_EQ(warnings, 1) << "the other one is told by the error";
}

TEST_F(DamageTest, OnlyWhatIsWantedMustBeSound) {
  const StoredTensor& tensor = manifest_.tensors.front();
  const StoredBox& box = tensor.boxes.front();
  FlipBit(JoinPath(newer_, box.file), box.offset, 0);
  auto checkpoint = Checkpoint::Open(newer_);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_TRUE(checkpoint->Load({}).ok());
  for (const SampleTensor& sample : SampleTensors()) {
    const TensorPiece piece = EmptyPiece(sample, Box::Whole(sample.shape));
    const absl::Status status = checkpoint->Load({&piece, 1});
    EXPECT_EQ(absl::IsDataLoss(status), sample.path() == tensor.path()) << status;
    const bool named = status.message().find(tensor.path()) != std::string::npos;
    EXPECT_EQ(status.ok(), !named) << status;
  }
}

// Damage of several ranks' boxes is told in one message.
TEST_F(DamageTest, AllDamagedTensorsAreNamed) {
  for (const char* path : {"adam_v/embed.weight", "param/embed.weight", "param/norm.weight"}) {
    const StoredBox& box = manifest_.Find(path)->boxes.back();
    FlipBit(JoinPath(newer_, box.file), box.offset, 3);
  }
  const absl::Status status = LoadByGroup(3);
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  for (const char* path : {"adam_v/embed.weight", "param/embed.weight", "param/norm.weight"}) {
    EXPECT_NE(status.message().find(path), std::string::npos) << status;
  }
}

// Files may go, or shrink, while they are read.
TEST_F(DamageTest, AFileCutAfterItWasOpenedIsDamaged) {
  std::vector<absl::Status> statuses(2);
  RunRanks(2, [&](Communicator& world) {
    auto checkpoint = Checkpoint::Open(newer_, world);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    world.Barrier();
    if (world.rank() == 0) std::filesystem::resize_file(JoinPath(newer_, ShardName(1)), 100);
    world.Barrier();
    statuses[world.rank()] = checkpoint->Load(RowsOf(world));
  });
  EXPECT_TRUE(absl::IsDataLoss(statuses[0])) << statuses[0];
  EXPECT_NE(statuses[0].message().find(ShardName(1)), std::string::npos) << statuses[0];
  EXPECT_EQ(statuses[0], statuses[1]);
}

TEST_F(DamageTest, AFileInACheckpointsPlaceIsPassedOver) {
  std::filesystem::remove_all(newer_);
  ASSERT_TRUE(FileSystem::Get().WriteFile(newer_, "x").ok());
  const auto sound = FindNewestSound(directory_.path(), [](const std::string&) {});
  EXPECT_EQ(sound.value_or(sound.status().ToString()), older_);
}

// What cannot be read now may be read later: it is no damage, and no older checkpoint takes over.
class UnreadableTest : public DamageTest {
 protected:
  void ExpectAnError(absl::StatusCode code) {
    EXPECT_EQ(Verify(newer_).status().code(), code) << Verify(newer_).status();
    int warnings = 0;
    const auto sound = FindNewestSound(directory_.path(), [&](const std::string&) { ++warnings; });
    EXPECT_EQ(sound.status().code(), code) << sound.status();
    EXPECT_EQ(warnings, 0);
    EXPECT_EQ(LoadByGroup(3).code(), code);
  }
};

TEST_F(UnreadableTest, AShardThatDoesNotOpen) {
  const std::string path = JoinPath(newer_, ShardName(1));
  std::filesystem::remove(path);
  std::filesystem::create_symlink(path, path);  // ELOOP
  ExpectAnError(absl::StatusCode::kInternal);
}

TEST_F(UnreadableTest, AManifestOrAFolderThatDoesNotOpen) {
  class Denying : public FaultyFileSystem {
   public:
    explicit Denying(std::string denied) : denied_(std::move(denied)) {}
    absl::StatusOr<std::string> ReadFile(const std::string& path, int64_t most) override {
      if (path == denied_) return absl::PermissionDeniedError(path);
      return FaultyFileSystem::ReadFile(path, most);
    }
    absl::StatusOr<std::vector<std::string>> List(const std::string& path) override {
      if (path == denied_) return absl::PermissionDeniedError(path);
      return FaultyFileSystem::List(path);
    }
    // As stat answers about what lies in a folder that may not be entered.
    bool Exists(const std::string& path) override {
      return path != denied_ && FaultyFileSystem::Exists(path);
    }
    bool IsDirectory(const std::string& path) override {
      return path != denied_ && FaultyFileSystem::IsDirectory(path);
    }

   private:
    const std::string denied_;
  };
  {
    Denying files(JoinPath(newer_, kManifestFile));
    ExpectAnError(absl::StatusCode::kPermissionDenied);
  }
  Denying files(directory_.path());
  const auto sound = FindNewestSound(directory_.path(), [](const std::string&) {});
  EXPECT_TRUE(absl::IsPermissionDenied(sound.status())) << sound.status();
}

}  // namespace
}  // namespace lt2
