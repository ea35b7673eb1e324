// A row of tokens in parts that hand their states on, as ranks do, against the whole row at once:
// outputs and the gradients of all inputs. The parts run one after the other on one device.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/cuda.h"
#include "kernels/scan_additive.h"
#include "kernels/scan_delta.h"
#include "kernels/scan_mlstm.h"
#include "kernels/state_fold.h"
#include "tests/kernels/scan_problem.h"

namespace lt2 {
namespace {

struct Where {
  const char* name;
  Backend backend;
  DType dtype;
  double tolerance;
};

using Cuts = std::vector<int32_t>;

// Documents of tokens [begin, end) of the row.
Cuts PartOfDocuments(const Cuts& documents, int32_t begin, int32_t end) {
  Cuts part = {0};
  for (const int32_t cut : documents) {
    if (begin < cut && cut < end) part.push_back(cut - begin);
  }
  part.push_back(end - begin);
  return part;
}

// Keeps what the parts leave. They come forward from the first and backward from the last.
class RowLink final : public StateLink {
 public:
  RowLink(const Cuts& documents, const Cuts& parts, Device device) {
    std::vector<int32_t> links;
    for (size_t r = 0; r + 1 < parts.size(); ++r) {
      const bool begins = std::ranges::count(documents, parts[r]) > 0;
      const bool spans = PartOfDocuments(documents, parts[r], parts[r + 1]).size() == 2;
      links.push_back((begins ? 0 : kContinues) | (spans ? kSpans : 0));
    }
    parts_ = static_cast<int64_t>(links.size());
    links_R_ = Tensor::FromHost(links, {parts_}, device);
  }
  void set_part(int64_t part) { part_ = part; }

  Arriving<void> Exchange(Stream& stream, const Segment& segment, Incoming* incoming) override {
    *incoming = Receive(stream, segment);
    return [] {};
  }
  Arriving<Tensor> ExchangeGradient(Stream& stream, const Tensor& dincoming_1GKV, const Incoming&,
                                    const Tensor& final_max_1G) override {
    return [out = OutgoingGradient(stream, dincoming_1GKV, final_max_1G)] { return out; };
  }

 private:
  Incoming Receive(Stream& stream, const Segment& segment) {
    const Tensor& state = segment.state_1GKV;
    const bool framed = segment.max_1G.defined();
    if (framed) {
      Keep(states_RX_, {state, segment.max_1G, segment.log_map_1G});
      return FoldFrames(stream, state);
    }
    Keep(states_RX_, {state});
    Keep(maps_RX_, {segment.map_1GKX});
    map_ = segment.map_1GKX.dim(3) > 1 ? StateMap::kMatrix : StateMap::kRows;
    const Incoming incoming{.state_1GKV = Like(state), .maps = {}};
    StateFold(stream, {.states_RX = states_RX_,
                       .maps_RX = maps_RX_,
                       .map = map_,
                       .links_R = links_R_,
                       .part = part_,
                       .out_1GKV = incoming.state_1GKV});
    return incoming;
  }

  Tensor OutgoingGradient(Stream& stream, const Tensor& dincoming_1GKV,
                          const Tensor& final_max_1G) {
    Tensor next_max_1G;
    if (final_max_1G.defined()) {
      const Incoming folded = FoldFrames(stream, dincoming_1GKV);
      maps_RX_ = folded.maps;
      next_max_1G = folded.next_max_1G;
      map_ = StateMap::kNumber;
    }
    Keep(gradients_RX_, {dincoming_1GKV});
    const Tensor out = Like(dincoming_1GKV);
    StateFold(stream, {.states_RX = gradients_RX_,
                       .maps_RX = maps_RX_,
                       .map = map_,
                       .links_R = links_R_,
                       .part = part_,
                       .reverse = true,
                       .from_max_1G = next_max_1G,
                       .to_max_1G = final_max_1G,
                       .out_1GKV = out});
    return out;
  }

  static Tensor Like(const Tensor& x) { return Tensor::Empty(x.shape(), x.dtype(), x.device()); }

