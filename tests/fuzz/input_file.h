// A fuzzer's bytes as a file, for readers that want a path.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <string>

#include "core/check.h"
#include "core/strings.h"

namespace lt2 {

// Gone with the object. In memory where the system has such a folder: HDF5 wants a path with a
// folder, so an anonymous file will not do.
class InputFile {
 public:
  InputFile(const uint8_t* data, size_t size) : path_(StrCat(Folder(), "/lt2-fuzz-", getpid())) {
    const int descriptor = open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    CHECK_GE(descriptor, 0) << path_;
    CHECK_EQ(write(descriptor, data, size), static_cast<ssize_t>(size));
    close(descriptor);
  }
  InputFile(const InputFile&) = delete;
  ~InputFile() { unlink(path_.c_str()); }
  const std::string& path() const { return path_; }

 private:
  static std::string Folder() {
    if (access("/dev/shm", W_OK) == 0) return "/dev/shm";
    return std::filesystem::temp_directory_path();
  }
  std::string path_;
};

}  // namespace lt2
