#include "data/loader.h"

#include <gtest/gtest.h>

#include <set>

#include "core/philox.h"
#include "core/strings.h"
#include "data/shard_writer.h"
#include "tests/data/temporary_folder.h"

namespace lt2 {
namespace {

class LoaderTest : public ::testing::Test {
 protected:
  // `documents` texts of pseudo-random lengths and letters, separated by blank lines.
  std::string Text(const std::string& name, int documents, uint64_t seed = 3) {
    std::string text;
    for (int d = 0; d < documents; ++d) {
      const uint32_t length = 1 + Philox(seed, d)[0] % 30;
      for (uint32_t i = 0; i < length; ++i)
        text += static_cast<char>('a' + Philox(seed, d, i)[1] % 26);
      text += "\n\n";
    }
    return folder_.Write(name, text);
  }
  DataConfig Config(const std::vector<DataConfig::Train>& train, int64_t sequence = 16) {
    DataConfig config;
    config.train = train;
    config.sequence = sequence;
    return config;
  }
  std::string Content(const std::string& path) { return *FileSystem::Get().ReadFile(path); }

  TemporaryFolder folder_;
};

TEST_F(LoaderTest, WindowsAndTargetsAreTheText) {
  DataConfig config = Config({{.path = Text("t.txt", 50)}});
  config.documents = DocumentMode::kIgnore;
  config.valid = "";
  const auto loader = *Loader::Open(config, 5, 256);
  const std::string text = Content(config.train[0].path);
  const int64_t n = loader->windows(0);
  EXPECT_EQ(n, (static_cast<int64_t>(text.size()) - 1) / 16);
  EXPECT_EQ(loader->valid_windows(), 0);
  EXPECT_EQ(loader->max_documents(3), 3);
  Batch batch;
  for (int64_t i = 0; i < 2 * n; i += 3) {
    ASSERT_TRUE(loader->Read(std::vector<int64_t>{i, i + 1, i + 2}, &batch).ok());
    EXPECT_EQ(batch.rows, 3);
    EXPECT_EQ(batch.counted, 48);
    EXPECT_EQ(batch.cu_seqlens, (std::vector<int32_t>{0, 16, 32, 48}));
    for (int64_t row = 0; row < 3; ++row) {
      const int64_t begin = loader->PlaceOf(i + row).window * 16;
      for (int64_t t = 0; t < 16; ++t) {
        ASSERT_EQ(batch.ids[row * 16 + t], text[begin + t]);
        ASSERT_EQ(batch.targets[row * 16 + t], text[begin + t + 1]);
      }
    }
  }
}

TEST_F(LoaderTest, ResetCutsAtDocuments) {
  DataConfig config = Config({{.path = Text("t.txt", 80)}}, 32);
  config.valid = "";
  const auto loader = *Loader::Open(config, 5, 256);
  const std::string text = Content(config.train[0].path);
  const auto starts_document = [&](int64_t at) {
    return at == 0 || (text[at - 1] == '\n' && text[at - 2] == '\n');
  };
  Batch batch;
  int64_t most = 0;
  for (int64_t i = 0; i < loader->windows(0); ++i) {
    ASSERT_TRUE(loader->Read(std::vector<int64_t>{i}, &batch).ok());
    const int64_t begin = loader->PlaceOf(i).window * 32;
    std::vector<int32_t> expected = {0};
    int64_t counted = 0;
    for (int32_t t = 0; t < 32; ++t) {
      if (t > 0 && starts_document(begin + t)) expected.push_back(t);
      const bool ignored = starts_document(begin + t + 1);
      counted += !ignored;
      ASSERT_EQ(batch.targets[t], ignored ? kIgnoredTarget : text[begin + t + 1]) << t;
      ASSERT_EQ(batch.ids[t], text[begin + t]);
    }
    most = std::max<int64_t>(most, expected.size());
    expected.push_back(32);
    ASSERT_EQ(batch.cu_seqlens, expected);
    ASSERT_EQ(batch.counted, counted);
  }
  EXPECT_EQ(loader->max_documents(1), most);
  EXPECT_EQ(loader->max_documents(5), 5 * most);
}

TEST_F(LoaderTest, ValidationIsTheLastTenthOfTheDocuments) {
  const DataConfig config = Config({{.path = Text("t.txt", 57)}}, 8);
  const auto loader = *Loader::Open(config, 5, 256);
  const std::string text = Content(config.train[0].path);
  size_t split = 0;
  for (int d = 0; d < 52; ++d) split = text.find("\n\n", split) + 2;
  const int64_t train = static_cast<int64_t>(split),
                valid = static_cast<int64_t>(text.size()) - train;
  EXPECT_EQ(loader->windows(0), (train - 1) / 8);
  ASSERT_EQ(loader->valid_windows(), (valid - 1) / 8);
  Batch batch;
  ASSERT_TRUE(loader->ReadValid(1, loader->valid_windows() - 1, &batch).ok());
  for (size_t t = 0; t < batch.ids.size(); ++t) ASSERT_EQ(batch.ids[t], text[train + 8 + t]);
}

TEST_F(LoaderTest, ValidationFollowsOverSeveralTexts) {
  const DataConfig config =
      Config({{.path = Text("a.txt", 40, 1)}, {.path = Text("b.txt", 60, 2)}}, 4);
  const auto loader = *Loader::Open(config, 5, 256);
  Batch all, one;
  ASSERT_TRUE(loader->ReadValid(0, loader->valid_windows(), &all).ok());
  for (int64_t w = 0; w < loader->valid_windows(); ++w) {
    ASSERT_TRUE(loader->ReadValid(w, 1, &one).ok());
    for (int64_t t = 0; t < 4; ++t) ASSERT_EQ(one.ids[t], all.ids[4 * w + t]);
  }
}

TEST_F(LoaderTest, ANamedValidationText) {
  DataConfig config = Config({{.path = Text("a.txt", 40, 1)}});
  const auto split = *Loader::Open(config, 5, 256);
  config.valid = Text("b.txt", 30, 2);
  const auto named = *Loader::Open(config, 5, 256);
  EXPECT_GT(named->windows(0), split->windows(0)) << "all of the text trains";
  Batch batch;
  ASSERT_TRUE(named->ReadValid(0, 1, &batch).ok());
  EXPECT_EQ(batch.ids[0], Content(*config.valid)[0]);
  config.valid = config.train[0].path;
  const auto same = *Loader::Open(config, 5, 256);
  EXPECT_EQ(same->windows(0), split->windows(0)) << "never validate on what was trained on";
  EXPECT_EQ(same->fingerprint(), split->fingerprint());
}

// Whatever the ranks and micro-batches, an epoch reads every window once, in the same global order.
TEST_F(LoaderTest, RanksShareOneOrder) {
  DataConfig config = Config({{.path = Text("t.txt", 60)}}, 8);
  const auto loader = *Loader::Open(config, 17, 256);
  const int64_t n = loader->windows(0);
  Batch batch;
  std::vector<std::vector<int32_t>> order;
  for (int64_t i = 0; i < 2 * n; ++i) {
    ASSERT_TRUE(loader->Read(std::vector<int64_t>{i}, &batch).ok());
    order.push_back(batch.ids);
  }
  EXPECT_NE(std::vector(order.begin(), order.begin() + n),
            std::vector(order.begin() + n, order.end()))
      << "epochs are shuffled anew";
  for (const int64_t ranks : {1, 2, 3, 4}) {
    for (const int64_t micro_batch : {1, 2, 4}) {
      SCOPED_TRACE(testing::Message() << ranks << " ranks, micro-batch " << micro_batch);
      const int64_t per_step = 24;  // divisible by every ranks · micro_batch but 3 · 4 · …
      std::vector<std::vector<int32_t>> seen(2 * n);
      for (int64_t first = 0; first < 2 * n; first += per_step) {
        const int64_t share = per_step / ranks;
        for (int64_t rank = 0; rank < ranks; ++rank) {
          for (int64_t at = 0; at < share; at += micro_batch) {
            std::vector<int64_t> samples;
            for (int64_t row = at; row < std::min(at + micro_batch, share); ++row) {
              const int64_t sample = first + rank * share + row;
              if (sample < 2 * n) samples.push_back(sample);
            }
            ASSERT_TRUE(loader->Read(samples, &batch).ok());
            for (size_t row = 0; row < samples.size(); ++row) {
              ASSERT_TRUE(seen[samples[row]].empty()) << "read twice";
              seen[samples[row]].assign(batch.ids.begin() + row * 8,
                                        batch.ids.begin() + row * 8 + 8);
            }
          }
        }
      }
      EXPECT_EQ(seen, order);
    }
  }
  for (int64_t epoch = 0; epoch < 2; ++epoch) {
    std::set<int64_t> windows;
    for (int64_t i = 0; i < n; ++i) windows.insert(loader->PlaceOf(epoch * n + i).window);
    EXPECT_EQ(static_cast<int64_t>(windows.size()), n);
    EXPECT_EQ(loader->epoch(epoch * n), epoch);
    EXPECT_EQ(loader->epoch(epoch * n + n - 1), epoch);
  }
}

TEST_F(LoaderTest, SeedsAndSourcesHaveOrdersOfTheirOwn) {
  const std::string path = Text("t.txt", 300);
  const DataConfig config = Config({{.path = path}, {.path = path}}, 4);
  const auto a = *Loader::Open(config, 1, 256), b = *Loader::Open(config, 2, 256);
  std::vector<int64_t> first, second, other;
  for (int64_t i = 0; i < 400; ++i) {
    const Loader::Place place = a->PlaceOf(i);
    (place.source == 0 ? first : second).push_back(place.window);
    if (const Loader::Place there = b->PlaceOf(i); there.source == 0) other.push_back(there.window);
  }
  EXPECT_EQ(first.size(), 200u);
  EXPECT_EQ(second.size(), 200u);
  EXPECT_NE(first, second);
  EXPECT_NE(first, other);
  EXPECT_NE(a->fingerprint(), b->fingerprint());
}

TEST_F(LoaderTest, MixtureReadsEachSourceThrough) {
  const DataConfig config = Config(
      {{.path = Text("a.txt", 30, 1), .weight = 1}, {.path = Text("b.txt", 200, 2), .weight = 3}},
      8);
  const auto loader = *Loader::Open(config, 9, 256);
  std::vector<std::vector<int>> reads = {std::vector<int>(loader->windows(0)),
                                         std::vector<int>(loader->windows(1))};
  const int64_t samples = 4 * loader->windows(0);
  for (int64_t i = 0; i < samples; ++i) {
    const Loader::Place place = loader->PlaceOf(i);
    ++reads[place.source][place.window];
  }
  for (const int count : reads[0]) EXPECT_EQ(count, 1);
  for (const int count : reads[1])
    EXPECT_LE(count, 1 + 3 * loader->windows(0) / loader->windows(1));
  EXPECT_EQ(loader->epoch(samples),
            std::min<int64_t>(1, 3 * loader->windows(0) / loader->windows(1)));
}

TEST_F(LoaderTest, FingerprintKnowsWhatDecidesTheOrder) {
  DataConfig config = Config({{.path = Text("t.txt", 60)}});
  const std::string base = (*Loader::Open(config, 1, 256))->fingerprint();
  EXPECT_EQ(base.size(), 32u);
  EXPECT_EQ((*Loader::Open(config, 1, 0))->fingerprint(), base);
  std::set<std::string> all = {base};
  DataConfig other = config;
  other.sequence = 17;
  all.insert((*Loader::Open(other, 1, 256))->fingerprint());
  other = config;
  other.documents = DocumentMode::kIgnore;
  all.insert((*Loader::Open(other, 1, 256))->fingerprint());
  other = config;
  other.valid = "";
  all.insert((*Loader::Open(other, 1, 256))->fingerprint());
  Text("t.txt", 61);
  all.insert((*Loader::Open(config, 1, 256))->fingerprint());
  EXPECT_EQ(all.size(), 5u);
}

TEST_F(LoaderTest, SteadyStateReusesItsVectors) {
  const auto loader = *Loader::Open(Config({{.path = Text("t.txt", 200)}}, 32), 1, 256);
  Batch batch;
  ASSERT_TRUE(loader->Read(std::vector<int64_t>{0, 1, 2, 3}, &batch).ok());
  const void* before[] = {batch.ids.data(), batch.targets.data(), batch.cu_seqlens.data()};
  for (int64_t i = 4; i < 200; i += 4) {
    ASSERT_TRUE(loader->Read(std::vector<int64_t>{i, i + 1, i + 2, i + 3}, &batch).ok());
    ASSERT_EQ(batch.ids.data(), before[0]);
    ASSERT_EQ(batch.targets.data(), before[1]);
    ASSERT_EQ(batch.cu_seqlens.data(), before[2]);
  }
}

TEST_F(LoaderTest, BadInputIsNamed) {
  const auto status = [&](const DataConfig& config, int64_t vocab = 256) {
    return Loader::Open(config, 1, vocab).status();
  };
  EXPECT_TRUE(absl::IsNotFound(status(Config({{.path = folder_("none.txt")}}))));
  const std::string path = Text("t.txt", 60);
  const absl::Status vocab = status(Config({{.path = path}}), 255);
  EXPECT_TRUE(absl::IsInvalidArgument(vocab));
  EXPECT_NE(vocab.message().find("model.vocab = 255"), std::string::npos) << vocab;
  EXPECT_TRUE(absl::IsInvalidArgument(status(Config({{.path = path}}, 100'000))));
  EXPECT_TRUE(absl::IsInvalidArgument(status(Config({{.path = path}}, 200)))) << "validation part";
  EXPECT_TRUE(
      absl::IsInvalidArgument(status(Config({{.path = folder_.Write("1", "one document")}}, 2))));
  DataConfig config = Config({{.path = path}});
  config.tokenizer = "tokenizer.json";
  EXPECT_TRUE(absl::IsInvalidArgument(status(config)));
  config = Config({{.path = path}});
  config.valid = folder_("none.txt");
  EXPECT_TRUE(absl::IsNotFound(status(config)));
}

TEST_F(LoaderTest, DamagedTokensSurfaceWhenTheyAreRead) {
  const std::unique_ptr<Tokenizer> bytes = *MakeTokenizer("bytes");
  ShardWriter writer = *ShardWriter::Create(ShardWriter::Options::For(*bytes, folder_("shards")));
  ASSERT_TRUE(writer.Add(std::vector<int32_t>(1000, 7)).ok());
  ASSERT_TRUE(writer.Finish().ok());
  const std::string path = folder_("shards/shard-00000.h5");
  const int64_t offset = Shard::Open(path)->offset();
  std::string content = Content(path);
  content[offset + 2 * 500 + 1] = 2;
  ASSERT_TRUE(FileSystem::Get().WriteFile(path, content).ok());
  const auto loader = *Loader::Open(Config({{.path = folder_("shards")}}, 10), 1, 256);
  Batch batch;
  int damaged = 0;
  for (int64_t i = 0; i < loader->windows(0); ++i) {
    const absl::Status status = loader->Read(std::vector<int64_t>{i}, &batch);
    const int64_t window = loader->PlaceOf(i).window;
    if (status.ok()) continue;
    ++damaged;
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_TRUE(window == 49 || window == 50) << "token 500 is the last target of window 49";
    EXPECT_NE(status.message().find("token 500"), std::string::npos) << status;
  }
  EXPECT_EQ(damaged, 2);
}

}  // namespace
}  // namespace lt2
