#include "kernels/lightning_indexer.h"

#include <vector>

#include "kernels/cpu/blocks.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/select_top.h"
#include "kernels/index_score.h"

namespace lt2::cpu {
namespace {

constexpr int kLanes = 16;           // keys scored at a time
constexpr int64_t kQueryBlock = 16;  // queries a thread takes at a time

int64_t Tiles(int64_t keys) { return (keys + kLanes - 1) / kLanes; }

// Rows of k as tiles [tile, D, kLanes], zeros behind the last.
template <class T>
void PackTile(const T* k, int64_t keys, int64_t D, int64_t tile, double* packed) {
  double* to = packed + tile * D * kLanes;
  for (int64_t d = 0; d < D; ++d) {
    for (int64_t i = 0; i < kLanes; ++i, ++to) {
      const int64_t s = tile * kLanes + i;
      *to = s < keys ? static_cast<double>(k[s * D + d]) : 0;
    }
  }
}

// A query and the keys [begin, end) of the packed ones that it sees.
template <class T>
void ChooseKeys(const T* q_HD, const T* w_H, int64_t H, int64_t D, const double* packed,
                int64_t begin, int64_t end, int64_t S, double* row, double* work, double* r,
                int32_t* keys) {
  const int64_t first = begin / kLanes;
  if (end - begin > S) {
    for (int64_t tile = first; tile < Tiles(end); ++tile) {
      IndexScores<kLanes>(q_HD, w_H, H, D, packed + tile * D * kLanes, r,
                          row + (tile - first) * kLanes);
    }
  }
  SelectTop(row + begin - first * kLanes, end - begin, S, work, keys);
}

template <class T>
void Forward(const LightningIndexerArgs& args) {
  const int64_t N = args.q_NHD.dim(0), H = args.q_NHD.dim(1), D = args.q_NHD.dim(2);
  const int64_t S = args.keys_NS.dim(1), query_begin = args.documents.query_begin();
  const int64_t key_end = args.documents.query_end(), tiles = Tiles(key_end);
  const T *q = args.q_NHD.data<T>(), *k = args.k_ND.data<T>(), *w = DataOrNull<T>(args.w_NH);
  const int32_t* positions = args.documents.positions().data<int32_t>() + query_begin;
  thread_local std::vector<double> memory;
  memory.resize(tiles * D * kLanes);
  double* packed = memory.data();
  ForEachBlock(tiles, 8, key_end * D, [=](int64_t, int64_t begin, int64_t end) {
    for (int64_t tile = begin; tile < end; ++tile) PackTile(k, key_end, D, tile, packed);
  });
  const int64_t blocks = (N + kQueryBlock - 1) / kQueryBlock;
#pragma omp parallel for schedule(dynamic)
  for (int64_t block = 0; block < blocks; ++block) {
    Scratch& scratch = Scratch::Restart();
    double* row = scratch.Take<double>((tiles + 1) * kLanes);
    double* work = scratch.Take<double>(key_end);
    double* r = scratch.Take<double>(H * kLanes);
    const int64_t end = std::min(N, (block + 1) * kQueryBlock);
    for (int64_t i = block * kQueryBlock; i < end; ++i) {
      const int64_t token = query_begin + i;
      ChooseKeys(q + i * H * D, w ? w + i * H : nullptr, H, D, packed, token - positions[i],
                 token + 1, S, row, work, r, args.keys_NS.data<int32_t>() + i * S);
    }
  }
}

template <class T>
void Step(const LightningIndexerStepArgs& args) {
  const int64_t B = args.q_BHD.dim(0), H = args.q_BHD.dim(1), D = args.q_BHD.dim(2);
  const int64_t S = args.keys_BS.dim(1), C = args.k_BCD.dim(1);
  const T *q = args.q_BHD.data<T>(), *k = args.k_BCD.data<T>(), *w = DataOrNull<T>(args.w_BH);
  const int32_t* lengths = args.lengths_B.data<int32_t>();
#pragma omp parallel for schedule(dynamic) if (B * C * H * D > kThreadingPays)
  for (int64_t b = 0; b < B; ++b) {
    const int64_t length = lengths[b];
    CHECK(length >= 0 && length <= C) << "length " << length << " of capacity " << C;
    Scratch& scratch = Scratch::Restart();
    double* packed = scratch.Take<double>(Tiles(C) * D * kLanes);
    double* row = scratch.Take<double>(Tiles(C) * kLanes);
    double* work = scratch.Take<double>(C);
    double* r = scratch.Take<double>(H * kLanes);
    for (int64_t tile = 0; tile < Tiles(length); ++tile) {
      PackTile(k + b * C * D, length, D, tile, packed);
    }
    ChooseKeys(q + b * H * D, w ? w + b * H : nullptr, H, D, packed, 0, length, S, row, work, r,
               args.keys_BS.data<int32_t>() + b * S);
  }
}

}  // namespace

void LightningIndexer(Stream&, const LightningIndexerArgs& args) {
  DispatchFloat(args.q_NHD.dtype(), [&]<class T>() { Forward<T>(args); });
}

void LightningIndexerStep(Stream&, const LightningIndexerStepArgs& args) {
  DispatchFloat(args.q_BHD.dtype(), [&]<class T>() { Step<T>(args); });
}

}  // namespace lt2::cpu
