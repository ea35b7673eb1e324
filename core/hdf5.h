// A small C++ door to the serial HDF5 library: files, datasets, attributes, virtual datasets.
//
// HDF5 is not thread safe, so every call here holds one process-wide lock; nothing else in the
// program includes hdf5.h. Element types are float32, float64, int32, int64, uint8, uint16, uint32.
// Errors name the file and the dataset: NotFound, DataLoss (damaged or truncated), or
// ResourceExhausted / Internal for a failed write.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/box.h"

namespace lt2::h5 {

enum class Type : uint8_t { kF32, kF64, kI32, kI64, kU8, kU16, kU32, kOther };
int64_t SizeOf(Type type);

struct DatasetInfo {
  Type type = Type::kOther;
  Shape shape;
  // Byte offset of the raw data in the file if it is contiguous and allocated, else -1: such a
  // dataset may be mapped.
  int64_t offset = -1;
};

class File {
 public:
  static absl::StatusOr<File> Open(const std::string& path);    // read only
  static absl::StatusOr<File> Create(const std::string& path);  // replaces
  File(File&&) noexcept;
  File& operator=(File&&) noexcept;
  ~File();  // closes; use Close to learn whether everything reached the file

  absl::Status Close();
  const std::string& path() const;

  bool Has(const std::string& name) const;
  // Names of the members of a group ("/" for the root), sorted; groups end in "/".
  absl::StatusOr<std::vector<std::string>> List(const std::string& group) const;
  absl::StatusOr<DatasetInfo> Info(const std::string& dataset) const;

  // Reads the whole dataset, or a box of it, converted to `type`; data is dense row-major.
  absl::Status Read(const std::string& dataset, Type type, void* data) const;
  absl::Status ReadBox(const std::string& dataset, const Box& box, Type type, void* data) const;

  // Writes a contiguous dataset, creating the groups in its name.
  absl::Status Write(const std::string& dataset, Type type, const Shape& shape, const void* data);
  // Creates an appendable-by-box contiguous dataset, then fills boxes of it.
  absl::Status CreateDataset(const std::string& dataset, Type type, const Shape& shape);
  absl::Status WriteBox(const std::string& dataset, const Box& box, Type type, const void* data);

  // A dataset that shows boxes of datasets in other files (relative paths) as one whole. What no
  // box covers, or whose file is missing, reads as NaN.
  struct VirtualPiece {
    std::string file, dataset;
    Box box;
  };
  absl::Status WriteVirtual(const std::string& dataset, Type type, const Shape& shape,
                            std::span<const VirtualPiece> pieces);

  // Attributes of the object `on` ("/" for the file).
  absl::Status SetAttribute(const std::string& on, const std::string& name, int64_t value);
  absl::Status SetAttribute(const std::string& on, const std::string& name, double value);
  absl::Status SetAttribute(const std::string& on, const std::string& name,
                            const std::string& value);
  absl::StatusOr<int64_t> IntAttribute(const std::string& on, const std::string& name) const;
  absl::StatusOr<double> DoubleAttribute(const std::string& on, const std::string& name) const;
  absl::StatusOr<std::string> StringAttribute(const std::string& on, const std::string& name) const;
  std::vector<std::string> AttributeNames(const std::string& on) const;
  // True if the attribute holds text rather than a number.
  bool AttributeIsText(const std::string& on, const std::string& name) const;

 private:
  struct Impl;
  explicit File(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// The library's version, "1.10.8".
std::string Version();

}  // namespace lt2::h5
