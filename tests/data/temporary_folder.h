// A folder that lives as long as the object, and files in it.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "core/file.h"
#include "tests/support/temporary_directory.h"

namespace lt2 {

class TemporaryFolder {
 public:
  std::string operator()(const std::string& name) const { return JoinPath(folder_.path(), name); }
  // Without the sync of FileSystem::WriteFile, which makes hundreds of damaged copies slow.
  std::string Write(const std::string& name, const std::string& content) const {
    std::ofstream out((*this)(name), std::ios::binary);
    out << content;
    EXPECT_TRUE(out.flush().good()) << name;
    return (*this)(name);
  }

 private:
  TemporaryDirectory folder_;
};

}  // namespace lt2
