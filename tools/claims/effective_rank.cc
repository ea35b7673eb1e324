#include "tools/claims/effective_rank.h"

#include <algorithm>
#include <cmath>

namespace lt2 {
namespace {

using Matrix = std::vector<double>;  // K × K, row-major

Matrix Product(const Matrix& a, const Matrix& b, int64_t n) {
  Matrix c(n * n, 0.0);
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t k = 0; k < n; ++k) {
      for (int64_t j = 0; j < n; ++j) c[i * n + j] += a[i * n + k] * b[k * n + j];
    }
  }
  return c;
}

// From the second half of the channels to the first: [n / 2, n − n / 2].
std::vector<double> CouplingBlock(const Matrix& a, int64_t n) {
  std::vector<double> block;
  for (int64_t i = 0; i < n / 2; ++i) {
    for (int64_t j = n / 2; j < n; ++j) block.push_back(a[i * n + j]);
  }
  return block;
}

// The direction of the first half of the key of one transition: the largest column of its block.
std::vector<double> KeyDirection(const Matrix& a, int64_t n) {
  std::vector<double> best(n / 2, 0.0);
  double largest = 0;
  for (int64_t j = n / 2; j < n; ++j) {
    double norm = 0;
    for (int64_t i = 0; i < n / 2; ++i) norm += a[i * n + j] * a[i * n + j];
    if (norm <= largest) continue;
    largest = norm;
    for (int64_t i = 0; i < n / 2; ++i) best[i] = a[i * n + j] / std::sqrt(norm);
  }
  return best;
}

// The rounding of a diagonal transition's other elements.
constexpr double kVanishes = 1e-12;

void AddRank(const Matrix& product, int64_t n, RankRow& row) {
  const std::vector<double> values = SingularValues(CouplingBlock(product, n), n / 2, n - n / 2);
  double largest_element = 0;
  for (double x : product) largest_element = std::max(largest_element, std::abs(x));
  if (values[0] <= kVanishes * largest_element) return;
  double sum = 0, entropy = 0;
  for (double s : values) sum += s;
  for (double s : values) {
    row.rank += s > 1e-9 * values[0];
    row.rank_1_pct += s > 1e-2 * values[0];
    if (s > 0) entropy -= s / sum * std::log(s / sum);
  }
  row.effective += std::exp(entropy);
}

std::vector<MixerState> Copy(const std::vector<MixerState>& states) {
  std::vector<MixerState> copy;
  for (const MixerState& state : states) {
    copy.emplace_back();
    for (const Tensor& tensor : state) copy.back().push_back(tensor.Clone());
  }
  return copy;
}

// A decoder of one text in `batch` equal sequences.
struct Prober {
  Prober(LanguageModel& the_model, int64_t the_batch, int64_t tokens)
      : model(the_model),
        batch(the_batch),
        states(model.MakeStates(batch, tokens, DType::kF64, {Backend::kCpu})) {}

  void Step(int32_t id, int64_t position, std::vector<MixerState>& from) {
    const auto all = [&](int64_t x) {
      return Tensor::FromHost(std::vector<int32_t>(batch, static_cast<int32_t>(x)), {batch},
                              stream.device);
    };
    model.Step(stream, all(id), {.positions_B = all(position), .lengths_B = all(position + 1)},
               from);
  }

  // Of every head, for the state of one (loop, layer): sequence 0 starts from nothing, sequence
  // 1 + j from units on the channels j·V ….
  std::vector<Matrix> Transitions(int32_t id, int64_t position, size_t place) {
    std::vector<MixerState> from = Copy(states);
    const Tensor s = from[place][0];
    const int64_t heads = s.dim(1), n = s.dim(2), v = s.dim(3);
    double* x = s.data<double>();
    const auto at = [&](int64_t b, int64_t h, int64_t k, int64_t c) {
      return ((b * heads + h) * n + k) * v + c;
    };
    s.Zero();
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t k = 0; k < n; ++k) x[at(1 + k / v, h, k, k % v)] = 1;
    }
    Step(id, position, from);
    std::vector<Matrix> out(heads, Matrix(n * n));
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t i = 0; i < n; ++i) {
        for (int64_t k = 0; k < n; ++k) {
          out[h][i * n + k] = x[at(1 + k / v, h, i, k % v)] - x[at(0, h, i, k % v)];
        }
      }
    }
    return out;
  }

  LanguageModel& model;
  const int64_t batch;
  Stream stream{.device = {Backend::kCpu}};
  std::vector<MixerState> states;
};

}  // namespace