  // One after the other in the part's row of x, which is made with zeros.
  void Keep(Tensor& x, const std::vector<Tensor>& parts) const {
    int64_t row = 0;
    for (const Tensor& part : parts) row += part.size();
    if (!x.defined()) x = Tensor::Zeros({parts_, row}, parts[0].dtype(), parts[0].device());
    int64_t at = part_ * row;
    for (const Tensor& part : parts) {
      x.Flat(at, part.size()).CopyFrom(part);
      at += part.size();
    }
  }
  Incoming FoldFrames(Stream& stream, const Tensor& state) {
    const int64_t heads = state.dim(1);
    const auto empty = [&](const Shape& shape) {
      return Tensor::Empty(shape, state.dtype(), state.device());
    };
    const Incoming folded{.state_1GKV = Like(state),
                          .maps = empty({parts_, heads}),
                          .max_1G = empty({1, heads}),
                          .next_max_1G = empty({1, heads})};
    StateFoldMax(stream, {.parts_RX = states_RX_,
                          .links_R = links_R_,
                          .part = part_,
                          .out_1GKV = folded.state_1GKV,
                          .out_max_1G = folded.max_1G,
                          .next_max_1G = folded.next_max_1G,
                          .maps_RG = folded.maps});
    return folded;
  }

  int64_t parts_ = 0, part_ = 0;
  Tensor links_R_, states_RX_, maps_RX_, gradients_RX_;
  StateMap map_ = StateMap::kMatrix;
};

// Tokens of the row on a tape, until their backward.
class Part {
 public:
  Part(const CaseData& data, const Cuts& documents, Stream& stream, DType dtype, StateLink* link)
      : data_(data),
        dtype_(dtype),
        documents_(documents.back(), static_cast<int64_t>(documents.size()) + 1, stream.device),
        tape_(stream) {
    documents_.Fill(documents);
    o_ = Forward(link);
    outputs["o"] = Host("v", o_.value);
  }

  void Backward() {
    const Tensor d_o = OnDevice(data_.cotangents.at("o"), dtype_);
    const std::vector<Tensor> gradients = tape_.Backward({{o_, d_o}}, vars_);
    for (size_t i = 0; i < names_.size(); ++i) grads[names_[i]] = Host(names_[i], gradients[i]);
  }

  HostArrays outputs, grads;

 private:
  // x [1, N, …] as [N, …].
  Tensor OnDevice(const HostArray& x, DType dtype) const {
    const Shape& of = x.shape;
    const Shape shape = of.rank() == 4 ? Shape{of[1], of[2], of[3]} : Shape{of[1], of[2]};
    return Tensor::FromHost(x.values, shape, dtype, tape_.device());
  }
  HostArray Host(const std::string& like, const Tensor& x) const {
    return {.shape = data_.inputs.at(like).shape, .values = x.ToDoubles()};
  }
  Var In(const char* name, DType dtype) {
    if (data_.inputs.count(name) == 0) return {};
    names_.emplace_back(name);
    return vars_.emplace_back(tape_.Input(OnDevice(data_.inputs.at(name), dtype), true));
  }

  Var Forward(StateLink* link) {
    const DType wide = AccumulatorOf(dtype_);
    const Var q = In("q", dtype_), k = In("k", dtype_), v = In("v", dtype_), g = In("g", wide);
    const bool channels = g.value.defined() && g.shape().rank() == 3;
    const Var g_NG = channels ? Var() : g, g_NGK = channels ? g : Var();
    const double scale = std::get<double>(data_.attributes.at("scale"));
    const auto none = FinalStates::kNone;
    if (data_.inputs.count("f") > 0) {
      return ScanMlstm(tape_, {q, k, v, In("i", wide), In("f", wide), {}}, scale, documents_, none,
                       link)
          .o_NHV;
    }
    if (data_.inputs.count("beta") > 0) {
      return ScanDelta(tape_, {q, k, v, g_NG, g_NGK, In("beta", wide), {}}, scale, documents_, none,
                       link)
          .o_NGV;
    }
    ScanAdditiveInputs in{q, k, v, g_NG, g_NGK};
    if (data_.inputs.count("log_gamma") > 0) {
      const HostArray& gamma = data_.inputs.at("log_gamma");
      in.log_gamma_G = Tensor::FromHost(gamma.values, gamma.shape, wide, tape_.device());
    }
    return ScanAdditive(tape_, in, scale, documents_, none, link).o_NGV;
  }

