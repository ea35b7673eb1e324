// What a verb is: a name, flags, and a body to run. One file a verb, one line in verbs.def.
//
//   Verb CountVerb() {
//     return {.name = "count", .summary = "counts", .example = "{lt2} count --to 3",
//             .add = [](CLI::App& app) -> VerbBody {
//               auto to = std::make_shared<int>(10);
//               app.add_option("--to", *to, "where to stop");
//               return [to](VerbOutput& out) { out.result["to"] = *to; return absl::OkStatus(); };
//             }};
//   }
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "parallel/communicator.h"

namespace lt2 {

struct VerbOutput {
  bool json = false;  // --json was given: keep text off standard output
  nlohmann::json result = nlohmann::json::object();  // its last line
  int exit_code = 0;  // of a verb that ends with OK: 75 for a run that was stopped
  // Of a body that ran on all ranks: they end with one status, rank 0 tells it, and no rank leaves
  // before it has.
  std::unique_ptr<Communicator> world;
};

using VerbBody = std::function<absl::Status(VerbOutput&)>;

struct Verb {
  std::string name;
  std::string summary;  // one or two sentences
  std::string example;  // works as typed in a fresh checkout; "{lt2}" is the program
  // Adds the flags (every one with its default) and returns what to run once they are parsed.
  std::function<VerbBody(CLI::App&)> add;
  // Starts the world itself. Other verbs run on rank 0 alone, whatever mpirun or srun started.
  bool parallel = false;
};

// Every line of verbs.def.
const std::vector<Verb>& Verbs();

// A sub-verb such as `data tokenize`, with its own example.
CLI::App* AddSubverb(CLI::App& app, const std::string& name, const std::string& summary,
                     const std::string& example);

// Parses argv for one verb and runs it; returns the exit code.
int RunVerb(const Verb& verb, int argc, char** argv);

// The rank that mpirun or srun gave this process, 0 where it was started alone.
int LaunchRank();

// Prints a mistake that was found before the ranks know each other; with `json` also as the last
// line of standard output. Rank 0 speaks, for all ranks have its arguments; where mpirun started
// several programs, the others speak a second later.
void PrintUsageError(const std::string& message, bool json);
// Whether --json is among the arguments, for mistakes in the others.
bool WantsJson(int argc, char** argv);

}  // namespace lt2
