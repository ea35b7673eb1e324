#include "core/hdf5.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <thread>

#include "core/file.h"
#include "core/philox.h"
#include "core/strings.h"
#include "tests/support/temporary_directory.h"

namespace lt2::h5 {
namespace {

template <class T>
std::vector<T> Count(int64_t n, T first = 0) {
  std::vector<T> values(n);
  std::iota(values.begin(), values.end(), first);
  return values;
}

class Hdf5Test : public ::testing::Test {
 protected:
  std::string Path(const std::string& name) const { return JoinPath(dir_, name); }

  const TemporaryDirectory directory_;
  const std::string dir_ = directory_.path();
};

template <class T>
void RoundTrip(const std::string& path, Type type) {
  const std::vector<T> values = Count<T>(24);
  {
    absl::StatusOr<File> file = File::Create(path);
    ASSERT_TRUE(file.ok()) << file.status();
    ASSERT_TRUE(file->Write("a/b/x", type, {2, 3, 4}, values.data()).ok());
    ASSERT_TRUE(file->Write("scalar", type, {}, values.data() + 5).ok());
    ASSERT_TRUE(file->Write("nothing", type, {0, 3}, values.data()).ok());
    ASSERT_TRUE(file->Close().ok());
  }
  absl::StatusOr<File> file = File::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  const DatasetInfo info = *file->Info("a/b/x");
  EXPECT_EQ(info.type, type);
  EXPECT_EQ(info.shape, (Shape{2, 3, 4}));
  std::vector<T> back(24), box(4);
  ASSERT_TRUE(file->Read("a/b/x", type, back.data()).ok());
  EXPECT_EQ(back, values);
  ASSERT_TRUE(
      file->ReadBox("a/b/x", {.begin = {0, 1, 2}, .extent = {2, 1, 2}}, type, box.data()).ok());
  EXPECT_EQ(box, (std::vector<T>{6, 7, 18, 19}));
  T scalar = 0;
  ASSERT_TRUE(file->Read("scalar", type, &scalar).ok());
  EXPECT_EQ(scalar, T{5});
  EXPECT_EQ(file->Info("nothing")->shape, (Shape{0, 3}));
  ASSERT_TRUE(file->Read("nothing", type, nullptr).ok());

  // The bytes lie where Info says.
  ASSERT_GE(info.offset, 0);
  std::ifstream raw(path, std::ios::binary);
  raw.seekg(info.offset);
  raw.read(reinterpret_cast<char*>(back.data()), 24 * sizeof(T));
  EXPECT_EQ(back, values);
}

TEST_F(Hdf5Test, EveryTypeComesBack) {
  RoundTrip<float>(Path("f32"), Type::kF32);
  RoundTrip<double>(Path("f64"), Type::kF64);
  RoundTrip<int32_t>(Path("i32"), Type::kI32);
  RoundTrip<int64_t>(Path("i64"), Type::kI64);
  RoundTrip<uint8_t>(Path("u8"), Type::kU8);
  RoundTrip<uint16_t>(Path("u16"), Type::kU16);
  RoundTrip<uint32_t>(Path("u32"), Type::kU32);
}

TEST_F(Hdf5Test, ConvertsOnReading) {
  const std::vector<float> values = {1, 2.5f, -3};
  File file = *File::Create(Path("x"));
  ASSERT_TRUE(file.Write("x", Type::kF32, {3}, values.data()).ok());
  std::vector<double> wide(3);
  ASSERT_TRUE(file.Read("x", Type::kF64, wide.data()).ok());
  EXPECT_EQ(wide, (std::vector<double>{1, 2.5, -3}));
}

TEST_F(Hdf5Test, BoxesFillADatasetWhosePlaceIsKnownBefore) {
  File file = *File::Create(Path("x"));
  ASSERT_TRUE(file.CreateDataset("x", Type::kI32, {4, 5}).ok());
  const int64_t offset = file.Info("x")->offset;
  EXPECT_GT(offset, 0);
  const std::vector<int32_t> left = Count<int32_t>(8), right = Count<int32_t>(12, 100);
  ASSERT_TRUE(
      file.WriteBox("x", {.begin = {0, 0}, .extent = {4, 2}}, Type::kI32, left.data()).ok());
  ASSERT_TRUE(
      file.WriteBox("x", {.begin = {0, 2}, .extent = {4, 3}}, Type::kI32, right.data()).ok());
  EXPECT_EQ(file.Info("x")->offset, offset);
  std::vector<int32_t> row(5);
  ASSERT_TRUE(file.ReadBox("x", Box::RowsOf({4, 5}, 2, 3), Type::kI32, row.data()).ok());
  EXPECT_EQ(row, (std::vector<int32_t>{4, 5, 106, 107, 108}));
  EXPECT_TRUE(absl::IsDataLoss(
      file.ReadBox("x", {.begin = {3, 0}, .extent = {2, 5}}, Type::kI32, row.data())));
}

TEST_F(Hdf5Test, LargeDatasetsStartOnAPage) {
  const std::vector<uint8_t> odd = Count<uint8_t>(7);
  const std::vector<uint16_t> values = Count<uint16_t>(5000);
  File file = *File::Create(Path("x"));
  ASSERT_TRUE(file.Write("odd", Type::kU8, {7}, odd.data()).ok());
  ASSERT_TRUE(file.Write("big", Type::kU16, {5000}, values.data()).ok());
  EXPECT_EQ(file.Info("big")->offset % 4096, 0);
}

TEST_F(Hdf5Test, ListsGroupsAndAttributes) {
  const float one = 1;
  const std::string long_text(200'000, 'c');
  {
    File file = *File::Create(Path("x"));
    ASSERT_TRUE(file.Write("g/z", Type::kF32, {1}, &one).ok());
    ASSERT_TRUE(file.Write("g/a.weight", Type::kF32, {1}, &one).ok());
    ASSERT_TRUE(file.Write("g/h/deep", Type::kF32, {1}, &one).ok());
    ASSERT_TRUE(file.SetAttribute("/", "count", int64_t{-7'000'000'000}).ok());
    ASSERT_TRUE(file.SetAttribute("/", "count", int64_t{7'000'000'000}).ok()) << "replaces";
    ASSERT_TRUE(file.SetAttribute("/", "scale", 0.1).ok());
    ASSERT_TRUE(file.SetAttribute("g/z", "text", std::string("grün")).ok());
    ASSERT_TRUE(file.SetAttribute("/", "empty", std::string()).ok());
    ASSERT_TRUE(file.SetAttribute("/", "config", long_text).ok());
    ASSERT_TRUE(file.Close().ok());
  }
  File file = *File::Open(Path("x"));
  EXPECT_EQ(*file.List("/"), std::vector<std::string>{"g/"});
  EXPECT_EQ(*file.List("g"), (std::vector<std::string>{"a.weight", "h/", "z"}));
  EXPECT_TRUE(file.Has("/") && file.Has("g") && file.Has("/g/h/deep"));
  EXPECT_FALSE(file.Has("h") || file.Has("g/q/deep") || file.Has("g/z/deep") || file.Has(""));
  EXPECT_EQ(*file.IntAttribute("/", "count"), 7'000'000'000);
  EXPECT_EQ(*file.DoubleAttribute("/", "scale"), 0.1);
  EXPECT_EQ(*file.DoubleAttribute("/", "count"), 7e9);
  EXPECT_EQ(*file.StringAttribute("g/z", "text"), "grün");
  EXPECT_EQ(*file.StringAttribute("/", "empty"), "");
  EXPECT_EQ(*file.StringAttribute("/", "config"), long_text);
  EXPECT_EQ(file.AttributeNames("/"),
            (std::vector<std::string>{"config", "count", "empty", "scale"}));
  EXPECT_TRUE(file.AttributeIsText("/", "config"));
  EXPECT_FALSE(file.AttributeIsText("/", "count"));
  EXPECT_TRUE(absl::IsDataLoss(file.IntAttribute("/", "scale").status()));
  EXPECT_TRUE(absl::IsDataLoss(file.StringAttribute("/", "count").status()));
  EXPECT_TRUE(absl::IsNotFound(file.IntAttribute("/", "missing").status()));
  const absl::Status missing = file.Read("g/none", Type::kF32, nullptr);
  EXPECT_TRUE(absl::IsNotFound(missing));
  EXPECT_NE(missing.message().find("g/none"), std::string::npos) << missing;
}

TEST_F(Hdf5Test, VirtualDatasetShowsOtherFilesAndNaNForWhatIsMissing) {
  const std::vector<float> left = Count<float>(6), right = Count<float>(6, 10);
  for (const auto& [name, values] : {std::pair{"left.h5", left}, {"right.h5", right}}) {
    File file = *File::Create(Path(name));
    ASSERT_TRUE(file.Write("p/w", Type::kF32, {3, 2}, values.data()).ok());
    ASSERT_TRUE(file.Close().ok());
  }
  const std::vector<File::VirtualPiece> pieces = {
      {.file = "left.h5", .dataset = "p/w", .box = {.begin = {0, 0}, .extent = {3, 2}}},
      {.file = "right.h5", .dataset = "p/w", .box = {.begin = {0, 2}, .extent = {3, 2}}},
      {.file = "left.h5", .dataset = "p/none", .box = {.begin = {3, 0}, .extent = {0, 4}}}};
  {
    File index = *File::Create(Path("index.h5"));
    ASSERT_TRUE(index.WriteVirtual("param/w", Type::kF32, {3, 5}, pieces).ok());
    ASSERT_TRUE(index.Close().ok());
  }
  std::vector<float> all(15);
  {
    File index = *File::Open(Path("index.h5"));
    EXPECT_EQ(index.Info("param/w")->offset, -1);
    ASSERT_TRUE(index.Read("param/w", Type::kF32, all.data()).ok());
    for (int row = 0; row < 3; ++row) {
      EXPECT_EQ(all[row * 5 + 1], 2 * row + 1);
      EXPECT_EQ(all[row * 5 + 2], 10 + 2 * row);
      EXPECT_TRUE(std::isnan(all[row * 5 + 4])) << "no piece covers the last column";
    }
  }
  // The folder moves as a whole; then a shard goes missing.
  std::filesystem::create_directories(Path("moved"));
  for (const char* name : {"left.h5", "index.h5"}) {
    std::filesystem::rename(Path(name), Path(StrCat("moved/", name)));
  }
  File index = *File::Open(Path("moved/index.h5"));
  ASSERT_TRUE(index.Read("param/w", Type::kF32, all.data()).ok());
  EXPECT_EQ(all[1], 1);
  EXPECT_TRUE(std::isnan(all[2]));
}

TEST_F(Hdf5Test, OpenTellsMissingFromDamaged) {
  EXPECT_TRUE(absl::IsNotFound(File::Open(Path("missing")).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(File::Open(dir_).status()));
  ASSERT_TRUE(FileSystem::Get().WriteFile(Path("text"), std::string(5000, 'x')).ok());
  EXPECT_TRUE(absl::IsDataLoss(File::Open(Path("text")).status()));
  ASSERT_TRUE(FileSystem::Get().WriteFile(Path("empty"), "").ok());
  EXPECT_TRUE(absl::IsDataLoss(File::Open(Path("empty")).status()));
  EXPECT_TRUE(absl::IsNotFound(File::Create(Path("no/folder/x")).status()));
}

// Cuts and single flipped bytes outside the data: a Status or the right values, never a crash.
TEST_F(Hdf5Test, DamagedFilesGiveAStatus) {
  const std::vector<int32_t> values = Count<int32_t>(3000);
  {
    File file = *File::Create(Path("good"));
    ASSERT_TRUE(file.Write("g/x", Type::kI32, {3000}, values.data()).ok());
    ASSERT_TRUE(file.SetAttribute("/", "text", std::string("hello")).ok());
    ASSERT_TRUE(file.Close().ok());
  }
  const std::string good = *FileSystem::Get().ReadFile(Path("good"));
  const int64_t offset = File::Open(Path("good"))->Info("g/x")->offset;
  const uint64_t seed = 20240917;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  int refused = 0;
  for (uint64_t trial = 0; trial < 300; ++trial) {
    SCOPED_TRACE(testing::Message() << "trial " << trial);
    const Philox4 random = Philox(seed, trial);
    std::string bad = good;
    const bool cut = trial % 3 == 0;
    if (cut) {
      bad.resize(random[0] % good.size());
    } else {
      size_t at = random[0] % (good.size() - 12000);
      if (at >= static_cast<size_t>(offset)) at += 12000;
      bad[at] = static_cast<char>(bad[at] ^ (1 + random[1] % 255));
    }
    ASSERT_TRUE(FileSystem::Get().WriteFile(Path("bad"), bad).ok());
    absl::StatusOr<File> file = File::Open(Path("bad"));
    std::vector<int32_t> back(3000);
    absl::Status status = file.status();
    if (status.ok()) status = file->StringAttribute("/", "text").status();
    if (status.ok()) status = file->Info("g/x").status();
    if (status.ok()) status = file->Read("g/x", Type::kI32, back.data());
    if (status.ok()) {
      EXPECT_FALSE(cut);
      EXPECT_EQ(back, values);
    } else {
      // Metadata has checksums: damage cannot look like a missing name.
      EXPECT_TRUE(absl::IsDataLoss(status)) << status;
      EXPECT_NE(status.message().find(Path("bad")), std::string::npos) << status;
      ++refused;
    }
  }
  EXPECT_GE(refused, 120);
}

// A full disk, played by a limit on file size.
TEST_F(Hdf5Test, NoSpaceIsResourceExhausted) {
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{100'000, 100'000};
    setrlimit(RLIMIT_FSIZE, &limit);
    const std::vector<float> values(200'000, 1.0f);
    absl::StatusOr<File> file = File::Create(Path("big"));
    if (!file.ok()) _exit(2);
    absl::Status status = file->Write("x", Type::kF32, {200'000}, values.data());
    for (int i = 0; i < 300; ++i) {
      status.Update(file->Write(StrCat("small", i), Type::kF32, {20}, values.data()));
    }
    status.Update(file->Close());
    std::exit(absl::IsResourceExhausted(status) ? 0 : 3);  // with exit handlers: they once crashed
  }
  int result = -1;
  ASSERT_EQ(waitpid(child, &result, 0), child);
  EXPECT_EQ(result, 0);
}

TEST_F(Hdf5Test, ThreadsMayWriteTheirOwnFilesAtOnce) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; round < 20; ++round) {
        const std::vector<int32_t> values = Count<int32_t>(1000, t * 1000);
        const std::string path = Path(StrCat("t", t));
        File file = *File::Create(path);
        EXPECT_TRUE(file.Write("x", Type::kI32, {1000}, values.data()).ok());
        EXPECT_TRUE(file.Close().ok());
        std::vector<int32_t> back(1000);
        EXPECT_TRUE(File::Open(path)->Read("x", Type::kI32, back.data()).ok());
        EXPECT_EQ(back, values);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Hdf5VersionTest, IsOfTheOldStableSeries) { EXPECT_EQ(Version().substr(0, 2), "1."); }

}  // namespace
}  // namespace lt2::h5
