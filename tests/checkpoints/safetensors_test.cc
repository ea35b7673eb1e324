#include "checkpoints/safetensors.h"

#include <gtest/gtest.h>

#include "checkpoints/safetensors_model.h"
#include "tests/checkpoints/safetensors_sample.h"
#include "tests/checkpoints/sample_state.h"
#include "tests/support/temporary_directory.h"

namespace lt2 {
namespace {

class SafetensorsTest : public testing::Test {
 protected:
  std::string Write(const std::string& name, const std::string& bytes) const {
    const std::string path = JoinPath(directory_.path(), name);
    EXPECT_TRUE(FileSystem::Get().WriteFile(path, bytes).ok());
    return path;
  }
  absl::StatusOr<SafetensorsModel> Open(const std::string& bytes) const {
    return SafetensorsModel::Open(Write("model.safetensors", bytes));
  }
  TemporaryDirectory directory_;
};

// Random tensors of every dtype with whole bytes, some without elements, some scalars.
std::vector<SampleSafeTensor> RandomTensors(uint64_t seed) {
  constexpr std::pair<const char*, int> kTypes[] = {{"F64", 8}, {"F32", 4},  {"BF16", 2},
                                                    {"F16", 2}, {"I64", 8},  {"U16", 2},
                                                    {"I8", 1},  {"BOOL", 1}, {"F8_E4M3", 1}};
  Dice dice(seed);
  std::vector<SampleSafeTensor> tensors;
  for (int64_t i = dice.Below(12); i >= 0; --i) {
    const auto& [dtype, size] = kTypes[dice.Below(std::size(kTypes))];
    Shape shape;
    for (int64_t rank = dice.Below(Shape::kMaxRank + 1); rank > 0; --rank) {
      shape.push_back(dice.Below(5));
    }
    tensors.push_back(
        {StrCat("t", i, "/\"\xc3\xa9"), dtype, shape, RandomBytes(shape.size() * size, seed + i)});
  }
  return tensors;
}

TEST_F(SafetensorsTest, ReadsTheFormat) {
  const auto model = Open(SafetensorsBytes(
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"BF16","shape":[2,1],"data_offsets":[4,8]},)"
      R"("a":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}   )",
      "0123abcd"));
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->metadata().at("format"), "pt");
  ASSERT_EQ(model->tensors().size(), 2u);
  EXPECT_EQ(model->Find("a")->shape, Shape());
  EXPECT_EQ(model->Find("b")->shape, (Shape{2, 1}));
  EXPECT_EQ(model->Find("b")->dtype, "BF16");
  EXPECT_EQ(model->Find("c"), nullptr);
  std::string read(3, '\0');
  ASSERT_TRUE(model->Read("b", 1, std::as_writable_bytes(std::span(read))).ok());
  EXPECT_EQ(read, "bcd");
}

TEST_F(SafetensorsTest, WhatIsLaidOutReadsBack) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const auto tensors = RandomTensors(seed);
    const std::string bytes = SafetensorsBytes(tensors, {{"k\n", "\xe2\x82\xac \""}});
    const auto model = Open(bytes);
    ASSERT_TRUE(model.ok()) << model.status();
    EXPECT_EQ(model->metadata(), (std::map<std::string, std::string>{{"k\n", "\xe2\x82\xac \""}}));
    EXPECT_EQ(model->tensors().size(), tensors.size());
    for (const SampleSafeTensor& tensor : tensors) {
      const SafeTensor* found = model->Find(tensor.name);
      ASSERT_NE(found, nullptr);
      EXPECT_EQ(found->shape, tensor.shape);
      EXPECT_EQ(found->dtype, tensor.dtype);
      std::string read(tensor.bytes.size(), '\0');
      const int64_t before = model->bytes_read();
      ASSERT_TRUE(model->Read(tensor.name, 0, std::as_writable_bytes(std::span(read))).ok());
      EXPECT_EQ(model->bytes_read() - before, found->bytes);
      EXPECT_EQ(read, tensor.bytes);
      if (tensor.dtype == "F64" || tensor.dtype == "I64") {
        EXPECT_EQ(found->offset % 8, 0) << tensor.name;
      }
    }
  }
}

// Of a file of two tensors with 8 and 4 bytes of data.
struct Bad {
  std::string json;
  absl::StatusCode code;
  const char* message;
};
constexpr char kGood[] = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                         R"("b":{"dtype":"U8","shape":[4],"data_offsets":[8,12]}})";

