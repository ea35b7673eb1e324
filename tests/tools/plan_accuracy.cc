// Holds `lt2 plan` to `lt2 bench step` on this machine: configurations drawn by a seed, alone and
// on two ranks, each measured and planned. Prints a table; exits 1 where memory differs by more
// than 7 %. Times are told, not judged: others may use the machine.
//
// RANKS 1: none of them on two. MACHINE: what `lt2 plan --gpu` takes, in place of measuring one.
//
//   plan_accuracy LT2 DEVICE [SEED [CONFIGURATIONS [RANKS [MACHINE]]]]
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

namespace {

constexpr double kMemory = 0.07;

nlohmann::json LastLineOf(const std::string& command) {
  FILE* pipe = popen(command.c_str(), "r");
  std::string text;
  std::array<char, 4096> buffer;
  while (const size_t got = fread(buffer.data(), 1, buffer.size(), pipe)) {
    text.append(buffer.data(), got);
  }
  const int status = pclose(pipe);
  const size_t end = text.find_last_not_of('\n');
  const size_t begin = end == std::string::npos ? end : text.rfind('\n', end);
  nlohmann::json json = nlohmann::json::parse(text.substr(begin + 1), nullptr, false);
  if (status == 0 && json.is_object()) return json;
  std::fprintf(stderr, "%s\n  ended with %d: %s\n", command.c_str(), status, text.c_str());
  std::exit(1);
}

struct Drawn {
  int ranks = 1;
  std::string recompute;
  std::string flags;  // for both programs
};

Drawn Draw(std::mt19937_64& bits, bool gpu, int most_ranks) {
  const auto pick = [&](const std::vector<std::string>& from) {
    return from[bits() % from.size()];
  };
  Drawn drawn;
  drawn.recompute = pick({"keep", "none", "ffn", "mixer", "block", "loop"});
  const std::string several = pick({"none", "dp", "cp", "tp", "pp"});
  const std::string axis = most_ranks == 1 ? "none" : several;
  drawn.ranks = axis == "none" ? 1 : 2;
  const auto set = [&](const std::string& key, const std::string& value) {
    drawn.flags += " --set '" + key + "=" + value + "'";
  };
  const std::string mixer = pick({"gdn", "gla", "mamba2", "full", "kda", "mlstm"});
  set("model.mixers", "[\"" + mixer + "\", \"full\"]");
  set("model.loops", pick({"1", "2", "4"}));
  set("model.layers", pick({"2", "4", "6"}));
  set("model.tie_embeddings", pick({"true", "false"}));
  const std::string width = gpu ? pick({"1024", "2048"}) : pick({"128", "256"});
  set("model.width", width);
  // Of 64 or 128 channels; two at least, which ranks along tp share.
  const int heads = std::stoi(width) / std::stoi(pick({"64", "128"}));
  set("model.heads", std::to_string(std::max(2, heads)));
  set("model.ffn", gpu ? pick({"2816", "5632"}) : pick({"256", "768"}));
  set("model.vocab", gpu ? pick({"32000", "128256"}) : pick({"256", "4096"}));
  set("data.sequence", gpu ? pick({"2048", "4096"}) : pick({"128", "256", "512"}));
  set("batch.micro_batch", pick({"1", "2", "4"}));
  set("batch.tokens", gpu ? "32768" : "8192");
  set("parallel.recompute", drawn.recompute);
  set("parallel.zero", pick({"0", "1"}));
  if (axis != "none" && axis != "dp") set("parallel." + axis, "2");
  if (gpu) set("parallel.precision", "bf16");
  return drawn;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  const std::string lt2 = argv[1], device = argv[2];
  const unsigned long seed = argc > 3 ? std::strtoul(argv[3], nullptr, 10) : 1;
  const int count = argc > 4 ? std::atoi(argv[4]) : 6;
  const int most_ranks = argc > 5 ? std::atoi(argv[5]) : 2;
  const std::string on = " --device " + device + " --json";
  const std::string dtype = device == "cuda" ? " --dtype bf16" : "";
  const auto ranks = [](int n) {
    return n == 1 ? std::string()
                  : "mpirun --allow-run-as-root --oversubscribe --bind-to none -n " +
                        std::to_string(n) + " ";
  };
  std::string machine[3], measured[3];
  if (argc > 6) machine[1] = machine[2] = argv[6];
  std::printf("seed %lu\n%5s %-9s %9s %9s %7s %9s %9s %7s\n", seed, "ranks", "recompute",
              "plan MiB", "is MiB", "off", "plan ms", "is ms", "off");
  std::mt19937_64 bits(seed);
  bool good = true;
  for (int i = 0; i < count; ++i) {
    const Drawn drawn = Draw(bits, device == "cuda", most_ranks);
    std::string& file = machine[drawn.ranks];
    if (file.empty()) {
      file = "plan_accuracy_machine_" + std::to_string(drawn.ranks) + ".toml";
      measured[drawn.ranks] = file;
      LastLineOf(ranks(drawn.ranks) + lt2 + " bench machine --repeats 3 --out " + file + dtype +
                 on);
    }
    const std::string config = " lt2-tiny" + drawn.flags;
    const nlohmann::json is =
        LastLineOf(ranks(drawn.ranks) + lt2 + " bench step --steps 5" + config + on);
    const nlohmann::json plan =
        LastLineOf(lt2 + " plan --best 1 --most 1 --gpus " + std::to_string(drawn.ranks) +
                   " --gpu " + file + config + " --json")["policies"][drawn.recompute];
    const double planned = plan["peak_bytes"], peak = is["peak_bytes"];
    const double seconds = plan["step"]["seconds"], took = is["step_s"];
    std::printf("%5d %-9s %9.1f %9.1f %6.1f%% %9.1f %9.1f %6.1f%% %s\n", drawn.ranks,
                drawn.recompute.c_str(), planned / (1 << 20), peak / (1 << 20),
                100 * (planned / peak - 1), 1e3 * seconds, 1e3 * took, 100 * (seconds / took - 1),
                drawn.flags.c_str());
    std::fflush(stdout);
    good &= std::abs(planned / peak - 1) <= kMemory;
  }
  for (const std::string& file : measured) {
    if (!file.empty()) std::remove(file.c_str());
  }
  return good ? 0 : 1;
}
