// Any HDF5 file through core/hdf5.h: everything in it is listed, described and, where small, read.
#include "core/check.h"
#include "core/hdf5.h"
#include "tests/fuzz/hdf5_input.h"
#include "tests/fuzz/input_file.h"

namespace lt2 {
namespace {

constexpr int64_t kLargest = 1 << 20;  // elements read
constexpr int kDeepest = 8;            // groups may hold themselves

void LookAtAttributes(const h5::File& file, const std::string& on) {
  for (const std::string& name : file.AttributeNames(on)) {
    (void)file.AttributeIsText(on, name);
    file.IntAttribute(on, name).status().IgnoreError();
    file.DoubleAttribute(on, name).status().IgnoreError();
    file.StringAttribute(on, name).status().IgnoreError();
  }
}

void LookAtDataset(const h5::File& file, const std::string& name) {
  const auto info = file.Info(name);
  if (!info.ok()) return;
  int64_t elements = 1;
  for (const int64_t extent : info->shape) {
    if (extent < 0 || __builtin_mul_overflow(elements, extent, &elements)) return;
  }
  if (elements > kLargest) return;
  std::vector<double> values(elements);
  file.Read(name, h5::Type::kF64, values.data()).IgnoreError();
  file.ReadBox(name, Box::Whole(info->shape), h5::Type::kF64, values.data()).IgnoreError();
}

void LookAt(const h5::File& file, const std::string& group, int depth) {
  LookAtAttributes(file, group);
  const auto names = file.List(group);
  if (!names.ok()) return;
  for (const std::string& name : *names) {
    const std::string path = group == "/" ? name : StrCat(group, name);
    if (name.ends_with('/') && depth < kDeepest) LookAt(file, path, depth + 1);
    if (name.ends_with('/')) continue;
    LookAtAttributes(file, path);
    LookAtDataset(file, path);
  }
}

}  // namespace
}  // namespace lt2

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (!lt2::HasChecksums(data, size)) return 0;
  const lt2::InputFile input(data, size);
  const auto file = lt2::h5::File::Open(input.path());
  if (file.ok()) lt2::LookAt(*file, "/", 0);
  return 0;
}
