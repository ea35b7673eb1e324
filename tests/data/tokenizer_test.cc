#include "data/tokenizer.h"

#include <gtest/gtest.h>

namespace lt2 {
namespace {

TEST(ByteTokenizer, EveryByteComesBack) {
  const std::unique_ptr<Tokenizer> tokenizer = *MakeTokenizer("bytes");
  std::string text;
  for (int c = 0; c < 256; ++c) text += static_cast<char>(c);
  const std::vector<int32_t> ids = tokenizer->Encode(text);
  for (int c = 0; c < 256; ++c) EXPECT_EQ(ids[c], c);
  EXPECT_EQ(*tokenizer->Decode(ids), text);
  EXPECT_EQ(tokenizer->vocab_size(), 256);
  EXPECT_EQ(tokenizer->name(), "bytes");
}

TEST(ByteTokenizer, HashIsStable) {
  // Shards and checkpoints on disk carry it.
  EXPECT_EQ((*MakeTokenizer("bytes"))->hash(), "c6dfdeabaa522c85837658a1f95acf50");
}

TEST(ByteTokenizer, DecodeRefusesOtherIds) {
  const std::unique_ptr<Tokenizer> tokenizer = *MakeTokenizer("bytes");
  EXPECT_TRUE(absl::IsInvalidArgument(tokenizer->Decode(std::vector<int32_t>{256}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(tokenizer->Decode(std::vector<int32_t>{-1}).status()));
}

TEST(MakeTokenizer, NamesWhatIsSupported) {
  const absl::Status status = MakeTokenizer("tokenizer.json").status();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_NE(status.message().find("only \"bytes\""), std::string::npos) << status;
}

}  // namespace
}  // namespace lt2
