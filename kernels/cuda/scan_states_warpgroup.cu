// The state lies transposed in the registers of one warpgroup, 64 value columns by the key's
// width, and its bf16 copy there is an operand as it is. Both directions are one pass over chunks,
//
//   u = u_0 + first S (delta rule)
//   S <- decay ⊙ S + last^T u + extra^T y (the last of the delta rule's reverse)
//
//   forward   first = W          last = k_write
//   reverse   first = k_write    last = W          extra = q_read    y = dO
//
// where the additive scans have u = V and last = k_write, or u = dO and last = q_read. One thread
// asks for the chunks' operands as far ahead as shared memory allows; three warps take what the
// pass leaves, the state before each chunk and u, from shared memory to the GPU's.
#include "kernels/cuda/scan_state_slice.cuh"
#include "kernels/cuda/scan_states_warpgroup.h"
#include "kernels/cuda/tensor_map.h"

namespace lt2::cuda {
namespace {

// By the warpgroup that has the state.
template <class P>
__device__ void PassChunks(const StatePass& pass, const PassMemory<P>& shared,
                           const PassOrder<P>& order, StateSlice<P>& state) {
  Ring<P::kStages> ring = shared.Stages();
  for (int i = 0; i < order.count(); ++i, ring.Next()) {
    const int rows = order.Place(i).rows, stage = ring.place;
    const float* decay = reinterpret_cast<const float*>(shared.memory + shared.DecayAt(stage));
    const auto publish = [&](const PassFragments<P::kSteps>& rounded) {
      if (pass.states_CGKV == nullptr) return;
      shared.OfState().WaitEmpty(i);
      rounded.Store(shared.base + P::kStateAt);
      shared.OfState().Filled();
    };
    PassFragments<4> u, y;
    if constexpr (P::kDelta) {
      const PassFragments<P::kSteps> rounded = state.Rounded();
      float change[32];
      ring.WaitFull();
      // Between the products, the compiler would have the second wait for the first.
      if constexpr (P::kExtra) state.Decay(decay);
      BeginProducts();
      QueueRead<P>(change, rounded, shared.First(stage));
      CommitProducts();
      if constexpr (!P::kExtra) state.Decay(decay);
      if constexpr (P::kExtra) {
        y.Load(shared.Y(stage));
        y.Keep(rows);
        BeginProducts();
        QueueWrite<P>(state, y, shared.Extra(stage));
        CommitProducts();
      }
      publish(rounded);
      u.Load(shared.Values(stage));
      WaitForProducts<P::kExtra ? 1 : 0>();
      Settle(change);
#pragma unroll
      for (int s = 0; s < 4; ++s) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const float* pair = change + 8 * s + 2 * j;
          u.of[s][j] = Pack(LowerHalf(u.of[s][j]) + pair[0], UpperHalf(u.of[s][j]) + pair[1]);
        }
      }
      u.Keep(rows);
    } else {
      publish(state.Rounded());
      ring.WaitFull();
      state.Decay(decay);
      u.Load(shared.Values(stage));
      u.Keep(rows);
    }
    BeginProducts();
    QueueWrite<P>(state, u, shared.Last(stage));
    CommitProducts();
    if constexpr (P::kDelta) {
      shared.OfU().WaitEmpty(i);
      u.Store(shared.base + P::kUAt);
      shared.OfU().Filled();
    }
    WaitForProducts<0>();
    Settle(state);
    ring.Release(stage);
  }
}

template <class P>
__global__ void __launch_bounds__(kPassThreads, 1)
    StatesWarpgroupKernel(const __grid_constant__ StatePass pass) {
  const ScanShape& n = pass.shape;
  const int begin = blockIdx.x * kPanelColumns, head = blockIdx.y;
  const int document = n.Document(blockIdx.z);
  const PassOrder<P> order{.chunks = ChunksOf(n, document), .head = head, .heads = n.heads};
  const int64_t size = int64_t{n.k} * n.v;
  float* to = pass.to.At(n, document, head, size);
  const bool writes = to != nullptr && (order.count() > 0 || !pass.accumulate);
  if (order.count() == 0 && !writes) return;
  const PassMemory<P> shared;
  shared.Begin(PaddedWidth(n.k));
  if (WarpgroupIndex() > 0) {
    const int warp = threadIdx.x / 32;
    if (warp >= kFirstStoreWarp) {
      StoreChunks(pass, shared, order, begin);
    } else if (threadIdx.x == 32 * kCopyWarp) {
      CopyChunks(pass, shared, order, begin);
    }
    return;
  }
  StateSlice<P> state = {};
  const float* from = pass.from.At(n, document, head, size);
  if (from != nullptr && order.count() > 0) state.Load(from, n.k, n.v, begin);
  PassChunks(pass, shared, order, state);
  if (writes) state.Store(to, n.k, n.v, begin, pass.accumulate);
}

