#include "data/source.h"

#include <gtest/gtest.h>

#include <numeric>

#include "core/strings.h"
#include "data/shard_writer.h"
#include "tests/data/temporary_folder.h"

namespace lt2 {
namespace {

class SourceTest : public ::testing::Test {
 protected:
  // Documents of 1, 2, 3, … ids counting up from 0, over several shards.
  std::string Folder(const std::string& name, int64_t documents, int64_t per_shard) {
    ShardWriter::Options options = ShardWriter::Options::For(*bytes_, folder_(name));
    options.tokens_per_shard = per_shard;
    ShardWriter writer = *ShardWriter::Create(options);
    int32_t next = 0;
    for (int64_t d = 1; d <= documents; ++d) {
      std::vector<int32_t> ids(d);
      std::iota(ids.begin(), ids.end(), next);
      next += static_cast<int32_t>(d);
      EXPECT_TRUE(writer.Add(ids).ok());
    }
    EXPECT_TRUE(writer.Finish().ok());
    return folder_(name);
  }

  TemporaryFolder folder_;
  std::unique_ptr<Tokenizer> bytes_ = *MakeTokenizer("bytes");
};

TEST_F(SourceTest, ShardsReadAsOneArray) {
  const auto source = *Source::Open(Folder("x", 20, 30), *bytes_);  // 210 ids
  EXPECT_FALSE(source->is_text());
  EXPECT_GT(ListShards(folder_("x"))->size(), 3u);
  EXPECT_EQ(source->tokens(), 210);
  EXPECT_EQ(source->documents(), 20);
  for (int64_t begin = 0; begin < 210; ++begin) {
    for (const int64_t length : {int64_t{1}, int64_t{50}, 210 - begin}) {
      if (begin + length > 210) continue;
      std::vector<int32_t> ids(length);
      ASSERT_TRUE(source->ReadWindow(begin, ids).ok());
      for (int64_t i = 0; i < length; ++i) ASSERT_EQ(ids[i], begin + i);
    }
  }
  for (int64_t d = 0; d <= 20; ++d) EXPECT_EQ(source->DocumentStart(d), d * (d + 1) / 2);
  std::vector<int64_t> starts;
  source->ForEachStart(3, 36, [&](int64_t start) { starts.push_back(start); });
  EXPECT_EQ(starts, (std::vector<int64_t>{3, 6, 10, 15, 21, 28}));
  starts.clear();
  source->ForEachStart(0, 1000, [&](int64_t start) { starts.push_back(start); });
  EXPECT_EQ(starts.size(), 20u);
}

TEST_F(SourceTest, TextReadsAsItsBytes) {
  const std::string text = "one\n\ntwo\nlines\n\n\nthree";
  const auto source = *Source::Open(folder_.Write("t.txt", text), *bytes_);
  EXPECT_TRUE(source->is_text());
  EXPECT_EQ(source->documents(), 3);
  std::vector<int32_t> ids(source->tokens());
  ASSERT_TRUE(source->ReadWindow(0, ids).ok());
  EXPECT_EQ(*bytes_->Decode(ids), text);
  EXPECT_EQ(source->DocumentStart(1), 5);
  EXPECT_EQ(source->DocumentStart(2), 17);
}

TEST_F(SourceTest, ContentHashKnowsTokensAndDocuments) {
  const auto hash = [&](const std::string& text) {
    return (*Source::Open(folder_.Write("h.txt", text), *bytes_))->content_hash();
  };
  EXPECT_EQ(hash("a\n\nb"), hash("a\n\nb"));
  EXPECT_NE(hash("a\n\nb"), hash("a\n\nc"));
  EXPECT_EQ((*Source::Open(Folder("a", 9, 10), *bytes_))->content_hash(),
            (*Source::Open(Folder("b", 9, 10), *bytes_))->content_hash());
}

TEST_F(SourceTest, BadInputIsNamed) {
  EXPECT_TRUE(absl::IsNotFound(Source::Open(folder_("none"), *bytes_).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(Source::Open(folder_.Write("e.txt", ""), *bytes_).status()));
  const absl::Status one = Source::Open(Folder("x", 3, 10) + "/shard-00000.h5", *bytes_).status();
  EXPECT_TRUE(absl::IsInvalidArgument(one));
  EXPECT_NE(one.message().find("folder"), std::string::npos) << one;
}

TEST_F(SourceTest, TokenizersMustAgree) {
  ShardWriter::Options options = ShardWriter::Options::For(*bytes_, folder_("other"));
  options.tokenizer = "bpe";
  options.tokenizer_hash = std::string(32, 'b');
  ShardWriter writer = *ShardWriter::Create(options);
  ASSERT_TRUE(writer.Add(std::vector<int32_t>{1, 2, 3}).ok());
  ASSERT_TRUE(writer.Finish().ok());
  const absl::Status other = Source::Open(folder_("other"), *bytes_).status();
  EXPECT_TRUE(absl::IsInvalidArgument(other)) << other;
  EXPECT_NE(other.message().find("bpe"), std::string::npos) << other;

  Folder("mixed", 3, 100);
  ASSERT_TRUE(FileSystem::Get()
                  .Rename(folder_("other/shard-00000.h5"), folder_("mixed/shard-00001.h5"))
                  .ok());
  const absl::Status mixed = Source::Open(folder_("mixed"), *bytes_).status();
  EXPECT_TRUE(absl::IsInvalidArgument(mixed)) << mixed;
  EXPECT_NE(mixed.message().find("shard-00001.h5"), std::string::npos) << mixed;
}

TEST_F(SourceTest, IdOutsideTheVocabularyIsNamedWithItsPlace) {
  const std::string path = Folder("x", 20, 1000) + "/shard-00000.h5";
  const int64_t offset = Shard::Open(path)->offset();
  std::string content = *FileSystem::Get().ReadFile(path);
  content[offset + 2 * 77 + 1] = 1;  // id 77 + 256
  ASSERT_TRUE(FileSystem::Get().WriteFile(path, content).ok());
  const auto source = *Source::Open(folder_("x"), *bytes_);
  std::vector<int32_t> ids(50);
  EXPECT_TRUE(source->ReadWindow(0, ids).ok());
  const absl::Status status = source->ReadWindow(50, ids);
  EXPECT_TRUE(absl::IsDataLoss(status));
  EXPECT_NE(status.message().find(absl::string_view(StrCat(path, ": token 77 has id 333"))),
            std::string::npos)
      << status;
}

}  // namespace
}  // namespace lt2
