#include "core/hdf5.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <limits>

#include "core/check.h"
#include "core/file.h"
#include "core/hdf5_impl.h"
#include "core/status_macros.h"
#include "core/strings.h"

namespace lt2::h5 {
namespace {

// The newest file format: all its metadata carries checksums, so that damage is noticed. Locks are
// left out because shared file systems refuse them; files are published by rename instead.
Id AccessProperties() {
  Id access(H5Pcreate(H5P_FILE_ACCESS));
  H5Pset_libver_bounds(access, H5F_LIBVER_V110, H5F_LIBVER_LATEST);
  H5Pset_fclose_degree(access, H5F_CLOSE_STRONG);
  H5Pset_file_locking(access, false, true);
  H5Pset_alignment(access, 4096, 4096);
  return access;
}

Id LinkProperties() {
  Id link(H5Pcreate(H5P_LINK_CREATE));
  H5Pset_create_intermediate_group(link, 1);
  H5Pset_char_encoding(link, H5T_CSET_UTF8);
  return link;
}

}  // namespace

htri_t File::Impl::Find(const std::string& name) const {
  if (name == "/") return 1;
  // The library answers only for the last step of a path.
  for (size_t slash = name.find('/', 1);; slash = name.find('/', slash + 1)) {
    const std::string prefix = name.substr(0, slash);
    if (prefix.empty()) return 0;
    if (const htri_t found = H5Lexists(file, prefix.c_str(), H5P_DEFAULT); found <= 0) return found;
    if (slash == std::string::npos || slash + 1 == name.size()) return 1;
  }
}

absl::StatusOr<Id> File::Impl::OpenObject(const std::string& name) const {
  const htri_t found = Find(name);
  if (found == 0) return Missing(name);
  Id object(found > 0 ? H5Oopen(file, name.c_str(), H5P_DEFAULT) : H5I_INVALID_HID);
  if (!object.ok()) return ReadFailure(Where(name), "cannot open");
  return object;
}

absl::StatusOr<Id> File::Impl::OpenDataset(const std::string& name) const {
  ASSIGN_OR_RETURN(Id object, OpenObject(name));
  if (H5Iget_type(object) != H5I_DATASET) {
    return absl::DataLossError(StrCat(Where(name), ": is not a dataset"));
  }
  return object;
}

absl::StatusOr<File> File::Open(const std::string& path) {
  Lock lock;
  // The library does not tell a missing file from a damaged one.
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return ErrnoStatus(errno, "cannot open", path);
  ::close(descriptor);
  if (FileSystem::Get().IsDirectory(path)) return ErrnoStatus(EISDIR, "cannot open", path);
  auto impl = std::make_unique<Impl>();
  impl->path = path;
  const Id access = AccessProperties();  // closed late: closing it clears the error stack
  impl->file = H5Fopen(path.c_str(), H5F_ACC_RDONLY, access);
  if (impl->file < 0) {
    return ReadFailure(path, "damaged, truncated or not an HDF5 file");
  }
  return File(std::move(impl));
}

absl::StatusOr<File> File::Create(const std::string& path) {
  Lock lock;
  auto impl = std::make_unique<Impl>();
  impl->path = path;
  const Id access = AccessProperties();
  impl->file = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access);
  if (impl->file < 0) return WriteFailure(path, "cannot create");
  return File(std::move(impl));
}

