#include "kernels/case.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <set>

#include "absl/strings/str_cat.h"
#include "core/hash.h"
#include "core/philox.h"

namespace lt2 {
namespace {

uint64_t KeyOf(uint64_t seed, const std::string& name) {
  return Hash64(absl::StrCat(seed, "/", name));
}

// The shape of a known answer where there is one: an operator may flatten batch and time.
HostArray ToHost(const Tensor& tensor, const Shape& fallback, const HostArrays& expected,
                 const std::string& name) {
  HostArray array{.shape = fallback};
  const auto it = expected.find(name);
  if (it != expected.end() && it->second.shape.size() == tensor.size()) {
    array.shape = it->second.shape;
  }
  if (tensor.device().backend != Backend::kMeta) array.values = tensor.ToDoubles();
  return array;
}

Tensor ToDevice(const HostArray& array, const Shape& shape, DType dtype, Device device) {
  CHECK_EQ(array.shape.size(), shape.size());
  if (device.backend == Backend::kMeta) return Tensor::Empty(shape, dtype, device);
  return Tensor::FromHost(array.values, shape, dtype, device);
}

}  // namespace

CaseContext::CaseContext(const CaseData& data, Tape& tape, DType dtype)
    : data_(data), tape_(&tape), dtype_(dtype) {}

void CaseContext::MoveTo(Tape& tape) {
  tape_ = &tape;
  moved_ = true;
  for (auto& [name, var] : vars_) var = tape.Input(var.value, /*needs_grad=*/true);
}

Tensor CaseContext::Make(const std::string& input) const {
  static const std::set<std::string> kAccumulators = {
      "g",           "beta", "dt",    "i",     "f",     "log_gamma", "lse", "loss", "initial_state",
      "initial_max", "s",    "bound", "param", "grads", "moment"};  // the last three are AdamW's
  const HostArray& array = Input(input);
  // loss0, lse1 …: of a model's loops.
  const std::string kind = input.substr(0, input.find_last_not_of("0123456789") + 1);
  const DType dtype = kAccumulators.contains(kind) ? AccumulatorOf(dtype_) : dtype_;
  return ToDevice(array, array.shape, dtype, tape_->device());
}

const HostArray& CaseContext::Input(const std::string& input) const {
  const auto it = data_.inputs.find(input);
  CHECK(it != data_.inputs.end()) << data_.op << " " << data_.name << ": no input " << input;
  return it->second;
}

Var CaseContext::In(const std::string& input) {
  const auto it = vars_.find(input);
  if (it != vars_.end()) return it->second;
  return vars_[input] = tape_->Input(Make(input), /*needs_grad=*/true);
}

Tensor CaseContext::OnceMoved(const std::string& input, const std::function<Tensor()>& make) {
  if (!moved_) return make();
  Tensor& made = constants_[input];
  if (!made.defined()) made = make();
  return made;
}

Tensor CaseContext::Value(const std::string& input) {
  return OnceMoved(input, [&] { return Make(input); });
}

Tensor CaseContext::Doubles(const std::string& name, const std::vector<double>& values) {
  const Shape shape = {static_cast<int64_t>(values.size())};
  return OnceMoved(name,
                   [&] { return Tensor::FromHost(values, shape, DType::kF64, tape_->device()); });
}

Tensor CaseContext::Ints(const std::string& input) {
  return OnceMoved(input, [&] { return MakeInts(input); });
}

Param& CaseContext::Weight(const std::string& input) {
  return MakeParam(input, AccumulatorOf(dtype_), uses_);
}

Param& CaseContext::Matrix(const std::string& input) { return MakeParam(input, dtype_, uses_); }

Param& CaseContext::MakeParam(const std::string& input, DType dtype, int uses) {
  std::unique_ptr<Param>& param = weights_[input];
  if (!param) {
    const HostArray& array = Input(input);
    param = std::make_unique<Param>(ParamSpec{.name = input, .shape = array.shape}, dtype,
                                    tape_->device());
    param->value = ToDevice(array, array.shape, dtype, tape_->device());
    param->BindGradient(Tensor::Zeros(array.shape, AccumulatorOf(dtype), tape_->device()));
    param->ExpectUses(uses);
  }
  return *param;
}

Param& CaseContext::Part(const std::string& input, int64_t first, int64_t last) {
  std::unique_ptr<Param>& part = parts_[{input, first}];
  if (!part) {
    Param& whole = MakeParam(input, dtype_, /*uses=*/0);
    part = std::make_unique<Param>(whole.spec);
    part->Hold(Box::RowsOf(whole.spec.shape, first, last));
    part->BindValue(whole.value.Rows(first, last));
    part->BindGradient(whole.main_grad.Rows(first, last));
    part->ExpectUses(uses_);
  }
  return *part;
}

Tensor CaseContext::MakeInts(const std::string& input) const {
  const HostArray& array = Input(input);
  if (tape_->device().backend == Backend::kMeta) {
    return Tensor::Empty(array.shape, DType::kI32, tape_->device());
  }
  const std::vector<int32_t> values(array.values.begin(), array.values.end());
  return Tensor::FromHost(values, array.shape, tape_->device());
}

double CaseContext::Number(const std::string& attribute) const {
  const auto it = data_.attributes.find(attribute);
  CHECK(it != data_.attributes.end() && std::holds_alternative<double>(it->second))
      << data_.op << " " << data_.name << ": no number " << attribute;
  return std::get<double>(it->second);
}

double CaseContext::Number(const std::string& attribute, double fallback) const {
  return data_.attributes.count(attribute) > 0 ? Number(attribute) : fallback;
}

std::string CaseContext::Text(const std::string& attribute) const {
  const auto it = data_.attributes.find(attribute);
  CHECK(it != data_.attributes.end() && std::holds_alternative<std::string>(it->second))
      << data_.op << " " << data_.name << ": no text " << attribute;
  return std::get<std::string>(it->second);
}

Var CaseContext::FlatIn(const std::string& input) {
  Var var = In(input);
  const Shape& shape = var.shape();
  CHECK_GE(shape.rank(), 2);
  Shape flat{shape[0] * shape[1]};
  for (int i = 2; i < shape.rank(); ++i) flat.push_back(shape[i]);
  return {.value = var.value.Reshape(flat), .id = var.id};
}

const Documents& CaseContext::documents(const std::string& sequence) {
  if (documents_) return *documents_;
  std::vector<int32_t> cu;
  if (Has("cu_seqlens")) {
    const std::vector<double>& values = Input("cu_seqlens").values;
    cu.assign(values.begin(), values.end());
  } else {
    const Shape& shape = Input(sequence).shape;
    for (int64_t row = 0; row <= shape[0]; ++row)
      cu.push_back(static_cast<int32_t>(row * shape[1]));
  }
  documents_ = std::make_unique<Documents>(Documents::Of(cu, tape_->device()));
  return *documents_;
}

void CaseContext::ShareRows(const Documents& documents, StateLink& link) {
  documents_ = std::make_unique<Documents>(documents);
  link_ = &link;
}

CaseResult RunCase(const OpCase& op_case, const CaseData& data, Stream& stream, DType dtype,
                   const RunOptions& options) {
  Tape tape(stream);
  CaseContext context(data, tape, dtype);
  context.set_uses(options.uses);
  if (options.link != nullptr) context.ShareRows(*options.documents, *options.link);
  CaseResult result;
  std::vector<Tape::Seed> seeds;
  for (int use = 0; use < options.uses; ++use) {
    const std::map<std::string, Var> outputs = op_case.run(context);
    for (const auto& [name, var] : outputs) {
      result.outputs[name] = ToHost(var.value, var.shape(), data.outputs, name);
      if (!var.needs_grad()) continue;
      const auto given = data.cotangents.find(name);
      const HostArray cotangent =
          given != data.cotangents.end()
              ? given->second
              : RandomNormal(0, absl::StrCat(data.op, "/", data.name, "/", name), var.shape());
      seeds.push_back({var, ToDevice(cotangent, var.shape(), var.value.dtype(), stream.device)});
    }
  }
  if (seeds.empty()) return result;

  std::vector<Var> wrt;
  for (const auto& [name, var] : context.vars()) wrt.push_back(var);
  const std::vector<Tensor> grads = tape.Backward(std::move(seeds), wrt);

  size_t i = 0;
  for (const auto& [name, var] : context.vars()) {
    Tensor grad = grads[i++];
    if (!grad.defined()) grad = Tensor::Zeros(var.shape(), var.value.dtype(), stream.device);
    result.grads[name] = ToHost(grad, data.inputs.at(name).shape, data.grads, name);
  }
  for (const auto& [name, param] : context.weights()) {
    CHECK_EQ(param->outstanding(), 0) << data.op << ": uses of " << name << " are missing";
    result.grads[name] = ToHost(param->main_grad, param->spec.shape, data.grads, name);
  }
  return result;
}

double RelativeError(const HostArray& a, const HostArray& b) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (!(a.shape == b.shape) || a.values.size() != b.values.size()) return kInfinity;
  double difference = 0, norm = 0;
  for (size_t i = 0; i < a.values.size(); ++i) {
    const double d = a.values[i] - b.values[i];
    difference += d * d;
    norm += b.values[i] * b.values[i];
  }
  if (!std::isfinite(difference) || !std::isfinite(norm)) return kInfinity;
  difference = std::sqrt(difference), norm = std::sqrt(norm);
  return norm < 1e-6 ? difference : difference / norm;
}

