// The program run as a process, in the source tree's root, and a folder for what it makes.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

namespace lt2 {

namespace fs = std::filesystem;

struct Outcome {
  int exit = -1;
  std::string out;  // standard output, and standard error where asked for
};

// Runs a shell command in `directory`.
inline Outcome Shell(const std::string& command, const std::string& directory = LT2_SOURCE_DIR) {
  Outcome outcome;
  FILE* pipe = popen(("cd " + directory + " && " + command).c_str(), "r");
  if (pipe == nullptr) return outcome;
  std::array<char, 4096> buffer;
  while (size_t got = fread(buffer.data(), 1, buffer.size(), pipe)) {
    outcome.out.append(buffer.data(), got);
  }
  const int status = pclose(pipe);
  if (WIFEXITED(status)) outcome.exit = WEXITSTATUS(status);
  return outcome;
}

inline Outcome Lt2(const std::string& arguments) {
  return Shell(std::string(LT2_PROGRAM) + " " + arguments + " 2>&1");
}

inline nlohmann::json LastLine(const std::string& text) {
  const size_t end = text.find_last_not_of('\n');
  const size_t begin = text.rfind('\n', end);
  return nlohmann::json::parse(text.substr(begin + 1, end - begin), nullptr, false);
}

class Folder : public testing::Test {
 protected:
  void SetUp() override {
    path_ =
        fs::path(testing::TempDir()) /
        ("lt2_cli_" + std::string(testing::UnitTest::GetInstance()->current_test_info()->name()));
    fs::remove_all(path_);
    fs::create_directories(path_);
  }
  void TearDown() override { fs::remove_all(path_); }
  std::string Write(const std::string& name, const std::string& text) const {
    std::ofstream(path_ / name) << text;
    return (path_ / name).string();
  }
  fs::path path_;
};

// A model of one step.
class TrainedModel : public Folder {
 protected:
  void SetUp() override {
    Folder::SetUp();
    std::string text;
    for (int i = 0; i < 60; ++i) text += "Line " + std::to_string(i * 7919 % 1000) + " here.\n\n";
    Write("text.txt", text);
    const std::string config =
        Write("small.toml",
              "[model]\nwidth = 16\nlayers = 2\nheads = 2\nffn = 32\nvocab = 256\n"
              "[data]\ntrain = [{ path = \"text.txt\" }]\nsequence = 16\n"
              "[batch]\ntokens = 32\n[schedule]\ntotal = \"1 steps\"\n");
    run_ = (path_ / "run").string();
    const Outcome trained = Lt2("train " + config + " --run-dir " + run_);
    ASSERT_EQ(trained.exit, 0) << trained.out;
  }
  std::string run_;
};

}  // namespace lt2