File::File(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
File::File(File&&) noexcept = default;
File& File::operator=(File&&) noexcept = default;
File::~File() = default;

absl::Status File::Close() {
  Lock lock;
  const hid_t file = std::exchange(impl_->file, H5I_INVALID_HID);
  if (file < 0) return absl::OkStatus();
  absl::Status status;
  if (H5Fflush(file, H5F_SCOPE_GLOBAL) < 0) status = WriteFailure(impl_->path, "cannot flush");
  if (H5Fclose(file) < 0) status.Update(WriteFailure(impl_->path, "cannot close"));
  return status;
}

const std::string& File::path() const { return impl_->path; }

bool File::Has(const std::string& name) const {
  Lock lock;
  return impl_->Find(name) > 0;
}

absl::StatusOr<std::vector<std::string>> File::List(const std::string& group) const {
  Lock lock;
  ASSIGN_OR_RETURN(Id object, impl_->OpenObject(group));
  H5G_info_t info;
  if (H5Iget_type(object) != H5I_GROUP || H5Gget_info(object, &info) < 0) {
    return absl::DataLossError(StrCat(impl_->Where(group), ": is not a readable group"));
  }
  std::vector<std::string> names;
  for (hsize_t i = 0; i < info.nlinks; ++i) {
    const auto read_name = [&](char* to, size_t size) {
      return H5Lget_name_by_idx(object, ".", H5_INDEX_NAME, H5_ITER_INC, i, to, size, H5P_DEFAULT);
    };
    const ssize_t length = read_name(nullptr, 0);
    if (length < 0) return ReadFailure(impl_->Where(group), "cannot list");
    std::string name(static_cast<size_t>(length), '\0');
    if (read_name(name.data(), name.size() + 1) < 0) {
      return ReadFailure(impl_->Where(group), "cannot list");
    }
    const Id member(H5Oopen(object, name.c_str(), H5P_DEFAULT));
    if (!member.ok()) return ReadFailure(impl_->Where(name), "cannot open");
    if (H5Iget_type(member) == H5I_GROUP) name += '/';
    names.push_back(std::move(name));
  }
  return names;
}

absl::StatusOr<DatasetInfo> File::Info(const std::string& dataset) const {
  Lock lock;
  ASSIGN_OR_RETURN(Id data, impl_->OpenDataset(dataset));
  const Id space(H5Dget_space(data)), type(H5Dget_type(data)), creation(H5Dget_create_plist(data));
  const int rank = H5Sget_simple_extent_ndims(space);
  if (!type.ok() || !creation.ok() || rank < 0) {
    return ReadFailure(impl_->Where(dataset), "cannot read the description");
  }
  if (rank > Shape::kMaxRank) {
    return absl::DataLossError(StrCat(impl_->Where(dataset), ": has ", rank, " extents; at most ",
                                      Shape::kMaxRank, " are known"));
  }
  std::array<hsize_t, Shape::kMaxRank> extents{};
  H5Sget_simple_extent_dims(space, extents.data(), nullptr);
  DatasetInfo info{.type = TypeOf(type), .shape = {}, .offset = -1};
  for (int i = 0; i < rank; ++i) info.shape.push_back(static_cast<int64_t>(extents[i]));
  const H5T_order_t order = H5Tget_order(type);
  if (H5Pget_layout(creation) == H5D_CONTIGUOUS && H5Pget_external_count(creation) == 0 &&
      (order == H5T_ORDER_LE || SizeOf(info.type) == 1)) {
    const haddr_t offset = H5Dget_offset(data);
    if (offset != HADDR_UNDEF) info.offset = static_cast<int64_t>(offset);
  }
  H5Eclear2(H5E_DEFAULT);
  return info;
}

absl::Status File::Read(const std::string& dataset, Type type, void* data) const {
  Lock lock;
  ASSIGN_OR_RETURN(Id id, impl_->OpenDataset(dataset));
  if (H5Dread(id, MemoryType(type), H5S_ALL, H5S_ALL, H5P_DEFAULT, data) < 0) {
    return ReadFailure(impl_->Where(dataset), "cannot read");
  }
  return absl::OkStatus();
}

absl::Status File::ReadBox(const std::string& dataset, const Box& box, Type type,
                           void* data) const {
  Lock lock;
  ASSIGN_OR_RETURN(const DatasetInfo info, Info(dataset));
  if (!Inside(box, info.shape)) {
    return absl::DataLossError(StrCat(impl_->Where(dataset), ": box ", box.ToString(),
                                      " is not inside ", info.shape.ToString()));
  }
  if (box.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(Id id, impl_->OpenDataset(dataset));
  const Id space(H5Dget_space(id)), memory = SpaceOf(box.extent);
  if (!Select(space, box) || H5Dread(id, MemoryType(type), memory, space, H5P_DEFAULT, data) < 0) {
    return ReadFailure(impl_->Where(dataset), StrCat("cannot read box ", box.ToString()));
  }
  return absl::OkStatus();
}

absl::StatusOr<Id> File::Impl::MakeDataset(const std::string& name, Type type, const Shape& shape,
                                           hid_t creation) const {
  const Id space = SpaceOf(shape), link = LinkProperties();
  Id data(H5Dcreate2(file, name.c_str(), MemoryType(type), space, link, creation, H5P_DEFAULT));
  if (!data.ok()) return WriteFailure(Where(name), "cannot create the dataset");
  return data;
}

absl::Status File::CreateDataset(const std::string& dataset, Type type, const Shape& shape) {
  Lock lock;
  // Space is taken at once, so that the data's place in the file is known and stays.
  const Id creation(H5Pcreate(H5P_DATASET_CREATE));
  H5Pset_layout(creation, H5D_CONTIGUOUS);
  H5Pset_alloc_time(creation, H5D_ALLOC_TIME_EARLY);
  H5Pset_fill_time(creation, H5D_FILL_TIME_NEVER);
  return impl_->MakeDataset(dataset, type, shape, creation).status();
}

absl::Status File::Write(const std::string& dataset, Type type, const Shape& shape,
                         const void* data) {
  Lock lock;
  RETURN_IF_ERROR(CreateDataset(dataset, type, shape));
  return WriteBox(dataset, Box::Whole(shape), type, data);
}

absl::Status File::WriteBox(const std::string& dataset, const Box& box, Type type,
                            const void* data) {
  Lock lock;
  ASSIGN_OR_RETURN(const DatasetInfo info, Info(dataset));
  CHECK(Inside(box, info.shape)) << impl_->Where(dataset) << ": box " << box.ToString() << " in "
                                 << info.shape;
  if (box.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(Id id, impl_->OpenDataset(dataset));
  const Id space(H5Dget_space(id)), memory = SpaceOf(box.extent);
  if (!Select(space, box) || H5Dwrite(id, MemoryType(type), memory, space, H5P_DEFAULT, data) < 0) {
    return WriteFailure(impl_->Where(dataset), "cannot write");
  }
  return absl::OkStatus();
}

absl::Status File::WriteVirtual(const std::string& dataset, Type type, const Shape& shape,
                                std::span<const VirtualPiece> pieces) {
  Lock lock;
  CHECK_GT(shape.rank(), 0) << "a virtual dataset needs an extent: " << dataset;
  const Id creation(H5Pcreate(H5P_DATASET_CREATE));
  if (type == Type::kF32 || type == Type::kF64) {
    const double nan = std::numeric_limits<double>::quiet_NaN();
    H5Pset_fill_value(creation, H5T_NATIVE_DOUBLE, &nan);
  }
  for (const VirtualPiece& piece : pieces) {
    CHECK(Inside(piece.box, shape))
        << dataset << ": box " << piece.box.ToString() << " in " << shape;
    if (piece.box.empty()) continue;
    const Id here = SpaceOf(shape), there = SpaceOf(piece.box.extent);
    if (!Select(here, piece.box) ||
        H5Pset_virtual(creation, here, piece.file.c_str(), piece.dataset.c_str(), there) < 0) {
      return WriteFailure(impl_->Where(dataset), "cannot refer to the other file");
    }
  }
  return impl_->MakeDataset(dataset, type, shape, creation).status();
}

}  // namespace lt2::h5
