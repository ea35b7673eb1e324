// The passes over the chunks of a document, one after the other: what the scans cannot do for all
// chunks at once. A block has 64 value columns of one head of one document, and the state's in its
// registers.
//
//   forward   u = u_0 + W S (delta rule), S <- decay ⊙ S + k_write^T u
//   reverse   dU = dU_0 + k_write dS (delta rule), dS <- decay ⊙ dS + q_read^T dO + W^T dU
//
// S before each chunk, and dS after it, are left for the kernels that see all chunks at once. The
// operands of a chunk and head are [64, padded K].
#pragma once

#include "kernels/cuda/scan_operands.cuh"
#include "kernels/cuda/scan_states_warpgroup.h"

namespace lt2::cuda {

// Panels of an operand's rows, without waiting.
template <class T, int kPanels>
__device__ inline void FetchOperand(T* panels, const T* rows, int k) {
  const int padded = PaddedWidth(k);
  for (int p = 0; p < kPanels; ++p) {
    FetchPanel(panels + p * kPanelSize<T>, rows + p * kPanel, padded, kPanel,
               PanelColumns(padded, p));
  }
}

// A state's 64 columns from `begin` on, in registers.
template <int kPanels>
struct StateColumns {
  Accumulator of[kPanels];

  template <class Fn>
  __device__ void ForEach(const Fn& fn) {
#pragma unroll
    for (int p = 0; p < kPanels; ++p) {
      ForEachPair(of[p], [&](int r, int c, float& x, float& y) { fn(p * kPanel + r, c, x, y); });
    }
  }
  __device__ void Load(const float* state, int k, int width, int begin) {
    ForEach([&](int r, int c, float& x, float& y) {
      const float* at = state + int64_t{r} * width + begin + c;
      if (r < k && begin + c < width) x = at[0];
      if (r < k && begin + c + 1 < width) y = at[1];
    });
  }
  __device__ void Store(float* state, int k, int width, int begin, bool add) {
    ForEach([&](int r, int c, float& x, float& y) {
      float* at = state + int64_t{r} * width + begin + c;
      if (r < k && begin + c < width) PutOrAdd(at, 0, x, add);
      if (r < k && begin + c + 1 < width) PutOrAdd(at, 1, y, add);
    });
  }
  // To panels [K, 64].
  template <class T>
  __device__ void Publish(T* panels) {
    ForEach([&](int r, int c, float& x, float& y) { PutPair(panels, r, c, x, y); });
  }
  // decay: of 64 kPanels channels.
  __device__ void Decay(const float* decay) {
    ForEach([&](int r, int, float& x, float& y) { x *= decay[r], y *= decay[r]; });
  }
};

// What Publish left, as the state of a chunk.
template <class T, int kPanels>
__device__ inline void StorePanels(const T* panels, T* state, int k, int width, int begin) {
  for (int p = 0; p < kPanels; ++p) {
    StorePanel(panels + p * kPanelSize<T>, state + int64_t{p} * kPanel * width + begin, width,
               k - p * kPanel, width - begin);
  }
}

// A chunk's operands in shared memory: `kPerKey` times the panels of a key's width, `kValues`
// panels of values and the decay. Where two such stages fit beside the state's panels, the next
// chunk's are fetched while this one's are used.
template <class T, int kPanels, int kPerKey, int kValues>
struct Stages {
  static constexpr int kStage = (kPerKey * kPanels + kValues) * kPanelSize<T>;  // elements
  static constexpr int kStageBytes =
      kStage * static_cast<int>(sizeof(T)) + kPanels * kPanel * static_cast<int>(sizeof(float));
  static constexpr int kStateBytes = kPanels * kPanelSize<T> * static_cast<int>(sizeof(T));
  static constexpr int kMostBytes = 227 * 1024;
  static constexpr int kCount = kStateBytes + 2 * kStageBytes <= kMostBytes ? 2 : 1;
  static constexpr int kBytes = kStateBytes + kCount * kStageBytes;
  static_assert(kBytes <= kMostBytes);