std::vector<double> SingularValues(std::vector<double> a, int64_t rows, int64_t columns) {
  // One-sided Jacobi: rotates pairs of columns until all are orthogonal.
  const auto dot = [&](int64_t p, int64_t q) {
    double sum = 0;
    for (int64_t i = 0; i < rows; ++i) sum += a[i * columns + p] * a[i * columns + q];
    return sum;
  };
  bool turned = true;
  for (int sweep = 0; sweep < 60 && turned; ++sweep) {
    turned = false;
    for (int64_t p = 0; p < columns; ++p) {
      for (int64_t q = p + 1; q < columns; ++q) {
        const double pp = dot(p, p), qq = dot(q, q), pq = dot(p, q);
        if (std::abs(pq) <= 1e-15 * std::sqrt(pp * qq)) continue;
        turned = true;
        const double zeta = (qq - pp) / (2 * pq);
        const double t = std::copysign(1 / (std::abs(zeta) + std::sqrt(1 + zeta * zeta)), zeta);
        const double c = 1 / std::sqrt(1 + t * t), s = c * t;
        for (int64_t i = 0; i < rows; ++i) {
          double &x = a[i * columns + p], &y = a[i * columns + q];
          const double old = x;
          x = c * old - s * y;
          y = s * old + c * y;
        }
      }
    }
  }
  std::vector<double> values;
  for (int64_t p = 0; p < columns; ++p) values.push_back(std::sqrt(dot(p, p)));
  std::sort(values.rbegin(), values.rend());
  return values;
}

std::vector<RankRow> MeasureRank(LanguageModel& model, std::span<const int32_t> ids, int64_t skip) {
  const size_t layers = model.config().layers, loops = model.config().loops;
  int64_t batch = 2;
  for (const MixerState& state : model.MakeStates(1, 1, DType::kF64, {Backend::kCpu})) {
    CHECK_EQ(state[0].shape().rank(), 4) << "a mixer without a state [B, heads, K, V]";
    batch = std::max(batch, 1 + (state[0].dim(2) + state[0].dim(3) - 1) / state[0].dim(3));
  }
  Prober prober(model, batch, static_cast<int64_t>(ids.size()));
  std::vector<RankRow> rows(loops);
  double heads_seen = 0;
  for (int64_t t = 0; t < static_cast<int64_t>(ids.size()); ++t) {
    for (size_t layer = 0; t >= skip && layer < layers; ++layer) {
      const int64_t n = prober.states[layer][0].dim(2);
      std::vector<Matrix> product, before;
      for (size_t loop = 0; loop < loops; ++loop) {
        const std::vector<Matrix> a = prober.Transitions(ids[t], t, loop * layers + layer);
        for (size_t h = 0; h < a.size(); ++h) {
          if (loop == 0) {
            product.push_back(a[h]);
          } else {
            product[h] = Product(a[h], product[h], n);
            const std::vector<double> x = KeyDirection(a[h], n), y = KeyDirection(before[h], n);
            double cosine = 0;
            for (size_t i = 0; i < x.size(); ++i) cosine += x[i] * y[i];
            rows[loop].overlap += std::abs(cosine);
          }
          AddRank(product[h], n, rows[loop]);
        }
        before = a;
      }
      heads_seen += static_cast<double>(before.size());
    }
    prober.Step(ids[t], t, prober.states);
  }
  for (size_t loop = 0; loop < loops; ++loop) {
    RankRow& row = rows[loop];
    row.loops = static_cast<int64_t>(loop) + 1;
    for (double* mean : {&row.rank, &row.rank_1_pct, &row.effective, &row.overlap}) {
      *mean /= heads_seen;
    }
  }
  return rows;
}

}  // namespace lt2
