#include "core/file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "tests/support/temporary_directory.h"

namespace lt2 {
namespace {

class FileTest : public ::testing::Test {
 protected:
  std::string Path(const std::string& name) const { return JoinPath(dir_, name); }

  const TemporaryDirectory directory_;
  const std::string dir_ = directory_.path();
  FileSystem& files_ = FileSystem::Get();
};

TEST_F(FileTest, WritesReadsAndReplaces) {
  std::string content(100'000, 'x');
  content[77] = '\0';
  ASSERT_TRUE(files_.WriteFile(Path("a"), content).ok());
  EXPECT_EQ(*files_.ReadFile(Path("a")), content);
  EXPECT_EQ(*files_.FileSize(Path("a")), 100'000);
  ASSERT_TRUE(files_.WriteFile(Path("a"), "short").ok());
  EXPECT_EQ(*files_.ReadFile(Path("a")), "short");
  ASSERT_TRUE(files_.WriteFile(Path("empty"), "").ok());
  EXPECT_EQ(*files_.ReadFile(Path("empty")), "");
}

TEST_F(FileTest, AppendsAcrossCalls) {
  ASSERT_TRUE(files_.AppendFile(Path("log"), "one\n").ok());
  ASSERT_TRUE(files_.AppendFile(Path("log"), "two\n").ok());
  EXPECT_EQ(*files_.ReadFile(Path("log")), "one\ntwo\n");
}

TEST_F(FileTest, ReadsFilesWhoseSizeIsNotKnown) {
  absl::StatusOr<std::string> text = files_.ReadFile("/proc/self/status");
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_NE(text->find("Name:"), std::string::npos);
}

TEST_F(FileTest, ReadsNoMoreThanIsAllowed) {
  ASSERT_TRUE(files_.WriteFile(Path("a"), "12345").ok());
  EXPECT_EQ(*files_.ReadFile(Path("a"), 5), "12345");
  // /proc and /dev do not say how much there is.
  for (const std::string& path :
       {Path("a"), std::string("/proc/self/status"), std::string("/dev/zero")}) {
    const absl::Status status = files_.ReadFile(path, 4).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_NE(status.message().find(path + ": has more than 4 bytes"), std::string::npos) << status;
  }
}

TEST_F(FileTest, ListsSortedAndKnowsFolders) {
  ASSERT_TRUE(files_.MakeDirectories(Path("b/c/d")).ok());
  ASSERT_TRUE(files_.MakeDirectories(Path("b/c/d")).ok()) << "an existing folder is fine";
  ASSERT_TRUE(files_.WriteFile(Path("z"), "").ok());
  ASSERT_TRUE(files_.WriteFile(Path("a"), "").ok());
  EXPECT_EQ(*files_.List(dir_), (std::vector<std::string>{"a", "b", "z"}));
  EXPECT_TRUE(files_.IsDirectory(Path("b")));
  EXPECT_FALSE(files_.IsDirectory(Path("a")));
  EXPECT_TRUE(files_.Exists(Path("a")));
  ASSERT_TRUE(files_.RemoveAll(Path("b")).ok());
  EXPECT_FALSE(files_.Exists(Path("b")));
  EXPECT_TRUE(files_.RemoveAll(Path("never there")).ok());
}

TEST_F(FileTest, ErrorsNameThePathAndTheKind) {
  const absl::Status missing = files_.ReadFile(Path("missing")).status();
  EXPECT_TRUE(absl::IsNotFound(missing)) << missing;
  EXPECT_NE(missing.message().find(Path("missing")), std::string::npos) << missing;
  EXPECT_TRUE(absl::IsNotFound(files_.List(Path("missing")).status()));
  EXPECT_TRUE(absl::IsNotFound(files_.Rename(Path("missing"), Path("x"))));
  EXPECT_TRUE(absl::IsNotFound(files_.WriteFile(Path("no/folder"), "x")));
  EXPECT_TRUE(absl::IsInvalidArgument(files_.ReadFile(dir_).status()));
  EXPECT_TRUE(absl::IsResourceExhausted(files_.WriteFile("/dev/full", "x")));
  EXPECT_TRUE(absl::IsResourceExhausted(files_.AppendFile("/dev/full", "x")));
  ASSERT_TRUE(files_.WriteFile(Path("file"), "").ok());
  EXPECT_FALSE(files_.MakeDirectories(Path("file")).ok());
  EXPECT_FALSE(files_.MakeDirectories(Path("file/below")).ok());
  EXPECT_TRUE(absl::IsPermissionDenied(ErrnoStatus(EACCES, "cannot open", "p")));
  EXPECT_TRUE(absl::IsInternal(ErrnoStatus(EIO, "cannot read", "p")));
}

TEST_F(FileTest, AtomicWriteLeavesNoTemporary) {
  ASSERT_TRUE(WriteFileAtomically(Path("m"), "old").ok());
  ASSERT_TRUE(WriteFileAtomically(Path("m"), "new").ok());
  EXPECT_EQ(*files_.ReadFile(Path("m")), "new");
  EXPECT_EQ(*files_.List(dir_), std::vector<std::string>{"m"});
  ASSERT_TRUE(files_.Sync(dir_).ok());
  ASSERT_TRUE(files_.Sync(Path("m")).ok());
}

TEST_F(FileTest, FailedAtomicWriteKeepsTheOldFile) {
  ASSERT_TRUE(files_.MakeDirectories(Path("m/full")).ok());  // a rename over it must fail
  EXPECT_FALSE(WriteFileAtomically(Path("m"), "new").ok());
  EXPECT_EQ(*files_.List(dir_), std::vector<std::string>{"m"});
  EXPECT_TRUE(files_.IsDirectory(Path("m/full")));
}

TEST(JoinPathTest, JoinsOnce) {
  EXPECT_EQ(JoinPath("a", "b"), "a/b");
  EXPECT_EQ(JoinPath("a/", "b"), "a/b");
  EXPECT_EQ(JoinPath("", "b"), "b");
  EXPECT_EQ(JoinPath("a", "/b"), "/b");
}

}  // namespace
}  // namespace lt2
