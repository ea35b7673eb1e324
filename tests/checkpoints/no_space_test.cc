// A disk that is really full, at every fill: the save fails with its reason, the last one stays.
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/statvfs.h>

#include <cerrno>
#include <cstring>

#include "tests/checkpoints/saving.h"
#include "tests/support/temporary_directory.h"

namespace lt2 {
namespace {

// A file system of a megabyte, unmounted at the end.
class SmallDisk {
 public:
  SmallDisk() : mounted_(mount("none", path().c_str(), "tmpfs", 0, "size=1m") == 0) {}
  ~SmallDisk() {
    if (mounted_) umount2(path().c_str(), MNT_DETACH);
  }
  bool mounted() const { return mounted_; }
  const std::string& path() const { return directory_.path(); }
  int64_t free_bytes() const {
    struct statvfs status;
    EXPECT_EQ(statvfs(path().c_str(), &status), 0);
    return static_cast<int64_t>(status.f_bavail * status.f_frsize);
  }

 private:
  TemporaryDirectory directory_;
  bool mounted_;
};

TEST(NoSpace, AtEveryFill) {
  SmallDisk disk;
  if (!disk.mounted()) GTEST_SKIP() << "cannot mount a tmpfs: " << std::strerror(errno);
  FileSystem& files = FileSystem::Get();
  const std::string root = JoinPath(disk.path(), "checkpoints");
  const std::string filler = JoinPath(disk.path(), "filler");
  const auto first = SaveSample(root, 1, 1, 2);
  ASSERT_TRUE(first.ok()) << first.status();
  int failed = 0, succeeded = 0;
  for (int64_t left = 0; left <= 400 << 10; left += 8 << 10) {
    SCOPED_TRACE(testing::Message() << left << " bytes free");
    const int64_t fill = disk.free_bytes() - left;
    ASSERT_GE(fill, 0);
    ASSERT_TRUE(files.WriteFile(filler, std::string(fill, 'x')).ok());
    const int64_t mode = left >> 13;
    const auto saved = SaveSample(root, 2, 2, 2, {.async = mode % 2 == 0}, 1,
                                  /*sharing=*/mode % 4 > 1 ? 2 : 0);
    ExpectSample(first->path, 1);
    EXPECT_EQ(Leftovers(root), std::vector<std::string>{});
    if (saved.ok()) {
      ++succeeded;
      ExpectSample(saved->path, 2);
      ASSERT_TRUE(files.RemoveAll(saved->path).ok());
    } else {
      ++failed;
      EXPECT_TRUE(absl::IsResourceExhausted(saved.status())) << saved.status();
      EXPECT_NE(saved.status().message().find(first->path), std::string::npos) << saved.status();
    }
    ASSERT_TRUE(files.RemoveAll(filler).ok());
    EXPECT_GE(disk.free_bytes(), fill) << "a file deleted is still open";
  }
  EXPECT_GT(failed, 3);
  EXPECT_GT(succeeded, 3);
  EXPECT_TRUE(SaveSample(root, 3, 3, 2).ok());
}

}  // namespace
}  // namespace lt2