// What the maps need of a pass besides its own.
struct Sources {
  const bf16 *first, *last, *extra, *values, *y;
};

template <class P>
void Run(const Stream& stream, const char* name, StatePass pass, const Sources& from) {
  const ScanShape& n = pass.shape;
  const int64_t items = int64_t{(n.tokens + kPanel - 1) / kPanel + n.documents} * n.heads;
  const auto operand = [&](const bf16* data) {
    return MatrixMap(data, items * kPanel, PaddedWidth(n.k), kPanel, P::kColumns);
  };
  const auto values = [&](const bf16* data) {
    return PanelMap(data, n.tokens, n.heads, n.v, kPanel);
  };
  pass.last = operand(from.last);
  pass.values = values(from.values);
  if constexpr (P::kDelta) pass.first = operand(from.first);
  if constexpr (P::kExtra) {
    pass.extra = operand(from.extra);
    pass.y = values(from.y);
  }
  const dim3 grid(PanelsOf(n.v), n.heads, n.Count());
  const auto kernel = StatesWarpgroupKernel<P>;
  AllowShared(kernel, P::kSharedBytes);
  kernel<<<grid, kPassThreads, P::kSharedBytes, Handle(stream)>>>(pass);
  CheckLaunch(name);
}

template <bool kDelta, bool kReverse>
bool RunOrNot(const Stream& stream, const char* name, const StatePass& pass,
              const ValueRows<bf16>& values, const Sources& from) {
  const ScanShape& n = pass.shape;
  const auto in_pieces = [](const void* data) {
    return reinterpret_cast<uintptr_t>(data) % 16 == 0;
  };
  if (!HasHopper() || n.k > (kDelta ? 128 : 256) || n.v % 8 != 0 || n.width != n.v ||
      values.widened || values.scale != nullptr || values.x_NGV == nullptr ||
      !in_pieces(values.x_NGV) || !in_pieces(pass.u_NGV) || !in_pieces(pass.states_CGKV)) {
    return false;
  }
  const auto run = [&]<int kWidth>() {
    Run<PassShape<kWidth, kDelta, kReverse>>(stream, name, pass, from);
    return true;
  };
  if (n.k <= 64) return run.template operator()<64>();
  if (n.k <= 96) return run.template operator()<96>();
  if (n.k <= 128) return run.template operator()<128>();
  if constexpr (!kDelta) {
    if (n.k <= 192) return run.template operator()<192>();
    return run.template operator()<256>();
  }
  return false;
}

}  // namespace

bool WarpgroupForwardStates(const Stream& stream, const char* name, const ForwardStates<bf16>& data,
                            bool delta) {
  const ScanOperands<bf16>& operands = data.operands;
  const StatePass pass{.shape = data.shape,
                       .decay = operands.decay,
                       .from = data.initial,
                       .to = data.final,
                       .accumulate = false,
                       .states_CGKV = data.states_CGKV,
                       .u_NGV = data.u_NGV};
  const Sources from{.first = operands.w, .last = operands.k_write, .values = data.values.x_NGV};
  const auto run = delta ? RunOrNot<true, false> : RunOrNot<false, false>;
  return run(stream, name, pass, data.values, from);
}

bool WarpgroupReverseStates(const Stream& stream, const char* name, const ReverseStates<bf16>& data,
                            bool delta) {
  const ScanOperands<bf16>& operands = data.operands;
  const StatePass pass{.shape = data.shape,
                       .decay = operands.decay,
                       .from = data.dfinal,
                       .to = data.dinitial,
                       .accumulate = data.accumulate,
                       .states_CGKV = data.dstates_CGKV,
                       .u_NGV = data.du_NGV};
  const bf16* d_o = data.d_o.x_NGV;
  const Sources from =
      delta ? Sources{operands.k_write, operands.w, operands.q_read, data.du_NGV, d_o}
            : Sources{.last = operands.q_read, .values = d_o};
  const auto run = delta ? RunOrNot<true, true> : RunOrNot<false, true>;
  return run(stream, name, pass, data.d_o, from);
}

}  // namespace lt2::cuda