std::string With(const std::string& from, const std::string& to) {
  std::string json = kGood;
  const size_t at = json.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return json.replace(at, from.size(), to);
}

TEST_F(SafetensorsTest, WhatContradictsTheFormatIsNamed) {
  constexpr auto kDamage = absl::StatusCode::kDataLoss;
  constexpr auto kNotHere = absl::StatusCode::kInvalidArgument;
  const std::string deep(1000, '[');
  const std::vector<Bad> cases = {
      {"", kDamage, "header"},
      {"[]", kDamage, "the header is no object"},
      {"{", kDamage, "header"},
      {"{\"a\":" + deep, kDamage, "too deep"},
      {"{\"\xff\":1}", kDamage, "header"},
      {"{}", kDamage, "end at byte 0 of the data, which has 12"},
      {With("[8,12]", "[8,11]"), kDamage, "b: U8 [4] takes 4 bytes"},
      {With("[8,12]", "[12,8]"), kDamage, "b: "},
      {With("[8,12]", "[9,13]"), kDamage, "b: "},
      {With("[8,12]", "[4,8]"), kDamage, "b: begins at byte 4 of the data"},  // overlap
      {With("[4],\"data_offsets\":[8,12]", "[3],\"data_offsets\":[9,12]"), kDamage,
       "b: begins at byte 9 of the data"},  // a hole
      {With("[4],\"data_offsets\":[8,12]", "[3],\"data_offsets\":[8,11]"), kDamage,
       "end at byte 11"},
      {With("[8,12]", "[8,12,12]"), kDamage, "b: data_offsets"},
      {With("[8,12]", "[-8,12]"), kDamage, "b: "},
      {With("[8,12]", "[8.0,12]"), kDamage, "b: "},
      {With("[8,12]", "[8,18446744073709551615]"), kDamage, "b: "},
      {With("[2]", "[4611686018427387904,2,2,2]"), kDamage, "a: F32 [4611686018427387904"},
      {With("[2]", "[9223372036854775807,0,9223372036854775807]"), kDamage, "too large"},
      {With("[2]", "2"), kDamage, "a: a shape is a list"},
      {With("[2]", "[-2]"), kDamage, "a: "},
      {With("[2]", "[1,1,1,1,1,2]"), kNotHere, "a: rank 6"},
      {With("\"F32\"", "\"F33\""), kNotHere, "a: dtype 'F33'"},
      {With("\"F32\"", "32"), kDamage, "a: "},
      {With("\"F32\",\"shape\":[2]", "\"F4\",\"shape\":[3]"), kDamage, "whole number of bytes"},
      {With("\"shape\"", "\"shapes\""), kDamage, "a: "},
      {With("\"b\"", "\"a\""), kDamage, "\"a\" is there twice"},
      {With("\"shape\"", "\"dtype\""), kDamage, "\"dtype\" is there twice"},
      {With("{\"a\"", "{\"__metadata__\":{\"k\":1},\"a\""), kDamage, "header"},
      {With("{\"a\"", "{\"__metadata__\":\"k\",\"a\""), kDamage, "header"},
  };
  ASSERT_TRUE(Open(SafetensorsBytes(kGood, "0123456789ab")).ok());
  for (const Bad& bad : cases) {
    const absl::Status status = Open(SafetensorsBytes(bad.json, "0123456789ab")).status();
    EXPECT_EQ(status.code(), bad.code) << bad.json << ": " << status;
    EXPECT_NE(status.message().find(bad.message), std::string::npos) << bad.json << ": " << status;
    EXPECT_NE(status.message().find("model.safetensors: "), std::string::npos) << status;
  }
}

TEST_F(SafetensorsTest, EveryTruncationIsDataLossNamingTheFile) {
  const std::string bytes = SafetensorsBytes(kGood, "0123456789ab");
  for (size_t length = 0; length < bytes.size(); ++length) {
    const absl::Status status = Open(bytes.substr(0, length)).status();
    ASSERT_TRUE(absl::IsDataLoss(status)) << length << ": " << status;
    ASSERT_NE(status.message().find("model.safetensors"), std::string::npos) << status;
  }
  EXPECT_TRUE(absl::IsDataLoss(Open(bytes + "x").status()));
}

TEST_F(SafetensorsTest, ALengthIsNotBelieved) {
  for (const uint64_t length :
       {uint64_t{13}, uint64_t{100'000'001}, uint64_t{1} << 40, ~uint64_t{0}, uint64_t{1} << 63}) {
    std::string bytes(sizeof(length), '\0');
    std::memcpy(bytes.data(), &length, sizeof(length));
    const absl::Status status = Open(bytes + "{\"a\":1}     ").status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_NE(status.message().find(StrCat("a header of ", length, " bytes")), std::string::npos)
        << status;
  }
}

