#include "kernels/init.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <span>

#include "core/hash.h"
#include "core/philox.h"
#include "kernels/cut_normals.h"

namespace lt2 {
namespace {

double NormalCdf(double x) { return std::erfc(-x / std::numbers::sqrt2) / 2; }

double FromUniform(const Init& init, double u, int64_t index) {
  switch (init.kind) {
    case Init::Kind::kZeros:
      return 0;
    case Init::Kind::kOnes:
      return 1;
    case Init::Kind::kTruncatedNormal:
      return init.a * CutNormalQuantile(u);
    case Init::Kind::kUniform:
      return init.a + (init.b - init.a) * u;
    case Init::Kind::kLogUniform:
      return std::log(init.a + (init.b - init.a) * u);
    case Init::Kind::kInverseSoftplusLogUniform: {
      const double dt = std::exp(std::log(init.a) + (std::log(init.b) - std::log(init.a)) * u);
      return dt + std::log(-std::expm1(-dt));
    }
    case Init::Kind::kLinear:
      return init.a + init.b * static_cast<double>(index);
  }
  CHECK(false) << "unknown init kind " << static_cast<int>(init.kind);
  return 0;
}

// FromUniform, rounded. A float of a normal number is the table's where all numbers near it round
// to the same.
template <class T>
T FromWord(const Init& init, const CutNormals* table, uint32_t word, int64_t index) {
  if (table != nullptr) {
    const double x = table->At(word);
    const T low = static_cast<T>(init.a * (x - CutNormals::kOff));
    if (low == static_cast<T>(init.a * (x + CutNormals::kOff))) return low;
  }
  return static_cast<T>(FromUniform(init, OpenUniform(word), index));
}

// Elements [begin, begin + row.size()) of the logical tensor.
template <class T>
void FillRow(const Init& init, uint64_t seed, uint64_t name_hash, int64_t begin, std::span<T> row) {
  const bool fast = std::is_same_v<T, float> && init.kind == Init::Kind::kTruncatedNormal;
  const CutNormals* const table = fast ? &CutNormals::Get() : nullptr;
  const int64_t end = begin + static_cast<int64_t>(row.size());
  for (int64_t index = begin; index < end;) {
    const Philox4 words = Philox(seed, static_cast<uint64_t>(index / 4), name_hash);
    for (const int64_t next = std::min(end, (index / 4 + 1) * 4); index < next; ++index) {
      row[index - begin] = FromWord<T>(init, table, words[index % 4], index);
    }
  }
}

}  // namespace

// A rational first guess (Abramowitz & Stegun 26.2.23, off by at most 4.5e-4), then two of Halley's
// steps on Phi(x) - p, each of which cubes the error.
double NormalQuantile(double p) {
  const double tail = std::min(p, 1 - p), t = std::sqrt(-2 * std::log(tail));
  const double guess = t - (2.515517 + t * (0.802853 + t * 0.010328)) /
                               (1 + t * (1.432788 + t * (0.189269 + t * 0.001308)));
  double x = p < 0.5 ? -guess : guess;
  for (int step = 0; step < 2; ++step) {
    const double density = std::exp(-x * x / 2) / std::sqrt(2 * std::numbers::pi);
    const double newton = (NormalCdf(x) - p) / density;
    x -= newton / (1 + x * newton / 2);
  }
  return x;
}

double InitialValue(const Init& init, uint64_t seed, uint64_t name_hash, int64_t index) {
  const Philox4 words = Philox(seed, static_cast<uint64_t>(index / 4), name_hash);
  return FromUniform(init, OpenUniform(words[index % 4]), index);
}

void InitTensor(const ParamSpec& spec, const Box& box, uint64_t seed, const Tensor& value) {
  CHECK_EQ(value.shape(), box.extent) << spec.name;
  CHECK_EQ(box.extent.rank(), spec.shape.rank()) << spec.name;
  if (value.device().backend == Backend::kMeta || box.empty()) return;
  CHECK(value.on_host()) << spec.name;
  const int rank = spec.shape.rank();
  const int64_t columns = rank > 0 ? box.extent.back() : 1, rows = box.size() / columns;
  const uint64_t name_hash = Hash64(spec.name);
  DispatchFloat(value.dtype(), [&]<class T>() {
#pragma omp parallel for schedule(static) if (box.size() > 4096)
    for (int64_t row = 0; row < rows; ++row) {
      // The row's first element in the logical tensor.
      int64_t index = rank > 0 ? box.begin[rank - 1] : 0, left = row;
      int64_t stride = rank > 0 ? spec.shape.back() : 1;
      for (int i = rank - 2; i >= 0; --i) {
        index += (box.begin[i] + left % box.extent[i]) * stride;
        left /= box.extent[i];
        stride *= spec.shape[i];
      }
      FillRow(spec.init, seed, name_hash, index, value.span<T>().subspan(row * columns, columns));
    }
  });
}

void InitParam(const Param& param, uint64_t seed) {
  const Tensor& value = param.master;
  const Tensor on_host =
      value.on_gpu() ? Tensor::Empty(value.shape(), value.dtype(), {Backend::kCpu}) : value;
  InitTensor(param.spec, param.held, seed, on_host);
  if (value.on_gpu()) value.CopyFrom(on_host);
}

}  // namespace lt2
