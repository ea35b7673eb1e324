// The HDF5 library itself, for core/hdf5*.cc only: its lock, identifiers, errors, and File's
// inside.
#pragma once

#include <hdf5.h>

#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "core/hdf5.h"
#include "core/strings.h"

namespace lt2::h5 {

// Held by every call into the library; also keeps the library from printing its error stack.
class Lock {
 public:
  Lock() : lock_(Mutex()) { H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr); }

 private:
  static std::recursive_mutex& Mutex() {
    static auto* mutex = [] {
      H5dont_atexit();  // it crashes there after a disk was full; files are closed by their owners
      return new std::recursive_mutex;  // never destroyed: threads may outlive main
    }();
    return *mutex;
  }
  std::unique_lock<std::recursive_mutex> lock_;
};

// Any HDF5 identifier: closed when it goes out of scope.
class Id {
 public:
  Id() = default;
  explicit Id(hid_t id) : id_(id) {}
  Id(Id&& other) noexcept : id_(std::exchange(other.id_, H5I_INVALID_HID)) {}
  Id& operator=(Id&& other) noexcept {
    std::swap(id_, other.id_);
    return *this;
  }
  ~Id() {
    if (id_ >= 0) H5Idec_ref(id_);
  }
  bool ok() const { return id_ >= 0; }
  operator hid_t() const { return id_; }

 private:
  hid_t id_ = H5I_INVALID_HID;
};

// A Status from the library's error stack, which it clears. A failed system call decides the code;
// else a failed write is Internal and a failed read DataLoss.
absl::Status WriteFailure(const std::string& path, std::string_view what);
absl::Status ReadFailure(const std::string& path, std::string_view what);

// Our element types in memory, and what a file's type is to us.
hid_t MemoryType(Type type);
Type TypeOf(hid_t type);

Id SpaceOf(const Shape& shape);
bool Select(hid_t space, const Box& box);
bool Inside(const Box& box, const Shape& shape);

struct File::Impl {
  std::string path;
  hid_t file = H5I_INVALID_HID;

  ~Impl() {
    Lock lock;
    if (file >= 0) H5Fclose(file);
  }
  // 1 if the object is there, 0 if not, negative if the file cannot tell.
  htri_t Find(const std::string& name) const;
  std::string Where(const std::string& name) const { return StrCat(path, ", '", name, "'"); }
  absl::Status Missing(const std::string& name) const {
    return absl::NotFoundError(StrCat(path, ": there is no '", name, "'"));
  }
  absl::StatusOr<Id> OpenDataset(const std::string& name) const;
  absl::StatusOr<Id> OpenObject(const std::string& name) const;
  absl::StatusOr<Id> OpenAttribute(const std::string& on, const std::string& name) const;
  absl::StatusOr<Id> MakeDataset(const std::string& name, Type type, const Shape& shape,
                                 hid_t creation) const;
  absl::Status SetAttribute(const std::string& on, const std::string& name, hid_t type,
                            const void* value) const;
  absl::Status ReadNumber(const std::string& on, const std::string& name, bool integer,
                          hid_t memory, void* value) const;
};

}  // namespace lt2::h5
