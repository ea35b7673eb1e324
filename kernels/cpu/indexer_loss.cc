#include "kernels/indexer_loss.h"

#include "kernels/cpu/blocks.h"
#include "kernels/cpu/indexer_row.h"

namespace lt2::cpu {
namespace {

constexpr int64_t kTokenBlock = 8;  // tokens a thread takes at a time

// fn(begin, end) for blocks of tokens; every token is written by one block.
template <class Fn>
void ForEachTokenBlock(int64_t tokens, const Fn& fn) {
#pragma omp parallel for schedule(dynamic)
  for (int64_t begin = 0; begin < tokens; begin += kTokenBlock) {
    fn(begin, std::min(tokens, begin + kTokenBlock));
  }
}

template <class T>
void WriteTargets(const IndexerLossForwardArgs& args) {
  const int64_t S = args.p_MS.dim(1);
  ForEachTokenBlock(args.a_NJC.dim(0), [&](int64_t begin, int64_t end) {
    IndexerRow<T> row(args.a_NJC, args.b_NC, args.w_NJ, args.target);
    for (int64_t t = begin; t < end; ++t) {
      row.Load(t);
      T* p = args.p_MS.data<T>() + t * S;
      for (int64_t i = 0; i < S; ++i) p[i] = i < row.count() ? static_cast<T>(row.p(i)) : T(0);
    }
  });
}

template <class T>
void Forward(const IndexerLossForwardArgs& args) {
  if (args.p_MS.defined()) return WriteTargets<T>(args);
  const int64_t N = args.a_NJC.dim(0);
  double* kl_N = args.kl_N.data<double>();
  ForEachTokenBlock(N, [&](int64_t begin, int64_t end) {
    IndexerRow<T> row(args.a_NJC, args.b_NC, args.w_NJ, args.target);
    for (int64_t t = begin; t < end; ++t) {
      row.Load(t);
      double kl = 0;
      for (int64_t i = 0; i < row.count(); ++i) {
        if (row.p(i) > 0) kl += row.p(i) * (std::log(row.p(i)) - row.log_prediction(i));
      }
      kl_N[t] = kl;
    }
  });
  double sum = 0;
  for (int64_t t = 0; t < N; ++t) sum += kl_N[t];
  args.loss.data<double>()[0] = args.weight * sum;
}

// dI, and the gradients of the token's own: da and dw.
template <class T>
void BackwardToken(const IndexerLossBackwardArgs& args, const IndexerRow<T>& row, int64_t t,
                   double* sum_C, T* line_C) {
  const int64_t J = args.a_NJC.dim(1), C = args.a_NJC.dim(2), S = args.target.keys_NS.dim(1);
  const double factor = args.dloss.data<double>()[0] * args.weight;
  T* dscore = args.dscore_NS.data<T>() + t * S;
  for (int64_t i = 0; i < row.count(); ++i) {
    dscore[i] = static_cast<T>(factor * (std::exp(row.log_prediction(i)) - row.p(i)));
  }
  for (int64_t j = 0; j < J; ++j) {
    const double w = args.w_NJ.data<T>()[t * J + j];
    double dw = 0;
    std::fill(sum_C, sum_C + C, 0.0);
    for (int64_t i = 0; i < row.count(); ++i) {
      const double r = row.r(j, i);
      if (r <= 0) continue;
      dw += dscore[i] * r;
      const double dr = dscore[i] * w;
      const T* b = args.b_NC.data<T>() + row.key(i) * C;
#pragma omp simd
      for (int64_t c = 0; c < C; ++c) sum_C[c] += dr * b[c];
    }
    const T dw_j = static_cast<T>(dw);
    for (int64_t c = 0; c < C; ++c) line_C[c] = static_cast<T>(sum_C[c]);
    Store(args.dw_NJ.defined() ? args.dw_NJ.data<T>() + t * J + j : nullptr, &dw_j, 1,
          args.accumulate_dw);
    Store(args.da_NJC.defined() ? args.da_NJC.data<T>() + (t * J + j) * C : nullptr, line_C, C,
          args.accumulate_da);
  }
}

// Which places t S + i of the lists name key s: entries [offsets[s], offsets[s + 1]), queries t
// ascending.
struct Readers {
  int32_t *offsets, *entries;
};

Readers SortByKey(const IndexerTarget& target, const Tensor& memory) {
  const int64_t M = target.keys_NS.dim(0), S = target.keys_NS.dim(1), N = target.k_NGD.dim(0);
  const int64_t query_begin = target.documents.query_begin();
  const int32_t* keys = target.keys_NS.data<int32_t>();
  const int32_t* positions = target.documents.positions().data<int32_t>() + query_begin;
  int32_t* offsets = memory.data<int32_t>();
  int32_t* entries = offsets + N + 1;
  std::fill(offsets, offsets + N + 1, 0);
  const auto for_each = [&](const auto& fn) {
    for (int64_t t = 0; t < M; ++t) {
      for (int64_t i = 0; i < S && keys[t * S + i] >= 0; ++i) {
        fn(query_begin + t - positions[t] + keys[t * S + i], static_cast<int32_t>(t * S + i));
      }
    }
  };
  // offsets[s + 1] counts, then is where s begins and moves on, and ends as where s + 1 begins.
  for_each([&](int64_t s, int32_t) { ++offsets[s + 1]; });
  int32_t begin = 0;
  for (int64_t s = 0; s < N; ++s) begin += std::exchange(offsets[s + 1], begin);
  for_each([&](int64_t s, int32_t entry) { entries[offsets[s + 1]++] = entry; });
  return {offsets, entries};
}

// db of one key, from all that list it.
template <class T>
void BackwardKey(const IndexerLossBackwardArgs& args, const Readers& readers, int64_t s,
                 double* sum_C, T* line_C) {
  const int64_t J = args.a_NJC.dim(1), C = args.a_NJC.dim(2), S = args.target.keys_NS.dim(1);
  const T* b = args.b_NC.data<T>() + s * C;
  std::fill(sum_C, sum_C + C, 0.0);
  for (int32_t e = readers.offsets[s]; e < readers.offsets[s + 1]; ++e) {
    const int64_t entry = readers.entries[e], t = entry / S;
    const double dscore = args.dscore_NS.data<T>()[entry];
    for (int64_t j = 0; j < J; ++j) {
      const T* a = args.a_NJC.data<T>() + (t * J + j) * C;
      double r = 0;
#pragma omp simd reduction(+ : r)
      for (int64_t c = 0; c < C; ++c) r += static_cast<double>(a[c]) * b[c];
      if (r <= 0) continue;
      const double dr = dscore * args.w_NJ.data<T>()[t * J + j];
#pragma omp simd
      for (int64_t c = 0; c < C; ++c) sum_C[c] += dr * a[c];
    }
  }
  for (int64_t c = 0; c < C; ++c) line_C[c] = static_cast<T>(sum_C[c]);
  Store(args.db_NC.data<T>() + s * C, line_C, C, args.accumulate_db);
}

template <class T>
void Backward(const IndexerLossBackwardArgs& args) {
  const int64_t C = args.a_NJC.dim(2);
  ForEachTokenBlock(args.a_NJC.dim(0), [&](int64_t begin, int64_t end) {
    IndexerRow<T> row(args.a_NJC, args.b_NC, args.w_NJ, args.target);
    std::vector<double> sum(C);
    std::vector<T> line(C);
    for (int64_t t = begin; t < end; ++t) {
      row.Load(t);
      BackwardToken(args, row, t, sum.data(), line.data());
    }
  });
  if (!args.db_NC.defined()) return;
  const Readers readers = SortByKey(args.target, args.readers);
  ForEachTokenBlock(args.b_NC.dim(0), [&](int64_t begin, int64_t end) {
    std::vector<double> sum(C);
    std::vector<T> line(C);
    for (int64_t s = begin; s < end; ++s) BackwardKey(args, readers, s, sum.data(), line.data());
  });
}

}  // namespace

void IndexerLossForward(Stream&, const IndexerLossForwardArgs& args) {
  DispatchFloat(args.a_NJC.dtype(), [&]<class T>() { Forward<T>(args); });
}

void IndexerLossBackward(Stream&, const IndexerLossBackwardArgs& args) {
  DispatchFloat(args.a_NJC.dtype(), [&]<class T>() { Backward<T>(args); });
}

}  // namespace lt2::cpu