  const CaseData data_;
  const DType dtype_;
  Documents documents_;
  Tape tape_;
  std::vector<std::string> names_;
  std::vector<Var> vars_;
  Var o_;
};

CaseData Problem(const std::string& op, uint64_t seed, const ScanSizes& n, double strongest) {
  const bool mlstm = op == "mlstm";
  CaseData data = ScanProblem(mlstm ? "linear_attention" : op, seed, n, strongest);
  if (mlstm) {
    const Shape gates = {1, n.tokens, n.heads};
    data.inputs["i"] = RandomNormal(seed, "i", gates, 2);
    data.inputs["f"] = RandomUniform(seed, "f", gates, 1, 8);  // of sigmoids near 1
  }
  RoundToBf16(data);
  return data;
}

void Append(HostArrays& all, const HostArrays& part) {
  for (const auto& [name, array] : part) {
    HostArray& to = all[name];
    if (to.shape.rank() == 0) {
      to = array;
      continue;
    }
    to.shape[1] += array.shape[1];
    to.values.insert(to.values.end(), array.values.begin(), array.values.end());
  }
}

class ScanLink : public testing::TestWithParam<std::tuple<const char*, Where>> {
 protected:
  void SetUp() override {
    const bool gpu = std::get<Where>(GetParam()).backend == Backend::kCuda;
    if (gpu && cuda::DeviceCount() == 0) GTEST_SKIP() << "there is no GPU here";
  }
};

TEST_P(ScanLink, PartsMakeTheWholeRow) {
  const auto& [op, where] = GetParam();
  const Cuts documents = {0, 5, 40, 210, 257, 300};
  for (const Cuts& parts : std::vector<Cuts>{
           {0, 150, 300}, {0, 97, 195, 300}, {0, 40, 258, 300}, {0, 70, 100, 209, 210, 300}}) {
    for (const auto& [k, v] : std::vector<std::array<int64_t, 2>>{{16, 64}, {12, 20}, {96, 192}}) {
      SCOPED_TRACE(absl::StrCat("k ", k, " v ", v, ", parts from ", absl::StrJoin(parts, " ")));
      const ScanSizes n{
          .tokens = 300, .key_heads = 2, .heads = 2, .k = k, .v = v, .cu_seqlens = {0, 300}};
      const CaseData data = Problem(op, 41, n, 0.02);
      Stream stream{.device = {where.backend}};
      Part whole(data, documents, stream, where.dtype, nullptr);
      whole.Backward();

      RowLink link(documents, parts, stream.device);
      std::vector<std::unique_ptr<Part>> run;
      HostArrays outputs, grads;
      for (size_t r = 0; r + 1 < parts.size(); ++r) {
        link.set_part(static_cast<int64_t>(r));
        run.push_back(std::make_unique<Part>(PartOf(data, n.tokens, parts[r], parts[r + 1]),
                                             PartOfDocuments(documents, parts[r], parts[r + 1]),
                                             stream, where.dtype, &link));
        Append(outputs, run.back()->outputs);
      }
      for (size_t r = run.size(); r-- > 0;) {
        link.set_part(static_cast<int64_t>(r));
        run[r]->Backward();
      }
      for (const auto& part : run) Append(grads, part->grads);
      ExpectNear(outputs, whole.outputs, where.tolerance);
      ExpectNear(grads, whole.grads, where.tolerance);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Ops, ScanLink,
    testing::Combine(testing::Values("linear_attention", "retention", "simple_gla", "gla",
                                     "delta_rule", "gated_delta_rule", "kda", "mlstm"),
                     testing::Values(Where{"CpuF64", Backend::kCpu, DType::kF64, 1e-11},
                                     Where{"CpuF32", Backend::kCpu, DType::kF32, 2e-5},
                                     Where{"GpuF32", Backend::kCuda, DType::kF32, 2e-5},
                                     Where{"GpuBf16", Backend::kCuda, DType::kBF16, 2e-2})),
    [](const auto& info) {
      return absl::StrCat(std::get<0>(info.param), "_", std::get<1>(info.param).name);
    });

}  // namespace
}  // namespace lt2
