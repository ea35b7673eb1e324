#include "launch/known_answers.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <span>

#include "core/file.h"
#include "core/hdf5.h"
#include "core/status_macros.h"
#include "core/strings.h"
#include "launch/shared_answers.h"
#include "model/mixers/registry.h"
#include "parallel/layout.h"
#include "parallel/tensor_shard.h"
#include "parallel/thread_communicator.h"

namespace lt2 {
namespace {

absl::StatusOr<HostArray> ReadArray(const h5::File& file, const std::string& name) {
  ASSIGN_OR_RETURN(const h5::DatasetInfo info, file.Info(name));
  HostArray array{.shape = info.shape,
                  .values = std::vector<double>(info.shape.size()),
                  .integer = info.type != h5::Type::kF32 && info.type != h5::Type::kF64};
  RETURN_IF_ERROR(file.Read(name, h5::Type::kF64, array.values.data()));
  return array;
}

absl::StatusOr<HostArrays> ReadGroup(const h5::File& file, const std::string& group) {
  HostArrays arrays;
  if (!file.Has(group)) return arrays;
  ASSIGN_OR_RETURN(const std::vector<std::string> names, file.List(group));
  for (const std::string& name : names) {
    ASSIGN_OR_RETURN(arrays[name], ReadArray(file, StrCat(group, "/", name)));
  }
  return arrays;
}

absl::StatusOr<CaseData> ReadCase(const h5::File& file, const std::string& op,
                                  const std::string& name) {
  CaseData data{.op = op, .name = name};
  for (const std::string& key : file.AttributeNames("/")) {
    if (key == "op" || key == "format_version") continue;
    if (file.AttributeIsText("/", key)) {
      ASSIGN_OR_RETURN(data.attributes[key], file.StringAttribute("/", key));
    } else {
      ASSIGN_OR_RETURN(data.attributes[key], file.DoubleAttribute("/", key));
    }
  }
  ASSIGN_OR_RETURN(data.inputs, ReadGroup(file, "inputs"));
  ASSIGN_OR_RETURN(data.outputs, ReadGroup(file, "outputs"));
  ASSIGN_OR_RETURN(data.cotangents, ReadGroup(file, "cotangents"));
  ASSIGN_OR_RETURN(data.grads, ReadGroup(file, "grads"));
  return data;
}

void Compare(const HostArrays& got, const HostArrays& want, const std::string& prefix,
             double allowed, std::vector<KnownAnswerResult::Row>* rows) {
  for (const auto& [name, array] : want) {
    const auto found = got.find(name);
    const double error = found == got.end() ? std::numeric_limits<double>::infinity()
                                            : RelativeError(found->second, array);
    rows->push_back({prefix + name, error, allowed});
  }
}

struct Allowed {
  double output, gradient;
};
Allowed AllowedIn(DType dtype) {
  switch (dtype) {
    case DType::kF64:  // the answers are stored in float32: half its last bit
      return {6e-8, 6e-8};
    case DType::kBF16:
      return {2e-2, 4e-2};
    default:
      return {5e-6, 2e-5};
  }
}

// Several roundings one after another.
double AllowedOfLayer(DType dtype) { return dtype == DType::kBF16 ? 4e-2 : 1e-4; }

void RunOperator(const OpCase& op_case, const CaseData& data, Device device, DType dtype, int cp,
                 KnownAnswerResult* result) {
  Stream stream{.device = device};
  const CaseResult got =
      cp == 1 ? RunCase(op_case, data, stream, dtype) : RunShared(op_case, data, cp, dtype);
  const Allowed allowed = AllowedIn(dtype);
  Compare(got.outputs, data.outputs, "", allowed.output, &result->rows);
  Compare(got.grads, data.grads, "grad ", allowed.gradient, &result->rows);
}

// Binds our parameters to what the file has for them. Theirs may be several of ours, row after row.
absl::Status ImportParams(const HostArrays& theirs, const std::string& path,
                          const ForeignTable& foreign, Device device, DType dtype,
                          const ParamSet& params) {
  std::map<std::string, size_t> used;  // elements
  for (const ForeignTable::Name& name : foreign.params) {
    Param* param = params.Find(name.ours);
    if (param == nullptr) continue;
    const auto found = theirs.find(name.theirs);
    if (found == theirs.end()) {
      return absl::DataLossError(
          StrCat(path, " has no params/", name.theirs, " for our ", name.ours));
    }
    size_t& begin = used[name.theirs];
    const Shape& shape = param->spec.shape;
    const std::vector<double>& values = found->second.values;
    if (begin + shape.size() > values.size()) {
      return absl::DataLossError(StrCat(path, ": params/", name.theirs, " has shape ",
                                        found->second.shape.ToString(), ", too small for our ",
                                        name.ours, " ", shape.ToString()));
    }
    const std::span<const double> part(values.data() + begin, shape.size());
    const DType of_value = param->spec.elementwise ? AccumulatorOf(dtype) : dtype;
    param->BindValue(Tensor::FromHost(part, shape, of_value, device));
    begin += shape.size();
  }
  for (const auto& [name, elements] : used) {
    const HostArray& array = theirs.at(name);
    if (elements != array.values.size()) {
      return absl::DataLossError(StrCat(path, ": params/", name, " has shape ",
                                        array.shape.ToString(), ", of which ours use ", elements,
                                        " elements"));
    }
  }
  for (const Param* param : params.all()) {
    if (!param->value.defined()) {
      return absl::DataLossError(StrCat(path, " has nothing for our ", param->spec.name));
    }
  }
  return absl::OkStatus();
}

// A layer of another library under its own names.
struct LayerCase {
  std::string path, kind;
  ModelConfig config;
  HostArrays params;
  HostArray x;  // [rows, tokens, width]
  HostArrays outputs;
};

absl::StatusOr<LayerCase> ReadLayer(const h5::File& file, const std::string& path,
                                    const std::string& kind) {
  ASSIGN_OR_RETURN(const std::string options_text, file.StringAttribute("/", "options"));
  const auto options = nlohmann::json::parse(options_text, nullptr, /*allow_exceptions=*/false);
  if (!options.is_object() || !options.contains("hidden_size")) {
    return absl::DataLossError(StrCat(path, ": attribute 'options' is no layer's arguments"));
  }
  ModelConfig config;
  config.width = options["hidden_size"].get<int64_t>();
  config.heads = options.value("num_heads", int64_t{1});
  config.kv_heads = options.value("num_kv_heads", config.heads);
  config.head_dim = options.value("head_dim", config.width / config.heads);
  config.rope_theta = options.value("rope_theta", config.rope_theta);
  config.rope_interleaved = options.value("rope_style", "half") == "interleaved";
  config.norm_eps = options.value("norm_eps", config.norm_eps);
  config.attention_gate = options.value("attention_gate", false);
  const ForeignTable foreign = ForeignNamesOf(kind);
  ConfigTable table;
  for (const ForeignTable::Name& name : foreign.options) {
    const auto found = options.find(name.theirs);
    if (found == options.end()) {
      if (name.absent.has_value()) table.Set(name.ours, *name.absent);
      continue;
    }
    if (found->is_boolean()) table.Set(name.ours, found->get<bool>());
    if (found->is_number_integer()) table.Set(name.ours, found->get<int64_t>());
    if (found->is_number_float()) table.Set(name.ours, found->get<double>());
    if (found->is_string()) {
      std::string word = found->get<std::string>();
      for (const ForeignTable::Name& other : foreign.words) {
        if (word == other.theirs) word = other.ours;
      }
      table.Set(name.ours, std::string_view(word));
    }
  }
  config.mixer_options[kind] = table;
  LayerCase layer{.path = path, .kind = kind, .config = config};
  ASSIGN_OR_RETURN(layer.params, ReadGroup(file, "params"));
  ASSIGN_OR_RETURN(layer.x, ReadArray(file, "inputs/x"));
  ASSIGN_OR_RETURN(layer.outputs, ReadGroup(file, "outputs"));
  return layer;
}

// The parts of `whole` that a tensor-parallel rank holds.
void TakeParts(ParamSet& whole, const Communicator& tp, ParamSet& parts) {
  for (Param* part : parts.all()) {
    const Tensor& from = whole.Find(part->spec.name)->value;
    part->Hold(HeldBox(part->spec, tp.size(), tp.rank()));
    const std::vector<double> all = from.ToDoubles();
    std::vector<double> held(part->held.size());
    ForEachRun(Box::Whole(part->spec.shape), part->held,
               [&](int64_t at, int64_t to, int64_t count) {
                 std::copy_n(all.begin() + at, count, held.begin() + to);
               });
    part->BindValue(Tensor::FromHost(held, part->held.extent, from.dtype(), from.device()));
  }
}

// Built, filled through the import table, and run over this rank's part of the rows and of the
// heads; the first rank of those that share rows writes y there.
absl::Status RunLayer(const LayerCase& layer, const RankGroups& groups, Device device, DType dtype,
                      std::vector<double>* y) {
  Communicator& cp = *groups.cp;
  const auto make = [&](ParamSet& params, int ranks) {
    return MakeMixer(
        layer.kind, layer.config,
        {.scope = ParamScope(params), .root = ParamScope(params), .split = {.ranks = ranks}});
  };
  ParamSet whole, params;
  make(whole, 1);
  RETURN_IF_ERROR(
      ImportParams(layer.params, layer.path, ForeignNamesOf(layer.kind), device, dtype, whole));
  const std::unique_ptr<Mixer> mixer = make(params, groups.tp->size());
  TakeParts(whole, *groups.tp, params);
  const int64_t rows = layer.x.shape[0], length = layer.x.shape[1], width = layer.config.width;
  std::vector<int32_t> cu_seqlens;
  for (int64_t r = 0; r <= rows; ++r) cu_seqlens.push_back(static_cast<int32_t>(r * length));
  ContextShard shard(cp, rows * length, rows, device);
  shard.Fill(cu_seqlens);
  const std::span<const double> own(layer.x.values.data() + shard.begin() * width,
                                    shard.tokens() * width);
  Stream stream{.device = device};
  Tape tape(stream);
  tape.set_recording(false);
  const Var x_ND = tape.Input(Tensor::FromHost(own, {shard.tokens(), width}, dtype, device));
  TensorShard heads(*groups.tp, /*sequence=*/false, shard.tokens());
  const bool divided = groups.tp->size() > 1;
  const MixerContext context{.documents = shard.documents(),
                             .shard = cp.size() > 1 ? &shard : nullptr,
                             .heads = divided ? &heads : nullptr};
  Var y_ND = mixer->Forward(tape, x_ND, context).y_ND;
  if (divided) y_ND = LeaveLayer(tape, y_ND, &heads);
  if (groups.tp->rank() == 0) {
    std::ranges::copy(y_ND.value.ToDoubles(), y->begin() + shard.begin() * width);
  }
  return absl::OkStatus();
}

// Why the mesh's ranks cannot share the layer's tokens and heads; empty if they can.
std::string Undivided(const LayerCase& layer, const Mesh& mesh) {
  const int ranks = mesh.tp;
  if (layer.x.shape[0] * layer.x.shape[1] < mesh.cp) return TooFewTokens(mesh.cp);
  for (const HeadCount& count : HeadCountsOf(layer.kind, layer.config)) {
    if (!count.DividedBy(ranks)) {
      return StrCat(ranks, " ranks do not divide ", count.name, " = ", count.heads);
    }
  }
  return "";
}

absl::Status CheckLayer(const LayerCase& layer, Device device, DType dtype, const Mesh& mesh,
                        KnownAnswerResult* result) {
  HostArray y{.shape = layer.x.shape, .values = std::vector<double>(layer.x.values.size())};
  std::vector<absl::Status> statuses(mesh.size());
  const auto run = [&](Communicator& world) {
    statuses[world.rank()] = RunLayer(layer, MakeGroups(world, mesh), device, dtype, &y.values);
  };
  if (mesh.size() == 1) {
    run(*MakeGroupOfOne());
  } else {
    RunRanks(mesh.size(), run);
  }
  for (const absl::Status& status : statuses) RETURN_IF_ERROR(status);
  Compare({{"y", y}}, layer.outputs, "", AllowedOfLayer(dtype), &result->rows);
  return absl::OkStatus();
}

}  // namespace

bool KnownAnswerResult::passed() const {
  return std::all_of(rows.begin(), rows.end(),
                     [](const Row& row) { return row.error <= row.allowed; });
}

absl::StatusOr<std::vector<std::string>> FindKnownAnswers(const std::vector<std::string>& paths) {
  std::vector<std::string> files;
  for (const std::string& path : paths) {
    if (!FileSystem::Get().IsDirectory(path)) {
      if (!FileSystem::Get().Exists(path)) {
        return absl::NotFoundError(StrCat(path, ": no such file or folder"));
      }
      files.push_back(path);
      continue;
    }
    ASSIGN_OR_RETURN(const std::vector<std::string> names, FileSystem::Get().List(path));
    for (const std::string& name : names) {
      const std::string inner = JoinPath(path, name);
      if (FileSystem::Get().IsDirectory(inner)) {
        ASSIGN_OR_RETURN(const std::vector<std::string> below, FindKnownAnswers({inner}));
        files.insert(files.end(), below.begin(), below.end());
      } else if (name.ends_with(".h5")) {
        files.push_back(inner);
      }
    }
  }
  return files;
}

absl::StatusOr<KnownAnswerResult> CheckKnownAnswer(const std::string& path, Device device,
                                                   DType dtype, const Mesh& mesh) {
  ASSIGN_OR_RETURN(const h5::File file, h5::File::Open(path));
  ASSIGN_OR_RETURN(const std::string op, file.StringAttribute("/", "op"));
  KnownAnswerResult result{.name = std::filesystem::path(path).stem().string()};
  if (op == "layer") {
    ASSIGN_OR_RETURN(const std::string kind, file.StringAttribute("/", "mixer"));
    const std::vector<std::string> kinds = MixerKinds();
    if (std::find(kinds.begin(), kinds.end(), kind) == kinds.end()) {
      result.skipped = StrCat("no mixer '", kind, "' in this version");
      return result;
    }
    ASSIGN_OR_RETURN(const LayerCase layer, ReadLayer(file, path, kind));
    if (const std::string reason = Undivided(layer, mesh); !reason.empty()) {
      result.skipped = reason;
      return result;
    }
    RETURN_IF_ERROR(CheckLayer(layer, device, dtype, mesh, &result));
    return result;
  }
  const OpCase* op_case = FindOpCase(op);
  if (op_case == nullptr) {
    result.skipped = StrCat("no operator '", op, "' in this version");
    return result;
  }
  ASSIGN_OR_RETURN(const CaseData data, ReadCase(file, op, result.name));
  if (mesh.tp > 1 && mesh.cp == 1) result.skipped = "tp ranks divide whole layers";
  if (mesh.cp > 1) result.skipped = WhyNotShared(data, mesh.cp);
  if (result.skipped.empty()) RunOperator(*op_case, data, device, dtype, mesh.cp, &result);
  return result;
}

}  // namespace lt2
