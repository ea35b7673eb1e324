#include "kernels/select_blocks.h"

#include "kernels/block_mean.h"
#include "kernels/choose_blocks.h"

namespace lt2::cpu {
namespace {

// Queries of one thread's turn.
constexpr int64_t kQueries = 16;

template <class T>
void Forward(const SelectBlocksForwardArgs& args) {
  const int64_t N = args.q_NHD.dim(0), H = args.q_NHD.dim(1), D = args.q_NHD.dim(2);
  const int64_t G = args.k_CGD.dim(1), heads = H / G, S = args.options.selected;
  const int64_t query_begin = args.documents.query_begin();
  const int32_t* positions = args.documents.positions().data<int32_t>() + query_begin;
#pragma omp parallel for collapse(2) schedule(dynamic)
  for (int64_t first = 0; first < N; first += kQueries) {
    for (int64_t g = 0; g < G; ++g) {
      for (int64_t i = first; i < std::min(N, first + kQueries); ++i) {
        const int64_t row = BlockRow(query_begin + i - positions[i], args.options.block);
        ChooseBlocks<T>({.q = args.q_NHD.data<T>() + (i * H + g * heads) * D,
                         .k = args.k_CGD.data<T>() + (row * G + g) * D,
                         .heads = heads,
                         .D = D,
                         .stride = G * D,
                         .position = positions[i]},
                        args.options, args.blocks_NGS.data<int32_t>() + (i * G + g) * S);
      }
    }
  }
}

template <class T>
void Step(const SelectBlocksStepArgs& args) {
  const int64_t B = args.q_BHD.dim(0), H = args.q_BHD.dim(1), D = args.q_BHD.dim(2);
  const int64_t R = args.k_BRGD.dim(1), G = args.k_BRGD.dim(2), S = args.options.selected;
#pragma omp parallel for collapse(2) schedule(static)
  for (int64_t b = 0; b < B; ++b) {
    for (int64_t g = 0; g < G; ++g) {
      const int64_t length = args.lengths_B.data<int32_t>()[b];
      CHECK(length >= 1 && length / args.options.block <= R) << "length " << length;
      ChooseBlocks<T>({.q = args.q_BHD.data<T>() + (b * H + g * (H / G)) * D,
                       .k = args.k_BRGD.data<T>() + (b * R * G + g) * D,
                       .heads = H / G,
                       .D = D,
                       .stride = G * D,
                       .position = length - 1},
                      args.options, args.blocks_BGS.data<int32_t>() + (b * G + g) * S);
    }
  }
}

}  // namespace

void SelectBlocksForward(Stream&, const SelectBlocksForwardArgs& args) {
  DispatchFloat(args.q_NHD.dtype(), [&]<class T>() { Forward<T>(args); });
}

void SelectBlocksStep(Stream&, const SelectBlocksStepArgs& args) {
  DispatchFloat(args.q_BHD.dtype(), [&]<class T>() { Step<T>(args); });
}

}  // namespace lt2::cpu
