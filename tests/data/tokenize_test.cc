#include "data/tokenize.h"

#include <gtest/gtest.h>

#include "core/hdf5.h"
#include "core/strings.h"
#include "data/inspect.h"
#include "data/shard.h"
#include "data/source.h"
#include "tests/data/temporary_folder.h"

namespace lt2 {
namespace {

std::string TextOf(const std::string& directory) {
  const std::unique_ptr<Tokenizer> bytes = *MakeTokenizer("bytes");
  const auto source = *Source::Open(directory, *bytes);
  std::vector<int32_t> ids(source->tokens());
  EXPECT_TRUE(source->ReadWindow(0, ids).ok());
  return *bytes->Decode(ids);
}

TEST(TokenizeFiles, TextComesBackWhole) {
  const TemporaryFolder folder;
  const std::string text = "one\n\ntwo\nlines\n\n\nthree\xff";
  int64_t done = 0, total = 0;
  const absl::StatusOr<TokenizeReport> report = TokenizeFiles(
      {.inputs = {folder.Write("a.txt", text)}, .out = folder("out")}, [&](int64_t d, int64_t t) {
        done = d;
        total = t;
      });
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->documents, 3);
  EXPECT_EQ(report->tokens, static_cast<int64_t>(text.size()));
  EXPECT_EQ(report->bytes, report->tokens);
  EXPECT_EQ(done, report->bytes);
  EXPECT_EQ(total, report->bytes);
  EXPECT_EQ(TextOf(folder("out")), text);
}

TEST(TokenizeFiles, FoldersOfTextAndJsonLinesInOrderOfNames) {
  const TemporaryFolder folder;
  ASSERT_TRUE(FileSystem::Get().MakeDirectories(folder("in")).ok());
  folder.Write("in/b.jsonl",
               "{\"text\": \"uml\\u00e4ut\\n\\nstill the same\", \"id\": 1}\n\n{\"text\": \"x\"}");
  folder.Write("in/a.txt", "first\n");
  folder.Write("in/notes.md", "not read");
  const absl::StatusOr<TokenizeReport> report =
      TokenizeFiles({.inputs = {folder("in")}, .out = folder("deep/out"), .tokens_per_shard = 7});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->files, 2);
  EXPECT_EQ(report->documents, 3);
  EXPECT_EQ(report->shards, 3);
  EXPECT_EQ(TextOf(folder("deep/out")), "first\numläut\n\nstill the samex");
}

TEST(TokenizeFiles, BadInputIsNamed) {
  const TemporaryFolder folder;
  const auto status = [&](const std::string& input) {
    return TokenizeFiles({.inputs = {input}, .out = folder("out")}).status();
  };
  EXPECT_TRUE(absl::IsNotFound(status(folder("none.txt"))));
  EXPECT_TRUE(absl::IsInvalidArgument(status(folder.Write("a.pdf", "x"))));
  EXPECT_TRUE(absl::IsInvalidArgument(status(folder.Write("empty.txt", ""))));
  EXPECT_TRUE(absl::IsInvalidArgument(TokenizeFiles({.out = folder("out")}).status()));
  const absl::Status json = status(folder.Write("a.jsonl", "{\"text\": \"x\"}\n{\"text\": 3}\n"));
  EXPECT_TRUE(absl::IsInvalidArgument(json));
  EXPECT_NE(json.message().find("a.jsonl:2: is not an object"), std::string::npos) << json;
  const absl::Status broken = status(folder.Write("b.jsonl", "{\"text\": \"x\n"));
  EXPECT_NE(broken.message().find("b.jsonl:1: is not JSON"), std::string::npos) << broken;
  EXPECT_FALSE(FileSystem::Get().Exists(folder("out")));
  const std::vector<std::string> left = *FileSystem::Get().List(folder(""));
  for (const std::string& name : left) EXPECT_FALSE(name.starts_with("out")) << name;
  const absl::Status tokenizer =
      TokenizeFiles({.inputs = {folder("empty.txt")}, .tokenizer = "t.json", .out = folder("out")})
          .status();
  EXPECT_TRUE(absl::IsInvalidArgument(tokenizer));
}

class InspectShardsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string text = "ab\n\ncdefgh\n\nij\n";
    ASSERT_TRUE(TokenizeFiles({.inputs = {folder_.Write("t.txt", text)},
                               .out = folder_("out"),
                               .tokens_per_shard = 12})
                    .ok());
  }
  // Changes one byte of the first shard's tokens.
  void Damage(int64_t byte, char value) {
    const std::string path = folder_("out/shard-00000.h5");
    std::string content = *FileSystem::Get().ReadFile(path);
    content[Shard::Open(path)->offset() + byte] = value;
    ASSERT_TRUE(FileSystem::Get().WriteFile(path, content).ok());
  }

  TemporaryFolder folder_;
};

TEST_F(InspectShardsTest, DescribesSoundShards) {
  const absl::StatusOr<ShardReport> report = InspectShards(folder_("out"));
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_TRUE(report->Verdict().ok()) << report->Verdict();
  ASSERT_EQ(report->shards.size(), 2u);
  EXPECT_EQ(report->tokens, 15);
  EXPECT_EQ(report->documents, 3);
  EXPECT_EQ(report->tokenizer, "bytes");
  const ShardReport::Shard& first = report->shards[0];
  EXPECT_EQ(first.tokens, 12);
  EXPECT_EQ(first.dtype, "u16");
  EXPECT_EQ(first.shortest, 4);
  EXPECT_EQ(first.longest, 8);
  EXPECT_EQ(first.mean_length, 6);
  EXPECT_EQ(first.largest_id, 'h');
  EXPECT_EQ(report->preview, "ab\n\ncdefgh\n\n");
}

TEST_F(InspectShardsTest, NoticesChangedTokens) {
  Damage(0, 'z');
  const ShardReport report = *InspectShards(folder_("out"));
  EXPECT_FALSE(report.shards[0].content_ok);
  EXPECT_TRUE(report.shards[0].ids_ok);
  EXPECT_TRUE(absl::IsDataLoss(report.Verdict()));
}

TEST_F(InspectShardsTest, NoticesShardsOfAnotherVocabulary) {
  const std::string path = folder_("out/shard-00001.h5");
  const Shard old = *Shard::Open(path);
  h5::File file = *h5::File::Create(folder_("out/shard-00002.h5"));
  ASSERT_TRUE(file.SetAttribute("/", "format_version", int64_t{1}).ok());
  ASSERT_TRUE(file.SetAttribute("/", "vocab_size", int64_t{300}).ok());
  ASSERT_TRUE(file.SetAttribute("/", "tokens", old.header().tokens).ok());
  ASSERT_TRUE(file.SetAttribute("/", "documents", old.header().documents).ok());
  ASSERT_TRUE(file.SetAttribute("/", "tokenizer", old.header().tokenizer).ok());
  ASSERT_TRUE(file.SetAttribute("/", "tokenizer_hash", old.header().tokenizer_hash).ok());
  ASSERT_TRUE(file.SetAttribute("/", "content_hash", old.header().content_hash).ok());
  ASSERT_TRUE(
      file.Write("tokens", h5::Type::kU16, {old.header().tokens}, old.token_bytes().data()).ok());
  ASSERT_TRUE(file.Write("document_starts", h5::Type::kI64, {old.header().documents},
                         old.document_starts().data())
                  .ok());
  ASSERT_TRUE(file.Close().ok());
  const absl::Status verdict = InspectShards(folder_("out"))->Verdict();
  EXPECT_TRUE(absl::IsInvalidArgument(verdict)) << verdict;
  EXPECT_NE(verdict.message().find("shard-00002.h5: was made with"), std::string::npos) << verdict;
}

TEST_F(InspectShardsTest, NoticesIdsOutsideTheVocabulary) {
  Damage(1, 3);
  const ShardReport report = *InspectShards(folder_("out"));
  EXPECT_FALSE(report.shards[0].ids_ok);
  EXPECT_EQ(report.shards[0].largest_id, 'a' + 3 * 256);
  EXPECT_TRUE(absl::IsDataLoss(report.Verdict()));
}

}  // namespace
}  // namespace lt2