namespace {

// Each value a function of its index alone. Beyond a million, which only measurements have, the
// same values come again: rows of no width begin alike.
template <class Fn>
HostArray Filled(const Shape& shape, bool integer, const Fn& value) {
  constexpr int64_t kOwn = 1'048'573;  // a prime
  const int64_t size = shape.size();
  std::vector<double> own(std::min(size, kOwn));
#pragma omp parallel for schedule(static)
  for (int64_t i = 0; i < static_cast<int64_t>(own.size()); ++i) own[i] = value(i);
  HostArray array{.shape = shape, .integer = integer};
  if (size <= kOwn) {
    array.values = std::move(own);
    return array;
  }
  array.values.reserve(size);
  while (static_cast<int64_t>(array.values.size()) < size) {
    const int64_t more = std::min<int64_t>(kOwn, size - array.values.size());
    array.values.insert(array.values.end(), own.begin(), own.begin() + more);
  }
  return array;
}

}  // namespace

HostArray RandomNormal(uint64_t seed, const std::string& name, const Shape& shape, double scale) {
  return Filled(shape, false, [key = KeyOf(seed, name), scale](int64_t i) -> double {
    const Philox4 words = Philox(key, i);
    const double radius = std::sqrt(-2 * std::log(OpenUniform(words[0])));
    const double normal = radius * std::cos(2 * std::numbers::pi * OpenUniform(words[1]));
    return static_cast<float>(scale * normal);
  });
}

HostArray RandomUniform(uint64_t seed, const std::string& name, const Shape& shape, double low,
                        double high) {
  return Filled(shape, false, [key = KeyOf(seed, name), low, high](int64_t i) -> double {
    return static_cast<float>(low + (high - low) * OpenUniform(Philox(key, i)[0]));
  });
}

HostArray RandomInts(uint64_t seed, const std::string& name, const Shape& shape, int64_t low,
                     int64_t high) {
  CHECK_LT(low, high);
  return Filled(shape, true, [key = KeyOf(seed, name), low, high](int64_t i) {
    const double u = OpenUniform(Philox(key, i)[0]);
    return static_cast<double>(low + static_cast<int64_t>(u * (high - low)));
  });
}

HostArray IntArray(const std::vector<int64_t>& values) {
  return {.shape = {static_cast<int64_t>(values.size())},
          .values = {values.begin(), values.end()},
          .integer = true};
}

}  // namespace lt2
