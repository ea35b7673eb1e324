#include <algorithm>
#include <cstring>

#include "core/hdf5_impl.h"
#include "core/status_macros.h"
#include "core/strings.h"

namespace lt2::h5 {

absl::Status File::Impl::SetAttribute(const std::string& on, const std::string& name, hid_t type,
                                      const void* value) const {
  ASSIGN_OR_RETURN(Id object, OpenObject(on));
  if (H5Aexists(object, name.c_str()) > 0) H5Adelete(object, name.c_str());
  const Id space(H5Screate(H5S_SCALAR));
  const Id attribute(H5Acreate2(object, name.c_str(), type, space, H5P_DEFAULT, H5P_DEFAULT));
  if (!attribute.ok() || H5Awrite(attribute, type, value) < 0) {
    return WriteFailure(Where(on), StrCat("cannot set attribute '", name, "'"));
  }
  return absl::OkStatus();
}

absl::Status File::SetAttribute(const std::string& on, const std::string& name, int64_t value) {
  Lock lock;
  return impl_->SetAttribute(on, name, H5T_NATIVE_INT64, &value);
}

absl::Status File::SetAttribute(const std::string& on, const std::string& name, double value) {
  Lock lock;
  return impl_->SetAttribute(on, name, H5T_NATIVE_DOUBLE, &value);
}

absl::Status File::SetAttribute(const std::string& on, const std::string& name,
                                const std::string& value) {
  Lock lock;
  const Id type(H5Tcopy(H5T_C_S1));
  H5Tset_size(type, std::max<size_t>(value.size(), 1));  // the library knows no empty text
  H5Tset_strpad(type, H5T_STR_NULLPAD);
  H5Tset_cset(type, H5T_CSET_UTF8);
  return impl_->SetAttribute(on, name, type, value.data());
}

absl::StatusOr<Id> File::Impl::OpenAttribute(const std::string& on, const std::string& name) const {
  ASSIGN_OR_RETURN(Id object, OpenObject(on));
  const std::string where = StrCat("attribute '", name, "'");
  const htri_t found = H5Aexists(object, name.c_str());
  if (found == 0) return absl::NotFoundError(StrCat(Where(on), ": there is no ", where));
  Id attribute(found > 0 ? H5Aopen(object, name.c_str(), H5P_DEFAULT) : H5I_INVALID_HID);
  if (!attribute.ok()) return ReadFailure(Where(on), StrCat("cannot open ", where));
  const Id space(H5Aget_space(attribute));
  if (H5Sget_simple_extent_npoints(space) != 1) {
    return absl::DataLossError(StrCat(Where(on), ": ", where, " is not a single value"));
  }
  return attribute;
}

absl::Status File::Impl::ReadNumber(const std::string& on, const std::string& name, bool integer,
                                    hid_t memory, void* value) const {
  ASSIGN_OR_RETURN(Id attribute, OpenAttribute(on, name));
  const Id type(H5Aget_type(attribute));
  const H5T_class_t kind = H5Tget_class(type);
  const bool whole = kind == H5T_INTEGER || kind == H5T_ENUM;  // Python writes bool as an enum
  if (!whole && (integer || kind != H5T_FLOAT)) {
    return absl::DataLossError(
        StrCat(Where(on), ": attribute '", name, "' is not ", integer ? "an integer" : "a number"));
  }
  if (H5Aread(attribute, memory, value) < 0) {
    return ReadFailure(Where(on), StrCat("cannot read attribute '", name, "'"));
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> File::IntAttribute(const std::string& on, const std::string& name) const {
  Lock lock;
  int64_t value = 0;
  RETURN_IF_ERROR(impl_->ReadNumber(on, name, true, H5T_NATIVE_INT64, &value));
  return value;
}

absl::StatusOr<double> File::DoubleAttribute(const std::string& on, const std::string& name) const {
  Lock lock;
  double value = 0;
  RETURN_IF_ERROR(impl_->ReadNumber(on, name, false, H5T_NATIVE_DOUBLE, &value));
  return value;
}

absl::StatusOr<std::string> File::StringAttribute(const std::string& on,
                                                  const std::string& name) const {
  Lock lock;
  ASSIGN_OR_RETURN(Id attribute, impl_->OpenAttribute(on, name));
  const Id type(H5Aget_type(attribute));
  const std::string what = StrCat("attribute '", name, "'");
  if (H5Tget_class(type) != H5T_STRING) {
    return absl::DataLossError(StrCat(impl_->Where(on), ": ", what, " is not text"));
  }
  if (H5Tis_variable_str(type) > 0) {
    char* text = nullptr;
    if (H5Aread(attribute, type, &text) < 0) {
      return ReadFailure(impl_->Where(on), StrCat("cannot read ", what));
    }
    std::string out = text != nullptr ? text : "";
    H5free_memory(text);
    return out;
  }
  std::string out(H5Tget_size(type), '\0');
  if (H5Aread(attribute, type, out.data()) < 0) {
    return ReadFailure(impl_->Where(on), StrCat("cannot read ", what));
  }
  out.resize(std::strlen(out.c_str()));
  return out;
}

std::vector<std::string> File::AttributeNames(const std::string& on) const {
  Lock lock;
  std::vector<std::string> names;
  const absl::StatusOr<Id> object = impl_->OpenObject(on);
  if (!object.ok()) return names;
  const auto collect = [](hid_t, const char* name, const H5A_info_t*, void* to) -> herr_t {
    static_cast<std::vector<std::string>*>(to)->push_back(name);
    return 0;
  };
  hsize_t position = 0;
  H5Aiterate2(*object, H5_INDEX_NAME, H5_ITER_INC, &position, collect, &names);
  return names;
}

bool File::AttributeIsText(const std::string& on, const std::string& name) const {
  Lock lock;
  const absl::StatusOr<Id> attribute = impl_->OpenAttribute(on, name);
  if (!attribute.ok()) return false;
  return H5Tget_class(Id(H5Aget_type(*attribute))) == H5T_STRING;
}

}  // namespace lt2::h5
