#include "core/hdf5_impl.h"

#include <array>
#include <cstdlib>
#include <cstring>

#include "core/check.h"
#include "core/file.h"
#include "core/strings.h"

namespace lt2::h5 {
namespace {

// What the library's error stack says: the innermost message, and errno where a system call failed.
struct LibraryError {
  std::string message;
  int error = 0;
};

herr_t CollectError(unsigned, const H5E_error2_t* entry, void* data) {
  auto* out = static_cast<LibraryError*>(data);
  const std::string_view text = entry->desc != nullptr ? entry->desc : "";
  if (out->message.empty()) out->message = text;
  const size_t at = text.find("errno = ");
  if (at != std::string_view::npos && out->error == 0) {
    out->error = std::atoi(entry->desc + at + std::strlen("errno = "));
  }
  return 0;
}

LibraryError LastError() {
  LibraryError out;
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, CollectError, &out);
  H5Eclear2(H5E_DEFAULT);
  if (out.message.empty()) out.message = "the HDF5 library gives no reason";
  return out;
}

struct Extents {
  std::array<hsize_t, Shape::kMaxRank> values{};
  explicit Extents(const Shape& shape) {
    for (int i = 0; i < shape.rank(); ++i) values[i] = static_cast<hsize_t>(shape[i]);
  }
};

}  // namespace

absl::Status WriteFailure(const std::string& path, std::string_view what) {
  const LibraryError error = LastError();
  if (error.error != 0) return ErrnoStatus(error.error, what, path);
  return absl::InternalError(StrCat(path, ": ", what, ": ", error.message));
}

absl::Status ReadFailure(const std::string& path, std::string_view what) {
  const LibraryError error = LastError();
  if (error.error != 0) return ErrnoStatus(error.error, what, path);
  return absl::DataLossError(StrCat(path, ": ", what, ": ", error.message));
}

hid_t MemoryType(Type type) {
  switch (type) {
    case Type::kF32:
      return H5T_NATIVE_FLOAT;
    case Type::kF64:
      return H5T_NATIVE_DOUBLE;
    case Type::kI32:
      return H5T_NATIVE_INT32;
    case Type::kI64:
      return H5T_NATIVE_INT64;
    case Type::kU8:
      return H5T_NATIVE_UINT8;
    case Type::kU16:
      return H5T_NATIVE_UINT16;
    case Type::kU32:
      return H5T_NATIVE_UINT32;
    case Type::kOther:
      break;
  }
  CHECK(false) << "an element type that only Info knows";
  return H5I_INVALID_HID;
}

Type TypeOf(hid_t type) {
  const size_t size = H5Tget_size(type);
  switch (H5Tget_class(type)) {
    case H5T_FLOAT:
      return size == 4 ? Type::kF32 : size == 8 ? Type::kF64 : Type::kOther;
    case H5T_INTEGER:
      if (H5Tget_sign(type) == H5T_SGN_NONE) {
        return size == 1   ? Type::kU8
               : size == 2 ? Type::kU16
               : size == 4 ? Type::kU32
                           : Type::kOther;
      }
      return size == 4 ? Type::kI32 : size == 8 ? Type::kI64 : Type::kOther;
    default:
      return Type::kOther;
  }
}

Id SpaceOf(const Shape& shape) {
  if (shape.rank() == 0) return Id(H5Screate(H5S_SCALAR));
  return Id(H5Screate_simple(shape.rank(), Extents(shape).values.data(), nullptr));
}

bool Select(hid_t space, const Box& box) {
  if (box.begin.rank() == 0) return H5Sselect_all(space) >= 0;
  if (box.empty()) return H5Sselect_none(space) >= 0;
  return H5Sselect_hyperslab(space, H5S_SELECT_SET, Extents(box.begin).values.data(), nullptr,
                             Extents(box.extent).values.data(), nullptr) >= 0;
}

bool Inside(const Box& box, const Shape& shape) {
  if (box.begin.rank() != shape.rank()) return false;
  for (int i = 0; i < shape.rank(); ++i) {
    if (box.begin[i] < 0 || box.extent[i] < 0 || box.extent[i] > shape[i] - box.begin[i]) {
      return false;
    }
  }
  return true;
}

int64_t SizeOf(Type type) {
  switch (type) {
    case Type::kF64:
    case Type::kI64:
      return 8;
    case Type::kF32:
    case Type::kI32:
    case Type::kU32:
      return 4;
    case Type::kU16:
      return 2;
    case Type::kU8:
      return 1;
    case Type::kOther:
      return 0;
  }
  return 0;
}

std::string Version() {
  Lock lock;
  unsigned major = 0, minor = 0, release = 0;
  H5get_libversion(&major, &minor, &release);
  return StrCat(major, ".", minor, ".", release);
}

}  // namespace lt2::h5
