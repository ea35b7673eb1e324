// What a machine does per second, measured or by its makers: a TOML file, launch/machines/NAME.toml
// or one that `lt2 bench machine` wrote. What a step will take is computed from it
// (launch/step_cost.h).
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/config.h"
#include "core/cost_log.h"
#include "parallel/parallel_config.h"

namespace lt2 {

// A rate by a size: straight lines between the logarithms of measured points, level beyond them.
struct RateCurve {
  std::vector<double> at, rate;  // ascending; as many of each
  double operator()(double x) const;
};

struct Machine {
  std::string name;
  std::string source;  // of the figures: a sentence
  double memory = 0;   // bytes that a rank finds free
  int64_t ranks_per_node = 1;
  // Ranks of a node share memory, copies and products, as processes of a CPU do: the figures are
  // those of one rank alone.
  bool shared = false;
  double call_s = 0;         // that a kernel takes beside its work
  double update_hidden = 0;  // share of the traffic along dp that goes on beside other work
  // By precision: what the maker promises, 0 where nothing is, and FLOP/s of matrix products by
  // FLOPs per byte that they read or write.
  struct Products {
    double peak = 0;
    RateCurve flops;
  };
  std::map<Precision, Products> products;
  RateCurve copy;  // bytes read and written per second, by bytes of a kernel
  // Between ranks: bytes a rank sends per second, and what a message takes however short it is;
  // between nodes as often as the number of nodes doubles.
  struct Link {
    double bandwidth = 0, latency_s = 0;
  };
  Link node, network;
  // What an operator, by OperatorOf, reaches of these figures. Those not named are "other"; without
  // that they reach all.
  struct Share {
    double forward = 1, backward = 1;
  };
  std::map<std::string, Share, std::less<>> shares;
  // Its name on the tape, or "update" of a kernel outside of tapes.
  static std::string_view OperatorOf(const CostLog::Call& kernel);

  // The share of each of `ranks` ranks where they share.
  Machine ForRanks(int ranks) const;
  // InvalidArgument where products of this precision are not among the figures.
  absl::Status CheckPrecision(Precision precision) const;

  double SecondsOf(const CostLog::Call& kernel, Precision precision) const;
  // Of collectives of a group of `size` ranks, neighbours of which are `stride` ranks apart: so
  // many messages, in which a rank sends so many bytes.
  double SecondsOf(double messages, double bytes, int size, int stride) const;

  std::string ToToml() const;
};

// `text` of a file; `source` names it in messages.
absl::StatusOr<Machine> ParseMachine(std::string_view text, const std::string& source);
// A file, or one that comes with the program. NotFound names the nearest.
absl::StatusOr<Machine> LoadMachine(const std::string& name_or_path);
// Those that come with the program.
std::vector<std::string> MachineNames();

}  // namespace lt2
