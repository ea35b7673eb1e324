#include "data/shard.h"

#include <gtest/gtest.h>

#include "core/hdf5.h"
#include "core/philox.h"
#include "data/shard_writer.h"
#include "tests/data/temporary_folder.h"

namespace lt2 {
namespace {

using Document = std::vector<int32_t>;

ShardWriter::Options OptionsFor(const std::string& directory, int64_t vocab) {
  ShardWriter::Options options;
  options.directory = directory;
  options.vocab_size = vocab;
  options.tokenizer = "test";
  options.tokenizer_hash = std::string(32, 'a');
  return options;
}

void WriteAll(const ShardWriter::Options& options, const std::vector<Document>& documents) {
  absl::StatusOr<ShardWriter> writer = ShardWriter::Create(options);
  ASSERT_TRUE(writer.ok()) << writer.status();
  for (const Document& document : documents) ASSERT_TRUE(writer->Add(document).ok());
  ASSERT_TRUE(writer->Finish().ok());
}

std::vector<int32_t> TokensOf(const Shard& shard) {
  std::vector<int32_t> ids(shard.header().tokens);
  EXPECT_EQ(WidenTokens(shard.token_bytes().data(), shard.width(), shard.header().tokens,
                        shard.header().vocab_size, ids.data()),
            -1);
  return ids;
}

TEST(Shard, NarrowAndWideIdsComeBack) {
  const TemporaryFolder folder;
  for (const int64_t vocab : {65536, 65537}) {
    const std::string dir = folder(std::to_string(vocab));
    const int32_t last = static_cast<int32_t>(vocab) - 1;
    WriteAll(OptionsFor(dir, vocab), {{0, last, 2}, {}, {3}, {4, 5}});
    const absl::StatusOr<Shard> shard = Shard::Open(JoinPath(dir, "shard-00000.h5"));
    ASSERT_TRUE(shard.ok()) << shard.status();
    EXPECT_EQ(shard->width(), vocab == 65536 ? 2 : 4);
    EXPECT_EQ(TokensOf(*shard), (std::vector<int32_t>{0, last, 2, 3, 4, 5}));
    const auto starts = shard->document_starts();
    EXPECT_EQ(std::vector<int64_t>(starts.begin(), starts.end()), (std::vector<int64_t>{0, 3, 4}));
    EXPECT_EQ(shard->header().vocab_size, vocab);
    EXPECT_EQ(shard->header().tokenizer, "test");
    EXPECT_EQ(shard->header().content_hash, ContentHash(shard->token_bytes(), starts));
  }
}

TEST(ShardWriter, ClosesAShardBeforeItIsTooLong) {
  const TemporaryFolder folder;
  ShardWriter::Options options = OptionsFor(folder("out/"), 100);
  options.tokens_per_shard = 5;
  WriteAll(options, {{1, 2, 3}, {4, 5}, {6}, {7, 8, 9, 10, 11, 12, 13}, {14}});
  const std::vector<std::string> paths = *ListShards(folder("out"));
  ASSERT_EQ(paths.size(), 4u);
  std::vector<int32_t> all;
  std::vector<size_t> lengths;
  for (const std::string& path : paths) {
    const std::vector<int32_t> ids = TokensOf(*Shard::Open(path));
    lengths.push_back(ids.size());
    all.insert(all.end(), ids.begin(), ids.end());
  }
  EXPECT_EQ(lengths, (std::vector<size_t>{5, 1, 7, 1}));
  for (int32_t i = 0; i < 14; ++i) EXPECT_EQ(all[i], i + 1);
}

TEST(ShardWriter, NothingAppearsBeforeTheEnd) {
  const TemporaryFolder folder;
  ShardWriter::Options options = OptionsFor(folder("out"), 100);
  options.tokens_per_shard = 2;
  {
    ShardWriter writer = *ShardWriter::Create(options);
    ASSERT_TRUE(writer.Add(Document{1, 2}).ok());
    ASSERT_TRUE(writer.Add(Document{3, 4}).ok());
  }
  EXPECT_FALSE(FileSystem::Get().Exists(folder("out"))) << "as if killed";
  WriteAll(options, {{5}});
  EXPECT_EQ(FileSystem::Get().List(folder("out"))->size(), 1u);
  EXPECT_EQ(FileSystem::Get().List(folder(""))->size(), 2u) << "what was killed stays";
}

TEST(ShardWriter, WritersOfOneNameDoNotMeet) {
  const TemporaryFolder folder;
  const ShardWriter::Options options = OptionsFor(folder("out"), 100);
  folder.Write("out.tmp", "the user's");
  ShardWriter first = *ShardWriter::Create(options), second = *ShardWriter::Create(options);
  ASSERT_TRUE(first.Add(Document{1}).ok());
  ASSERT_TRUE(second.Add(Document{2}).ok());
  EXPECT_TRUE(first.Finish().ok());
  EXPECT_FALSE(second.Finish().ok());
  EXPECT_EQ(TokensOf(*Shard::Open(ListShards(folder("out"))->front())), (std::vector<int32_t>{1}));
  EXPECT_TRUE(FileSystem::Get().Exists(folder("out.tmp")));
}

TEST(ShardWriter, RefusesWhatItCannotKeep) {
  const TemporaryFolder folder;
  EXPECT_TRUE(absl::IsInvalidArgument(ShardWriter::Create(OptionsFor("", 9)).status()));
  ShardWriter writer = *ShardWriter::Create(OptionsFor(folder("a"), 100));
  EXPECT_TRUE(absl::IsInvalidArgument(writer.Add(Document{1, 100})));
  EXPECT_TRUE(absl::IsInvalidArgument(writer.Add(Document{-1})));
  EXPECT_TRUE(absl::IsInvalidArgument(writer.Finish())) << "no document";
  folder.Write("file", "x");
  EXPECT_TRUE(absl::IsInvalidArgument(ShardWriter::Create(OptionsFor(folder("file"), 9)).status()));
  WriteAll(OptionsFor(folder("b"), 100), {{1}});
  EXPECT_TRUE(absl::IsInvalidArgument(ShardWriter::Create(OptionsFor(folder("b"), 9)).status()));
}

TEST(Shard, EmptyFoldersAndForeignFilesAreNamed) {
  const TemporaryFolder folder;
  EXPECT_TRUE(absl::IsNotFound(ListShards(folder("none")).status()));
  ASSERT_TRUE(FileSystem::Get().MakeDirectories(folder("empty")).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(ListShards(folder("empty")).status()));
  EXPECT_TRUE(absl::IsNotFound(Shard::Open(folder("none.h5")).status()));
  EXPECT_TRUE(absl::IsDataLoss(Shard::Open(folder.Write("zero.h5", "")).status()));
  const float x = 1;
  h5::File other = *h5::File::Create(folder("other.h5"));
  ASSERT_TRUE(other.Write("x", h5::Type::kF32, {1}, &x).ok());
  ASSERT_TRUE(other.Close().ok());
  EXPECT_TRUE(absl::IsInvalidArgument(Shard::Open(folder("other.h5")).status()));
}

// A shard by hand, with one thing that may be wrong.
struct Forged {
  int64_t version = 1, vocab = 100, tokens = 4, documents = 2;
  std::vector<int64_t> starts = {0, 2};
  h5::Type type = h5::Type::kU16;
  std::string without;  // an attribute or a dataset that is left out
};

absl::Status OpenForged(const std::string& path, const Forged& forged) {
  const std::vector<uint16_t> ids = {1, 2, 3, 4};
  h5::File file = *h5::File::Create(path);
  EXPECT_TRUE(file.SetAttribute("/", "format_version", forged.version).ok());
  EXPECT_TRUE(file.SetAttribute("/", "vocab_size", forged.vocab).ok());
  EXPECT_TRUE(file.SetAttribute("/", "tokens", forged.tokens).ok());
  EXPECT_TRUE(file.SetAttribute("/", "documents", forged.documents).ok());
  for (const char* name : {"tokenizer", "tokenizer_hash", "content_hash"}) {
    if (forged.without == name) continue;
    EXPECT_TRUE(file.SetAttribute("/", name, std::string("x")).ok());
  }
  const int64_t tokens = forged.type == h5::Type::kU16 ? 4 : 2;
  EXPECT_TRUE(file.Write("tokens", forged.type, {tokens}, ids.data()).ok());
  if (forged.without != "document_starts") {
    EXPECT_TRUE(file.Write("document_starts", h5::Type::kI64,
                           {static_cast<int64_t>(forged.starts.size())}, forged.starts.data())
                    .ok());
  }
  EXPECT_TRUE(file.Close().ok());
  return Shard::Open(path).status();
}

TEST(Shard, HeaderAndContentMustAgree) {
  const TemporaryFolder folder;
  const std::string path = folder("x.h5");
  EXPECT_TRUE(OpenForged(path, {}).ok()) << OpenForged(path, {});
  EXPECT_TRUE(absl::IsInvalidArgument(OpenForged(path, {.version = 2})));
  EXPECT_TRUE(absl::IsDataLoss(OpenForged(path, {.vocab = 0})));
  EXPECT_TRUE(absl::IsDataLoss(OpenForged(path, {.vocab = int64_t{1} << 40})));
  EXPECT_TRUE(absl::IsDataLoss(OpenForged(path, {.vocab = 70000}))) << "u16 for a wide vocabulary";
  EXPECT_TRUE(absl::IsDataLoss(OpenForged(path, {.tokens = 0})));
  EXPECT_TRUE(absl::IsDataLoss(OpenForged(path, {.tokens = 5})));
  EXPECT_TRUE(absl::IsDataLoss(OpenForged(path, {.documents = 1})));
  EXPECT_TRUE(absl::IsDataLoss(OpenForged(path, {.starts = {1, 2}})));
  EXPECT_TRUE(absl::IsDataLoss(OpenForged(path, {.starts = {0, 0}})));
  EXPECT_TRUE(absl::IsDataLoss(OpenForged(path, {.starts = {0, 4}})));
  EXPECT_TRUE(absl::IsDataLoss(OpenForged(path, {.type = h5::Type::kI32})));
  for (const char* name : {"tokenizer", "content_hash", "document_starts"}) {
    EXPECT_TRUE(absl::IsDataLoss(OpenForged(path, {.without = name}))) << name;
  }
}

// Every cut is noticed and named; a flipped byte outside the tokens too, or it changes nothing.
TEST(Shard, DamageIsNoticed) {
  const TemporaryFolder folder;
  Document document(3000);
  for (int32_t i = 0; i < 3000; ++i) document[i] = i % 100;
  WriteAll(OptionsFor(folder("good"), 100), {document, {1, 2}, document});
  const std::string path = folder("good/shard-00000.h5");
  const std::string good = *FileSystem::Get().ReadFile(path);
  const Shard whole = *Shard::Open(path);
  const std::vector<int32_t> expected = TokensOf(whole);
  const uint64_t seed = 424242;
  int refused = 0;
  for (uint64_t trial = 0; trial < 240; ++trial) {
    SCOPED_TRACE(testing::Message() << "seed " << seed << " trial " << trial);
    const Philox4 random = Philox(seed, trial);
    std::string bad = good;
    const bool cut = trial % 2 == 0;
    const size_t tokens = whole.token_bytes().size();
    if (cut) {
      bad.resize(random[0] % good.size());
    } else {
      size_t at = random[0] % (good.size() - tokens);
      if (at >= static_cast<size_t>(whole.offset())) at += tokens;
      bad[at] = static_cast<char>(bad[at] ^ (1 + random[1] % 255));
    }
    const std::string copy = folder.Write("bad.h5", bad);
    const absl::StatusOr<Shard> shard = Shard::Open(copy);
    if (!shard.ok()) {
      ++refused;
      EXPECT_NE(shard.status().message().find(copy), std::string::npos) << shard.status();
      EXPECT_TRUE(absl::IsDataLoss(shard.status())) << shard.status();
    } else {
      EXPECT_FALSE(cut);
      EXPECT_EQ(TokensOf(*shard), expected);
      EXPECT_EQ(shard->document_starts().size(), 3u);
    }
  }
  EXPECT_GE(refused, 130);
}

}  // namespace
}  // namespace lt2