// Whatever is changed, it is refused, or all that is listed can be read and fills the data.
TEST_F(SafetensorsTest, RandomDamage) {
  int refused = 0, read = 0;
  for (uint64_t seed = 1; seed <= 600; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Dice dice(seed);
    std::string bytes = SafetensorsBytes(RandomTensors(seed % 20 + 1));
    for (int64_t changes = dice.Below(3); changes >= 0; --changes) {
      bytes[dice.Below(static_cast<int64_t>(bytes.size()))] ^=
          static_cast<char>(1 << dice.Below(8));
    }
    const auto model = Open(bytes);
    if (!model.ok()) {
      ++refused;
      ASSERT_TRUE(absl::IsDataLoss(model.status()) || absl::IsInvalidArgument(model.status()))
          << model.status();
      continue;
    }
    ++read;
    for (const auto& [name, tensor] : model->tensors()) {
      std::string values(tensor.bytes, '\0');
      ASSERT_TRUE(model->Read(name, 0, std::as_writable_bytes(std::span(values))).ok());
    }
  }
  EXPECT_GT(refused, 100);
  EXPECT_GT(read, 20);
}

class SafetensorsFolder : public SafetensorsTest {
 protected:
  void SetUp() override {
    Write("one.safetensors", SafetensorsBytes({{"a", "U8", {2}, "01"}, {"b", "U8", {1}, "2"}}));
    Write("two.safetensors", SafetensorsBytes({{"c", "U8", {3}, "345"}}));
  }
  absl::StatusOr<SafetensorsModel> OpenWith(const std::string& weight_map) {
    Write(kSafetensorsIndexFile, StrCat("{\"metadata\":{},\"weight_map\":", weight_map, "}"));
    return SafetensorsModel::Open(directory_.path());
  }
  std::string Refusal(const std::string& weight_map) {
    const absl::Status status = OpenWith(weight_map).status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    return std::string(status.message());
  }
};

TEST_F(SafetensorsFolder, TheIndexSaysWhereTensorsAre) {
  const std::string good = R"({"a":"one.safetensors","b":"one.safetensors","c":"two.safetensors"})";
  const auto model = OpenWith(good);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->tensors().size(), 3u);
  std::string read(2, '\0');
  ASSERT_TRUE(model->Read("c", 1, std::as_writable_bytes(std::span(read))).ok());
  EXPECT_EQ(read, "45");
  EXPECT_TRUE(SafetensorsModel::Open(JoinPath(directory_.path(), kSafetensorsIndexFile)).ok());
}

TEST_F(SafetensorsFolder, AnIndexThatIsNotSoIsDamage) {
  EXPECT_NE(Refusal(R"({"a":"one.safetensors","b":"one.safetensors","c":"three.safetensors"})")
                .find("three.safetensors: a file that"),
            std::string::npos);
  EXPECT_NE(Refusal(R"({"a":"one.safetensors","b":"two.safetensors","c":"two.safetensors"})")
                .find("b is not in two.safetensors"),
            std::string::npos);
  EXPECT_NE(Refusal(R"({"a":"one.safetensors","c":"two.safetensors"})").find("b is not named by"),
            std::string::npos);
  for (const char* outside : {"../one.safetensors", "/etc/passwd", "", ".hidden", "a/b"}) {
    EXPECT_NE(Refusal(StrCat("{\"a\":\"", outside, "\"}")).find("is no name of a file"),
              std::string::npos);
  }
  for (const char* text : {"[]", "{\"a\":1}", "{\"a\":\"x\",\"a\":\"x\"}", "{"}) Refusal(text);
  Write("two.safetensors", SafetensorsBytes({{"a", "U8", {3}, "345"}}));
  EXPECT_NE(Refusal(R"({"a":"one.safetensors","b":"one.safetensors","c":"two.safetensors"})")
                .find("two.safetensors: a is in "),
            std::string::npos);
}

TEST_F(SafetensorsFolder, WhatIsNotThereIsNotFound) {
  EXPECT_TRUE(absl::IsNotFound(SafetensorsModel::Open(directory_.path()).status()));
  EXPECT_TRUE(
      absl::IsNotFound(SafetensorsModel::Open(JoinPath(directory_.path(), "none")).status()));
}

}  // namespace
}  // namespace lt2
