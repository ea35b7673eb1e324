// A token shard, of any bytes or of any values in a sound HDF5 file: refused, or every token and
// document start can be read.
#include <cstring>

#include "core/check.h"
#include "core/hdf5.h"
#include "data/shard.h"
#include "tests/fuzz/hdf5_input.h"
#include "tests/fuzz/input_file.h"

namespace lt2 {
namespace {

void Open(const std::string& path) {
  const auto shard = Shard::Open(path);
  if (!shard.ok()) {
    CHECK(!shard.status().message().empty());
    return;
  }
  const int64_t tokens = shard->header().tokens;
  CHECK_EQ(static_cast<int64_t>(shard->token_bytes().size()), tokens * shard->width());
  std::vector<int32_t> ids(tokens);
  const int64_t bad = WidenTokens(shard->token_bytes().data(), shard->width(), tokens,
                                  shard->header().vocab_size, ids.data());
  CHECK_LT(bad, tokens);
  for (int64_t i = 0; i < (bad < 0 ? tokens : bad); ++i) CHECK_GE(ids[i], 0);
  CHECK_EQ(static_cast<int64_t>(shard->document_starts().size()), shard->header().documents);
  for (const int64_t start : shard->document_starts()) CHECK_LT(start, tokens);
  (void)ContentHash(shard->token_bytes(), shard->document_starts());
}

// Values drawn from the fuzzer's bytes, 0 when they end.
class Values {
 public:
  Values(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  uint8_t Byte() { return size_ == 0 ? 0 : (--size_, *data_++); }
  int64_t Number() {  // most often small
    const uint8_t kind = Byte();
    if (kind != 255) return kind;
    int64_t value = 0;
    for (int i = 0; i < 8; ++i) value = static_cast<int64_t>((uint64_t(value) << 8) | Byte());
    return value;
  }
  std::string Text() {
    std::string text(Byte() % 40, '\0');
    for (char& c : text) c = static_cast<char>(Byte());
    return text;
  }

 private:
  const uint8_t* data_;
  size_t size_;
};

// A dataset of up to 255 numbers.
void WriteNumbers(h5::File& file, const std::string& name, Values& values) {
  constexpr h5::Type kTypes[] = {h5::Type::kU16, h5::Type::kI64, h5::Type::kU32,
                                 h5::Type::kF32, h5::Type::kU8,  h5::Type::kI32};
  const h5::Type type = kTypes[values.Byte() % 6];
  Shape shape = {values.Byte()};
  if (values.Byte() % 16 == 15) shape.push_back(2);
  std::vector<int64_t> bytes(shape.size());  // enough for any type
  for (int64_t& number : bytes) number = values.Number();
  CHECK(file.Write(name, type, shape, bytes.data()).ok());
}

void WriteShard(const std::string& path, Values& values) {
  h5::File file = h5::File::Create(path).value();
  const uint8_t absent = values.Byte();
  int i = 0;
  for (const char* name : {"format_version", "vocab_size", "tokens", "documents"}) {
    if (absent != ++i) CHECK(file.SetAttribute("/", name, values.Number()).ok());
  }
  for (const char* name : {"tokenizer", "tokenizer_hash", "content_hash"}) {
    if (absent != ++i) CHECK(file.SetAttribute("/", name, values.Text()).ok());
  }
  for (const char* name : {"tokens", "document_starts"}) {
    if (absent != ++i) WriteNumbers(file, name, values);
  }
  CHECK(file.Close().ok());
}

}  // namespace
}  // namespace lt2

// An HDF5 file begins with 0x89: other bytes are values.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const bool raw = size > 0 && data[0] == 0x89;
  if (raw && !lt2::HasChecksums(data, size)) return 0;
  const lt2::InputFile file(data, size);
  lt2::Values values(data, size);
  if (!raw) lt2::WriteShard(file.path(), values);
  lt2::Open(file.path());
  return 0;
}