  T* state = reinterpret_cast<T*>(DynamicShared());

  __device__ T* KeyPanels(int stage, int i) const {
    return reinterpret_cast<T*>(DynamicShared() + kStateBytes + stage * kStageBytes) +
           i * kPanels * kPanelSize<T>;
  }
  __device__ T* ValuePanel(int stage, int i) const {
    return KeyPanels(stage, kPerKey) + i * kPanelSize<T>;
  }
  __device__ float* Decay(int stage) const {
    return reinterpret_cast<float*>(ValuePanel(stage, kValues));
  }
  __device__ void FetchDecay(int stage, const float* decay, int padded) const {
    const int c = 4 * threadIdx.x;
    if (c >= kPanels * kPanel) return;
    const bool valid = c < padded;
    CopyAsync16(SharedAddress(Decay(stage) + c), valid ? decay + c : decay, valid);
  }
};

// Chunk after chunk of [first, end) in steps of `step`: fetch(chunk, stage) asks for its operands,
// publish() leaves the state in the panels, and use(chunk, stage) finds both there.
template <int kStages, class Fetch, class Publish, class Use>
__device__ inline void ForEachChunk(int first, int end, int step, const Fetch& fetch,
                                    const Publish& publish, const Use& use) {
  int stage = 0;
  if (kStages == 2 && first != end) fetch(first, 0);
  for (int chunk = first; chunk != end; chunk += step) {
    publish();
    if (kStages == 1) fetch(chunk, 0);
    WaitForCopies();
    __syncthreads();
    if (kStages == 2 && chunk + step != end) fetch(chunk + step, 1 - stage);
    use(chunk, stage);
    __syncthreads();
    if (kStages == 2) stage = 1 - stage;
  }
}

template <class T, int kPanels, bool kDelta>
using ForwardStages = Stages<T, kPanels, kDelta ? 2 : 1, 1>;

template <class T, int kPanels, bool kDelta>
__global__ void __launch_bounds__(kPanelThreads, 1) ForwardStatesKernel(ForwardStates<T> data) {
  using Shared = ForwardStages<T, kPanels, kDelta>;
  const Shared shared;
  const ScanShape& n = data.shape;
  const int begin = blockIdx.x * kPanel, head = blockIdx.y, document = n.Document(blockIdx.z);
  const int padded = PaddedWidth(n.k);
  const int64_t state_size = int64_t{n.k} * n.width;
  const ChunksOf chunks(n, document);
  StateColumns<kPanels> state;
  const float* initial = data.initial.At(n, document, head, state_size);
  if (initial != nullptr && chunks.tokens > 0) state.Load(initial, n.k, n.width, begin);
  const auto fetch = [&](int chunk, int stage) {
    const int64_t item = int64_t{chunk} * n.heads + head;
    data.values.Fetch(shared.ValuePanel(stage, 0), chunks.Place(chunk), item, begin);
    FetchOperand<T, kPanels>(shared.KeyPanels(stage, 0),
                             data.operands.Rows(data.operands.k_write, item, n.k), n.k);
    if constexpr (kDelta) {
      FetchOperand<T, kPanels>(shared.KeyPanels(stage, 1),
                               data.operands.Rows(data.operands.w, item, n.k), n.k);
    }
    shared.FetchDecay(stage, data.operands.decay + item * padded, padded);
  };
  const auto use = [&](int chunk, int stage) {
    const int64_t item = int64_t{chunk} * n.heads + head;
    T *values = shared.ValuePanel(stage, 0), *write = shared.KeyPanels(stage, 0);
    if (data.states_CGKV != nullptr) {
      StorePanels<T, kPanels>(shared.state, data.states_CGKV + item * state_size, n.k, n.width,
                              begin);
    }
    if constexpr (kDelta) {
      const T* w = shared.KeyPanels(stage, 1);
      Accumulator change;
      for (int p = 0; p < kPanels; ++p) {
        Multiply<false, false>(change, w + p * kPanelSize<T>, shared.state + p * kPanelSize<T>, 0,
                               PanelColumns(padded, p));
      }
      ForEachPair(change, [&](int r, int c, float x, float y) {
        const float2 from = GetPair(values, r, c);
        PutPair(values, r, c, from.x + x, from.y + y);
      });
      __syncthreads();
      const ChunkPlace place = chunks.Place(chunk);
      StorePanel(values, data.u_NGV + (int64_t{place.token} * n.heads + head) * n.v + begin,
                 int64_t{n.heads} * n.v, place.rows, n.v - begin);
    }
    state.Decay(shared.Decay(stage));
#pragma unroll
    for (int p = 0; p < kPanels; ++p) {
      Multiply<true, false>(state.of[p], write + p * kPanelSize<T>, values, 0, kPanel);
    }
  };
  ForEachChunk<Shared::kCount>(
      chunks.first, chunks.end, 1, fetch, [&] { state.Publish(shared.state); }, use);
  float* final = data.final.At(n, document, head, state_size);
  if (final != nullptr) state.Store(final, n.k, n.width, begin, /*add=*/false);
}

// Float panels of three operands are too many for shared memory: they take turns.
template <class T, bool kDelta>
inline constexpr bool kTakeTurns = kDelta&& std::is_same_v<T, float>;
template <class T, int kPanels, bool kDelta>
using ReverseStages = Stages<T, kPanels, kDelta && !kTakeTurns<T, kDelta> ? 3 : 1, kDelta ? 2 : 1>;

template <class T, int kPanels, bool kDelta>
__global__ void __launch_bounds__(kPanelThreads, 1) ReverseStatesKernel(ReverseStates<T> data) {
  using Shared = ReverseStages<T, kPanels, kDelta>;
  constexpr bool kTurns = kTakeTurns<T, kDelta>;
  constexpr int kStages = kTurns ? 1 : Shared::kCount;
  const Shared shared;
  const ScanShape& n = data.shape;
  const ScanOperands<T>& operands = data.operands;
  const int begin = blockIdx.x * kPanel, head = blockIdx.y, document = n.Document(blockIdx.z);
  const int padded = PaddedWidth(n.k);
  const int64_t state_size = int64_t{n.k} * n.width;
  const ChunksOf chunks(n, document);
  const ValueRows<T> du_rows{.x_NGV = data.du_NGV, .heads = n.heads, .v = n.v};
  StateColumns<kPanels> state;
  const float* dfinal = data.dfinal.At(n, document, head, state_size);
  if (dfinal != nullptr && chunks.tokens > 0) state.Load(dfinal, n.k, n.width, begin);
  const auto fetch_operand = [&](int stage, int i, T* of_all, int64_t item) {
    FetchOperand<T, kPanels>(shared.KeyPanels(stage, i), operands.Rows(of_all, item, n.k), n.k);
  };
  const auto take_turns = [&](T* of_all, int64_t item) {
    if constexpr (kTurns) {
      __syncthreads();
      fetch_operand(0, 0, of_all, item);
      WaitForCopies();
      __syncthreads();
    }
  };
  const auto fetch = [&](int chunk, int stage) {
    const int64_t item = int64_t{chunk} * n.heads + head;
    data.d_o.Fetch(shared.ValuePanel(stage, 0), chunks.Place(chunk), item, begin);
    fetch_operand(stage, 0, kDelta ? operands.k_write : operands.q_read, item);
    if constexpr (kDelta) {
      du_rows.Fetch(shared.ValuePanel(stage, 1), chunks.Place(chunk), item, begin);
    }
    if constexpr (kDelta && !kTurns) {
      fetch_operand(stage, 1, operands.q_read, item);
      fetch_operand(stage, 2, operands.w, item);
    }
    shared.FetchDecay(stage, operands.decay + item * padded, padded);
  };
  const auto add_product = [&](const T* rows, const T* values) {
#pragma unroll
    for (int p = 0; p < kPanels; ++p) {
      Multiply<true, false>(state.of[p], rows + p * kPanelSize<T>, values, 0, kPanel);
    }
  };
  const auto use = [&](int chunk, int stage) {
    const int64_t item = int64_t{chunk} * n.heads + head;
    const T* d_o = shared.ValuePanel(stage, 0);
    StorePanels<T, kPanels>(shared.state, data.dstates_CGKV + item * state_size, n.k, n.width,
                            begin);
    if constexpr (kDelta) {
      T* du = shared.ValuePanel(stage, 1);
      const T* write = shared.KeyPanels(stage, 0);
      Accumulator change;
      for (int p = 0; p < kPanels; ++p) {
        Multiply<false, false>(change, write + p * kPanelSize<T>, shared.state + p * kPanelSize<T>,
                               0, PanelColumns(padded, p));
      }
      ForEachPair(change, [&](int r, int c, float x, float y) {
        const float2 from = GetPair(du, r, c);
        PutPair(du, r, c, from.x + x, from.y + y);
      });
      __syncthreads();
      const ChunkPlace place = chunks.Place(chunk);
      StorePanel(du, data.du_NGV + (int64_t{place.token} * n.heads + head) * n.v + begin,
                 int64_t{n.heads} * n.v, place.rows, n.v - begin);
    }
    state.Decay(shared.Decay(stage));
    if constexpr (kDelta) {
      take_turns(operands.q_read, item);
      add_product(shared.KeyPanels(stage, kTurns ? 0 : 1), d_o);
      take_turns(operands.w, item);
      add_product(shared.KeyPanels(stage, kTurns ? 0 : 2), shared.ValuePanel(stage, 1));
    } else {
      add_product(shared.KeyPanels(stage, 0), d_o);
    }
  };
  ForEachChunk<kStages>(
      chunks.end - 1, chunks.first - 1, -1, fetch, [&] { state.Publish(shared.state); }, use);
  float* dinitial = data.dinitial.At(n, document, head, state_size);
  if (dinitial != nullptr && (chunks.tokens > 0 || !data.accumulate)) {
    state.Store(dinitial, n.k, n.width, begin, data.accumulate);
  }
}

template <class T, bool kDelta>
void LaunchForwardStates(const Stream& stream, const char* name, const ForwardStates<T>& data) {
  if constexpr (std::is_same_v<T, bf16>) {
    if (WarpgroupForwardStates(stream, name, data, kDelta)) return;
  }
  const ScanShape& n = data.shape;
  DispatchKeyPanels(n.k, [&]<int kPanels>() {
    const dim3 grid(PanelsOf(n.width), n.heads, n.Count());
    constexpr int kShared = ForwardStages<T, kPanels, kDelta>::kBytes;
    const auto kernel = ForwardStatesKernel<T, kPanels, kDelta>;
    AllowShared(kernel, kShared);
    kernel<<<grid, kPanelThreads, kShared, Handle(stream)>>>(data);
  });
  CheckLaunch(name);
}
template <class T, bool kDelta>
void LaunchReverseStates(const Stream& stream, const char* name, const ReverseStates<T>& data) {
  if constexpr (std::is_same_v<T, bf16>) {
    if (WarpgroupReverseStates(stream, name, data, kDelta)) return;
  }
  const ScanShape& n = data.shape;
  DispatchKeyPanels(n.k, [&]<int kPanels>() {
    const dim3 grid(PanelsOf(n.width), n.heads, n.Count());
    constexpr int kShared = ReverseStages<T, kPanels, kDelta>::kBytes;
    const auto kernel = ReverseStatesKernel<T, kPanels, kDelta>;
    AllowShared(kernel, kShared);
    kernel<<<grid, kPanelThreads, kShared, Handle(stream)>>>(data);
  });
  CheckLaunch(name);
}

}  // namespace lt2::cuda
