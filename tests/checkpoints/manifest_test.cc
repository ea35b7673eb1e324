#include "checkpoints/manifest.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>

namespace lt2 {
namespace {

Manifest Sample() {
  Manifest manifest;
  manifest.info = {.id = "0123456789abcdef",
                   .step = 1000,
                   .tokens = 1LL << 40,
                   .samples = 77,
                   .data = "f00d",
                   .tokenizer = "bytes",
                   .tokenizer_hash = "beef",
                   .seed = 0xffffffffffffffff,
                   .config = "[run]\nname = \"x\"\n# \xc3\xa9\n",
                   .mesh = "dp=2",
                   .ranks = 2,
                   .code = "abc",
                   .extra = {{"skipped", 3}, {"loss", 0.1}}};
  manifest.files = {{"shard-00000.h5", 9000, "aa"}, {"shard-00001.h5", 8000, "bb"}};
  StoredTensor tensor{"param", "embed.weight", DType::kF32, {5, 4}, {}};
  tensor.boxes.push_back({"shard-00000.h5", "id/param/embed.weight", 4096, {{0, 0}, {3, 4}}, "cc"});
  tensor.boxes.push_back({"shard-00001.h5", "id/param/embed.weight", 4096, {{3, 0}, {2, 4}}, "dd"});
  manifest.tensors.push_back(tensor);
  return manifest;
}

absl::Status StatusOfTensor(std::vector<Box> boxes) {
  StoredTensor tensor{"param", "w", DType::kF32, {5, 4}, {}};
  for (const Box& box : boxes) tensor.boxes.push_back({"f", "d", 0, box, ""});
  return CheckTiling(tensor);
}

TEST(Manifest, ReadsBackWhatItWrote) {
  const std::string text = ToJson(Sample());
  const absl::StatusOr<Manifest> read = ParseManifest(text, "m.json");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(ToJson(*read), text);
  EXPECT_EQ(read->info.seed, 0xffffffffffffffff);
  EXPECT_EQ(read->info.tokens, 1LL << 40);
  EXPECT_EQ(read->info.extra["loss"].get<double>(), 0.1);
  ASSERT_NE(read->Find("param/embed.weight"), nullptr);
  EXPECT_EQ(read->Find("param/embed.weight")->boxes[1].box, (Box{{3, 0}, {2, 4}}));
  EXPECT_EQ(read->Find("param/embed"), nullptr);
  EXPECT_EQ(read->bytes(), 17000);
}

TEST(Manifest, TextThatIsNotUtf8AndNumbersThatAreNotFiniteStillReadBack) {
  Manifest manifest = Sample();
  manifest.info.config = "path = \"\xff\xfe\"";
  manifest.info.extra["norm"] = std::numeric_limits<double>::quiet_NaN();
  const absl::StatusOr<Manifest> read = ParseManifest(ToJson(manifest), "m.json");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_TRUE(read->info.extra["norm"].is_null());
}

TEST(Manifest, EveryTruncationIsDataLossNamingTheFile) {
  const std::string text = ToJson(Sample());
  for (size_t length = 0; length + 1 < text.size(); ++length) {
    const auto read = ParseManifest(text.substr(0, length), "dir/manifest.json");
    ASSERT_TRUE(absl::IsDataLoss(read.status())) << length << ": " << read.status();
    ASSERT_NE(read.status().message().find("dir/manifest.json"), std::string::npos);
  }
}

TEST(Manifest, EveryFlippedBitIsNoticed) {
  const std::string text = ToJson(Sample());
  for (size_t i = 0; i + 1 < text.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string damaged = text;
      damaged[i] = static_cast<char>(damaged[i] ^ (1 << bit));
      const absl::Status status = ParseManifest(damaged, "m").status();
      // The digit of the format may turn into a higher one.
      ASSERT_TRUE(absl::IsDataLoss(status) || absl::IsInvalidArgument(status))
          << "byte " << i << " bit " << bit << ": " << status;
    }
  }
}

TEST(Manifest, ANewerFormatIsNotCalledDamage) {
  const auto read = ParseManifest(R"({"format": 999})", "m.json");
  EXPECT_TRUE(absl::IsInvalidArgument(read.status())) << read.status();
}

TEST(Manifest, BoxesMustTileTheTensorOnce) {
  EXPECT_TRUE(StatusOfTensor({{{0, 0}, {5, 4}}}).ok());
  EXPECT_TRUE(StatusOfTensor({{{0, 0}, {5, 1}}, {{0, 1}, {2, 3}}, {{2, 1}, {3, 3}}}).ok());
  EXPECT_TRUE(absl::IsDataLoss(StatusOfTensor({})));
  EXPECT_TRUE(absl::IsDataLoss(StatusOfTensor({{{0, 0}, {4, 4}}})));                    // hole
  EXPECT_TRUE(absl::IsDataLoss(StatusOfTensor({{{0, 0}, {3, 4}}, {{2, 0}, {3, 4}}})));  // overlap
  EXPECT_TRUE(absl::IsDataLoss(StatusOfTensor({{{0, 0}, {6, 4}}})));                    // beyond
  EXPECT_TRUE(absl::IsDataLoss(StatusOfTensor({{{0}, {20}}})));                         // rank
  // As many elements as the tensor has, but one counted twice.
  EXPECT_TRUE(absl::IsDataLoss(StatusOfTensor({{{0, 0}, {4, 4}}, {{3, 0}, {1, 4}}})));
}

// What is wrong in a manifest that hashes as it should, or "" if nothing is.
std::string Refused(const std::function<void(Manifest&)>& change) {
  Manifest manifest = Sample();
  change(manifest);
  const absl::Status status = ParseManifest(ToJson(manifest), "m").status();
  EXPECT_TRUE(status.ok() || absl::IsDataLoss(status)) << status;
  return std::string(status.message());
}

TEST(Manifest, NumbersAreNotTrusted) {
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(Refused([](Manifest&) {}), "");
  for (const Shape& shape : {Shape{1LL << 32, 1LL << 32}, Shape{kHuge, 0}, Shape{0, 2, kHuge}}) {
    EXPECT_NE(Refused([&](Manifest& m) {
                m.tensors[0].shape = shape;
                m.tensors[0].boxes = {{"shard-00000.h5", "d", 0, {shape, shape}, ""}};
              }).find("is too large"),
              std::string::npos);
  }
  const auto of_box = [](auto change) {
    return Refused([&](Manifest& m) { change(m.tensors[0].boxes[1]); });
  };
  EXPECT_NE(of_box([](StoredBox& b) { b.offset = 8000 - 2 * 4 * 4 + 1; }).find("beyond the end"),
            std::string::npos);
  EXPECT_NE(of_box([](StoredBox& b) { b.offset = -1; }), "");
  EXPECT_NE(of_box([](StoredBox& b) { b.box.begin[0] = kHuge; }), "");
  EXPECT_NE(of_box([](StoredBox& b) { b.box.extent[1] = kHuge; }), "");
  EXPECT_NE(of_box([](StoredBox& b) { b.box.extent[1] = 0; }), "");
  EXPECT_EQ(of_box([](StoredBox& b) { b.offset = 8000 - 2 * 4 * 4; }), "");
  EXPECT_NE(Refused([](Manifest& m) { m.tensors[0].shape = {}; }), "");
  EXPECT_NE(Refused([](Manifest& m) { m.files[0].bytes = -9000; }), "");
  EXPECT_NE(Refused([](Manifest& m) { m.info.step = -1; }), "");
}

TEST(Manifest, FilesLieBesideIt) {
  for (const char* name : {"", ".", "..", "../shard-00000.h5", "/etc/passwd", "a/b"}) {
    EXPECT_NE(Refused([&](Manifest& m) {
                m.files.push_back({name, 1, "x"});
              }).find("is no name"),
              std::string::npos)
        << name;
  }
  EXPECT_NE(Refused([](Manifest& m) { m.files.push_back(m.files[0]); }).find("listed twice"),
            std::string::npos);
}

TEST(Manifest, ValuesWithoutEndAreRefused) {
  const auto nested = [](int depth) {
    return Refused([&](Manifest& m) {
      nlohmann::json inner = 1;
      for (int i = 0; i < depth; ++i) inner = {{"a", inner}};
      m.info.extra = inner;
    });
  };
  EXPECT_EQ(nested(20), "");
  EXPECT_NE(nested(200).find("too deep"), std::string::npos);
  const std::string endless(1 << 20, '[');
  EXPECT_TRUE(absl::IsDataLoss(ParseManifest(endless, "m").status()));
}

TEST(Manifest, AKeyThatIsThereTwiceIsDamage) {
  const absl::Status status = ParseManifest(R"({"format": 1, "format": 2})", "m").status();
  EXPECT_TRUE(absl::IsDataLoss(status));
  EXPECT_NE(status.message().find("\"format\" is there twice"), std::string::npos) << status;
}

TEST(Manifest, ATensorInAnUnlistedFileIsDamage) {
  Manifest manifest = Sample();
  manifest.files.pop_back();
  const absl::Status status = ParseManifest(ToJson(manifest), "m").status();
  EXPECT_TRUE(absl::IsDataLoss(status));
  EXPECT_NE(status.message().find("shard-00001.h5"), std::string::npos) << status;
}

}  // namespace
}  // namespace lt2
