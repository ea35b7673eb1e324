// lt2: pretrains looped linear-time transformers. Each verb lives in its own verb_<name>.cc.
#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <string>

#include "absl/strings/str_format.h"
#include "core/config.h"
#include "core/log.h"
#include "core/strings.h"
#include "tools/exit.h"
#include "tools/verb.h"
#include "tools/versions.h"

namespace lt2 {
namespace {

void PrintHelp(const char* program) {
  std::cout << "lt2 pretrains looped linear-time transformers on CPUs and GPUs, alone or under "
               "mpirun.\n\n"
            << "Usage: " << program << " VERB [flags]\n\nVerbs:\n";
  for (const Verb& verb : Verbs()) {
    const std::string sentence = verb.summary.substr(0, verb.summary.find(". "));
    std::cout << absl::StrFormat("  %-10s %s%s\n", verb.name, sentence,
                                 sentence == verb.summary ? "" : ".");
  }
  std::cout
      << "\n  --version  commit, compiler and libraries\n"
         "  --help     this text; `VERB --help` for a verb's flags and an example\n\n"
         "Exit codes: 0 done; 1 failed while running; 2 wrong flags, configuration or input;\n"
         "3 data or checkpoint damaged; 75 stopped early with the state saved: run it again.\n"
         "LT2_LOG=debug|info|warn chooses what is told.\n";
}

void WarnOfLogLevel() {
  const char* level = std::getenv("LT2_LOG");
  if (level == nullptr || LaunchRank() != 0) return;
  const std::vector<std::string> levels = {"debug", "info", "warn"};
  if (std::find(levels.begin(), levels.end(), level) != levels.end()) return;
  LogWarn(StrCat("LT2_LOG=", level, " is none of debug, info, warn; info is taken"));
}

int Main(int argc, char** argv) {
  WarnOfLogLevel();
  const std::string name = argc > 1 ? argv[1] : "";
  if (name == "--help" || name == "-h" || name == "help") {
    PrintHelp(argv[0]);
    return kExitDone;
  }
  if (name == "--version") {
    std::cout << VersionText();
    return kExitDone;
  }
  std::vector<std::string> names;
  for (const Verb& verb : Verbs()) {
    if (verb.name == name) {
      argv[1] = argv[0];
      return RunVerb(verb, argc, argv);
    }
    names.push_back(verb.name);
  }
  if (name.starts_with("-")) names = {"--help", "--version"};
  const std::string near = NearestName(name, names);
  std::string message = name.empty()            ? "a verb is wanted"
                        : name.starts_with("-") ? StrCat("unknown flag '", name, "'")
                                                : StrCat("unknown verb '", name, "'");
  if (!near.empty()) StrAppend(&message, "; did you mean '", near, "'?");
  PrintUsageError(StrCat(message, "\nTry: ", argv[0], " --help"), WantsJson(argc, argv));
  return kExitBadInput;
}

}  // namespace
}  // namespace lt2

int main(int argc, char** argv) { return lt2::Main(argc, argv); }
