// A file system that fails on command, for tests: the k-th change, or everything from it on.
//
// It stands before the machine's own and sees what goes through core/file.h. A failing WriteFile or
// AppendFile leaves half of its content behind, as a full disk or a crash does.
#pragma once

#include <atomic>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "core/file.h"

namespace lt2 {

class FaultyFileSystem : public FileSystem {
 public:
  enum class Mode {
    kOnce,   // one change fails, later ones work: an error the program lives to see
    kCrash,  // nothing changes any more: the program is as good as dead
  };

  // Installs itself until destroyed. Changes are counted from 1; 0: none fails.
  FaultyFileSystem() : real_(FileSystem::Get()) { FileSystem::Replace(this); }
  ~FaultyFileSystem() override { FileSystem::Replace(nullptr); }

  void FailAt(int change, Mode mode) {
    count_ = 0;
    fail_at_ = change;
    mode_ = mode;
  }
  int changes() const { return count_; }
  // What reached the disk: files and directories synced, by path at that time.
  const std::set<std::string>& synced() const { return synced_; }

  absl::StatusOr<std::string> ReadFile(const std::string& path, int64_t most) override {
    return real_.ReadFile(path, most);
  }
  absl::Status WriteFile(const std::string& path, std::string_view content) override {
    if (!Fails()) {
      NoteSynced(path);
      return real_.WriteFile(path, content);
    }
    if (mode_ == Mode::kOnce || count_ == fail_at_) {
      real_.WriteFile(path, content.substr(0, content.size() / 2)).IgnoreError();
    }
    return NoSpace(path);
  }
  absl::Status AppendFile(const std::string& path, std::string_view content) override {
    if (!Fails()) return real_.AppendFile(path, content);
    if (mode_ == Mode::kOnce || count_ == fail_at_) {
      real_.AppendFile(path, content.substr(0, content.size() / 2)).IgnoreError();
    }
    return NoSpace(path);
  }
  absl::Status Rename(const std::string& from, const std::string& to) override {
    return Fails() ? NoSpace(from) : real_.Rename(from, to);
  }
  absl::Status Sync(const std::string& path) override {
    if (Fails()) return NoSpace(path);
    NoteSynced(path);
    return real_.Sync(path);
  }
  absl::Status MakeDirectories(const std::string& path) override {
    return Fails() ? NoSpace(path) : real_.MakeDirectories(path);
  }
  absl::Status RemoveAll(const std::string& path) override {
    return Fails() ? NoSpace(path) : real_.RemoveAll(path);
  }
  absl::StatusOr<std::vector<std::string>> List(const std::string& directory) override {
    return real_.List(directory);
  }
  bool Exists(const std::string& path) override { return real_.Exists(path); }
  bool IsDirectory(const std::string& path) override { return real_.IsDirectory(path); }
  absl::StatusOr<int64_t> FileSize(const std::string& path) override {
    return real_.FileSize(path);
  }

 private:
  bool Fails() {
    const int change = ++count_;
    if (fail_at_ == 0) return false;
    return mode_ == Mode::kOnce ? change == fail_at_ : change >= fail_at_;
  }
  void NoteSynced(const std::string& path) {
    const std::lock_guard lock(mutex_);
    synced_.insert(path);
  }
  static absl::Status NoSpace(const std::string& path) {
    return absl::ResourceExhaustedError(path + ": no space left (a test says so)");
  }

  FileSystem& real_;
  std::atomic<int> count_ = 0;  // ranks are threads
  int fail_at_ = 0;
  Mode mode_ = Mode::kOnce;
  std::mutex mutex_;
  std::set<std::string> synced_;
};

}  // namespace lt2
