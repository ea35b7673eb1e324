#include "data/data_config.h"

#include <gtest/gtest.h>

namespace lt2 {
namespace {

absl::Status ReadText(const std::string& text, DataConfig* config) {
  absl::StatusOr<ConfigTable> root = ConfigTable::Parse(text, "run.toml");
  if (!root.ok()) return root.status();
  ReadDataConfig(root->Table("data"), config);
  return root->Finish();
}

TEST(DataConfig, ReadsAndWritesEveryKey) {
  const std::string text =
      "[data]\n"
      "train = [{path = \"a.txt\"}, {path = \"shards\", weight = 2.5}]\n"
      "valid = \"v.txt\"\nsequence = 256\ntokenizer = \"bytes\"\ndocuments = \"ignore\"\n";
  DataConfig config;
  ASSERT_TRUE(ReadText(text, &config).ok()) << ReadText(text, &config);
  for (int round = 0; round < 2; ++round) {
    ASSERT_EQ(config.train.size(), 2u);
    EXPECT_EQ(config.train[0].path, "a.txt");
    EXPECT_EQ(config.train[0].weight, 1);
    EXPECT_EQ(config.train[1].path, "shards");
    EXPECT_EQ(config.train[1].weight, 2.5);
    EXPECT_EQ(config.valid, "v.txt");
    EXPECT_EQ(config.sequence, 256);
    EXPECT_EQ(config.documents, DocumentMode::kIgnore);
    ConfigTable root, data;
    WriteDataConfig(config, &data);
    root.SetTable("data", data);
    config = DataConfig();
    ASSERT_TRUE(ReadText(root.ToToml(), &config).ok()) << root.ToToml();
  }
}

TEST(DataConfig, DefaultsAndTheEmptyValidation) {
  DataConfig config;
  ASSERT_TRUE(ReadText("[data]\ntrain = [{path = \"a\"}]\n", &config).ok());
  EXPECT_FALSE(config.valid.has_value());
  EXPECT_EQ(config.documents, DocumentMode::kReset);
  ASSERT_TRUE(ReadText("[data]\ntrain = [{path = \"a\"}]\nvalid = \"\"\n", &config).ok());
  EXPECT_EQ(config.valid, "");
}

TEST(DataConfig, MistakesComeTogether) {
  DataConfig config;
  const absl::Status status = ReadText(
      "[data]\ntrain = [{weight = -1}]\nsequence = 0\ntokenizer = \"tokenizer.json\"\n"
      "documents = \"rest\"\nvalidd = 1\n",
      &config);
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  for (const char* part : {"path", "weight", "sequence", "only \"bytes\"", "documents", "validd"}) {
    EXPECT_NE(status.message().find(part), std::string::npos) << part << " in " << status;
  }
  EXPECT_TRUE(absl::IsInvalidArgument(ReadText("[data]\nsequence = 8\n", &config)));
}

}  // namespace
}  // namespace lt2
