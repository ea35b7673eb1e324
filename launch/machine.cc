#include "launch/machine.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "absl/strings/str_join.h"
#include "core/status_macros.h"
#include "core/strings.h"
#include "launch/presets.h"

namespace lt2 {
namespace {

namespace fs = std::filesystem;

constexpr char kOther[] = "other";
constexpr Precision kPrecisions[] = {Precision::kBf16, Precision::kFp32, Precision::kFp64};

// NaN and infinity are not.
bool IsAbove0(double x) { return std::isfinite(x) && x > 0; }
bool IsAtLeast0(double x) { return std::isfinite(x) && x >= 0; }

void ReadCurve(const ConfigTable& table, const char* at, const char* rate, RateCurve* curve) {
  table.Read(at, &curve->at);
  table.Read(rate, &curve->rate);
  if (curve->at.empty() || curve->at.size() != curve->rate.size()) {
    return table.AddError(rate, StrCat("wants one number for each of ", at, ", at least one"));
  }
  if (!std::ranges::is_sorted(curve->at) || !std::ranges::all_of(curve->at, IsAbove0) ||
      !std::ranges::all_of(curve->rate, IsAbove0)) {
    table.AddError(at, "wants numbers above 0, ascending");
  }
}

void WriteCurve(ConfigTable* table, const char* at, const char* rate, const RateCurve& curve) {
  table->Set(at, curve.at);
  table->Set(rate, curve.rate);
}

Machine::Link ReadLink(const ConfigTable& table) {
  Machine::Link link;
  table.Read("bandwidth", &link.bandwidth);
  table.Read("latency_s", &link.latency_s);
  if (!IsAbove0(link.bandwidth)) table.AddError("bandwidth", "wants bytes per second, above 0");
  if (!IsAtLeast0(link.latency_s)) table.AddError("latency_s", "wants seconds");
  return link;
}

ConfigTable TableOf(const Machine::Link& link) {
  ConfigTable table;
  table.Set("bandwidth", link.bandwidth);
  table.Set("latency_s", link.latency_s);
  return table;
}

// The machine that has what a file leaves out.
std::string Like(const ConfigTable& root) {
  std::string like;
  root.Read("like", &like);
  return like;
}

absl::StatusOr<Machine> ReadMachine(const ConfigTable& root) {
  Machine machine{.name = fs::path(root.source()).stem()};
  root.Read("name", &machine.name);
  root.Read("source", &machine.source);
  root.Read("memory", &machine.memory);
  root.Read("ranks_per_node", &machine.ranks_per_node);
  root.Read("shared", &machine.shared);
  root.Read("call_s", &machine.call_s);
  root.Read("update_hidden", &machine.update_hidden);
  if (!IsAbove0(machine.memory)) root.AddError("memory", "wants bytes, above 0");
  if (machine.ranks_per_node < 1) root.AddError("ranks_per_node", "wants 1 or more");
  if (!IsAtLeast0(machine.call_s)) root.AddError("call_s", "wants seconds");
  if (!(machine.update_hidden >= 0 && machine.update_hidden <= 1)) {
    root.AddError("update_hidden", "wants a share, from 0 to 1");
  }
  const ConfigTable products = root.Table("products");
  for (const Precision precision : kPrecisions) {
    if (!products.Has(Name(precision))) continue;
    const ConfigTable table = products.Table(Name(precision));
    Machine::Products& of = machine.products[precision];
    table.Read("peak", &of.peak);
    if (!IsAtLeast0(of.peak)) table.AddError("peak", "wants FLOPs per second, or 0: unknown");
    ReadCurve(table, "flops_per_byte", "flops", &of.flops);
  }
  if (machine.products.empty()) {
    root.AddError("products", "wants [products.bf16], [products.fp32] or [products.fp64]");
  }
  ReadCurve(root.Table("copy"), "bytes", "rate", &machine.copy);
  machine.node = ReadLink(root.Table("node"));
  machine.network = ReadLink(root.Table("network"));
  for (const ConfigTable& table : root.Tables("operator")) {
    std::string op;
    Machine::Share share;
    table.Read("name", &op);
    table.Read("forward", &share.forward);
    table.Read("backward", &share.backward);
    if (op.empty()) table.AddError("name", "wants an operator's");
    if (!IsAbove0(share.forward)) table.AddError("forward", "wants a share above 0");
    if (!IsAbove0(share.backward)) table.AddError("backward", "wants a share above 0");
    machine.shares[op] = share;
  }
  RETURN_IF_ERROR(root.Finish());
  return machine;
}

}  // namespace

double RateCurve::operator()(double x) const {
  const size_t above = std::ranges::upper_bound(at, x) - at.begin();
  if (above == 0) return rate.front();
  if (above == at.size()) return rate.back();
  const double share = std::log(x / at[above - 1]) / std::log(at[above] / at[above - 1]);
  return rate[above - 1] * std::pow(rate[above] / rate[above - 1], share);
}

Machine Machine::ForRanks(int ranks) const {
  Machine part = *this;
  if (!shared) return part;
  const double n = static_cast<double>(std::min<int64_t>(ranks, ranks_per_node));
  part.memory /= n;
  for (double& rate : part.copy.rate) rate /= n;
  for (auto& [precision, of] : part.products) {
    for (double& rate : of.flops.rate) rate /= n;
  }
  return part;
}

absl::Status Machine::CheckPrecision(Precision precision) const {
  if (products.contains(precision)) return absl::OkStatus();
  std::vector<std::string> known;
  for (const auto& [each, of] : products) known.emplace_back(Name(each));
  return absl::InvalidArgumentError(StrCat("parallel.precision = \"", Name(precision),
                                           "\": machine ", name, " has figures for ",
                                           absl::StrJoin(known, ", ")));
}

std::string_view Machine::OperatorOf(const CostLog::Call& kernel) {
  const std::string_view op = kernel.op;
  return op.empty() ? "update" : op;
}

double Machine::SecondsOf(const CostLog::Call& kernel, Precision precision) const {
  double share = 1;
  auto of = shares.find(OperatorOf(kernel));
  if (of == shares.end()) of = shares.find(kOther);
  if (of != shares.end()) {
    share = kernel.place.backward ? of->second.backward : of->second.forward;
  }
  const double bytes = std::max(kernel.bytes, 1.0);
  const double flops = products.at(precision).flops(kernel.flops / bytes);
  return call_s + std::max(kernel.flops / flops, bytes / copy(bytes)) / share;
}

double Machine::SecondsOf(double messages, double bytes, int size, int stride) const {
  if (size == 1 || messages == 0) return 0;
  if (int64_t{size} * stride <= ranks_per_node) {
    return messages * node.latency_s + bytes / node.bandwidth;
  }
  // Ranks of the group on one node send over the adapters of all of them.
  const double members = std::max(1.0, static_cast<double>(ranks_per_node) / stride);
  const double rate = std::min(node.bandwidth, network.bandwidth * members);
  const double hops = std::max(1.0, std::log2(size / members));
  return messages * network.latency_s * hops + bytes / rate;
}

absl::StatusOr<Machine> ParseMachine(std::string_view text, const std::string& source) {
  ASSIGN_OR_RETURN(const ConfigTable root, ConfigTable::Parse(text, source));
  return ReadMachine(root);
}

std::string Machine::ToToml() const {
  ConfigTable root;
  root.Set("name", std::string_view(name));
  root.Set("source", std::string_view(source));
  root.Set("memory", memory);
  root.Set("ranks_per_node", ranks_per_node);
  root.Set("shared", shared);
  root.Set("call_s", call_s);
  root.Set("update_hidden", update_hidden);
  ConfigTable of_products;
  for (const auto& [precision, of] : products) {
    ConfigTable table;
    table.Set("peak", of.peak);
    WriteCurve(&table, "flops_per_byte", "flops", of.flops);
    of_products.SetTable(Name(precision), table);
  }
  root.SetTable("products", of_products);
  ConfigTable of_copy;
  WriteCurve(&of_copy, "bytes", "rate", copy);
  root.SetTable("copy", of_copy);
  root.SetTable("node", TableOf(node));
  root.SetTable("network", TableOf(network));
  std::vector<ConfigTable> operators;
  for (const auto& [op, share] : shares) {
    ConfigTable table;
    table.Set("name", std::string_view(op));
    table.Set("forward", share.forward);
    table.Set("backward", share.backward);
    operators.push_back(table);
  }
  root.SetTables("operator", operators);
  return root.ToToml();
}

std::vector<std::string> MachineNames() {
  std::vector<std::string> names;
  const absl::StatusOr<std::string> share = ShareDirectory();
  if (!share.ok()) return names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(*share + "/machines", error)) {
    if (entry.path().extension() == ".toml") names.push_back(entry.path().stem());
  }
  std::ranges::sort(names);
  return names;
}

absl::StatusOr<Machine> LoadMachine(const std::string& name_or_path) {
  const std::vector<std::string> names = MachineNames();
  const bool known = std::ranges::find(names, name_or_path) != names.end();
  if (!known && !fs::exists(name_or_path)) {
    const std::string near = NearestName(name_or_path, names);
    return absl::NotFoundError(
        StrCat("there is no machine '", name_or_path, "', nor a file of that name",
               near.empty() ? "" : StrCat("; did you mean '", near, "'?"), ". There are ",
               absl::StrJoin(names, ", "), "; `lt2 bench machine` writes one of where it runs"));
  }
  const auto path = [](const std::string& name) { return *ShareDirectory() + "/machines/" + name; };
  ASSIGN_OR_RETURN(ConfigTable root,
                   ConfigTable::ParseFile(known ? path(name_or_path + ".toml") : name_or_path));
  for (std::string like = Like(root); !like.empty();) {
    ASSIGN_OR_RETURN(const ConfigTable other, ConfigTable::ParseFile(path(like + ".toml")));
    like = Like(other);
    root.MergeDefaults(other);
  }
  return ReadMachine(root);
}

}  // namespace lt2
