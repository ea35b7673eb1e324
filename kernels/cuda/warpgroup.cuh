// Tensor-core products of a warpgroup (four warps) on Hopper: c [64, n] = or += a [64, 16] b [16,
// n], bf16 with float sums; b, and a where it is not in registers, are read from shared memory.
//
// They are queued: BeginProducts, any products, CommitProducts; after WaitForProducts<k> all but
// the last k commits are done. Until then their registers may not be touched. All threads of the
// warpgroup call everything.
//
// Shared tiles are panels of 64 columns: [rows][64] bf16, 128 bytes a row, whose 16-byte pieces are
// permuted by the row (piece ^ row mod 8); a panel begins at a multiple of 1024 bytes.
// Warp w of the group holds rows 16 w to 16 w + 15 of c, and of a, as in tensor_core.cuh.
#pragma once

#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/tensor_core.cuh"

namespace lt2::cuda {

// Of the calling thread in its block; the compiler learns that a warp agrees on it.
__device__ inline int WarpgroupIndex() { return __shfl_sync(~0u, threadIdx.x / 128, 0); }

inline constexpr int kPanelColumns = 64, kPanelRowBytes = 128;

// Where piece `piece` (16 bytes) of a row lies in a tile of `rows` rows.
__device__ inline uint32_t PanelOffset(int rows, int row, int piece) {
  return (piece / 8 * rows + row) * kPanelRowBytes + ((piece ^ row) % 8) * 16;
}

// How a product finds an operand that begins at `address`: 128-byte permutation, 8 rows every 1024
// bytes, and where its 64-column panels are `panel_bytes` apart.
__device__ inline uint64_t Descriptor(uint32_t address, uint32_t panel_bytes) {
  return uint64_t{1} << 62 | uint64_t{1024 / 16} << 32 | uint64_t{panel_bytes / 16} << 16 |
         (address & 0x3ffff) / 16;
}
// The same for panels of 32 columns: 64 bytes a row, piece ^ row / 2 mod 4, 8 rows every 512 bytes.
__device__ inline uint64_t NarrowDescriptor(uint32_t address, uint32_t panel_bytes) {
  return uint64_t{2} << 62 | uint64_t{512 / 16} << 32 | uint64_t{panel_bytes / 16} << 16 |
         (address & 0x3ffff) / 16;
}

// Waits for all threads of a warpgroup, and no others.
__device__ inline void SynchronizeWarpgroup(int index) {
  asm volatile("bar.sync %0, 128;" ::"r"(index + 1) : "memory");
}

// What threads wrote to shared memory becomes visible to products, after the next barrier.
__device__ inline void PublishShared() {
  LT2_HOPPER_ASM("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ inline void BeginProducts() { LT2_HOPPER_ASM("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void CommitProducts() {
  LT2_HOPPER_ASM("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kPending>
__device__ inline void WaitForProducts() {
  LT2_HOPPER_ASM("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// After the wait, for each array that was written or read: the compiler may not move uses across.
template <class Registers>
__device__ inline void Settle(Registers& registers) {
  auto* flat = reinterpret_cast<float*>(&registers);
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(Registers) / 4); ++i) {
    asm volatile("" : "+f"(flat[i])::"memory");
  }
}

#define LT2_TWO(c, i) "+f"(c[i]), "+f"(c[i + 1])
#define LT2_EIGHT(c, i) LT2_TWO(c, i), LT2_TWO(c, i + 2), LT2_TWO(c, i + 4), LT2_TWO(c, i + 6)

// c = (add ? c : 0) + a b with a [64, 16] rows of 16 columns and b given as rows n of 16 columns k.
__device__ inline void MultiplyShared(float (&c)[32], uint64_t a, uint64_t b, bool add) {
  LT2_HOPPER_ASM(
      "{.reg .pred p; setp.ne.b32 p, %34, 0; "
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
      "}, %32, %33, p, 1, 1, 0, 0;}"
      : LT2_EIGHT(c, 0), LT2_EIGHT(c, 8), LT2_EIGHT(c, 16), LT2_EIGHT(c, 24)
      : "l"(a), "l"(b), "r"(int{add}));
}
__device__ inline void MultiplyShared(float (&c)[48], uint64_t a, uint64_t b, bool add) {
  LT2_HOPPER_ASM(
      "{.reg .pred p; setp.ne.b32 p, %50, 0; "
      "wgmma.mma_async.sync.aligned.m64n96k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
      "}, %48, %49, p, 1, 1, 0, 0;}"
      : LT2_EIGHT(c, 0), LT2_EIGHT(c, 8), LT2_EIGHT(c, 16), LT2_EIGHT(c, 24), LT2_EIGHT(c, 32),
        LT2_EIGHT(c, 40)
      : "l"(a), "l"(b), "r"(int{add}));
}
__device__ inline void MultiplyShared(float (&c)[64], uint64_t a, uint64_t b, bool add) {
  LT2_HOPPER_ASM(
      "{.reg .pred p; setp.ne.b32 p, %66, 0; "
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
      "}, %64, %65, p, 1, 1, 0, 0;}"
      : LT2_EIGHT(c, 0), LT2_EIGHT(c, 8), LT2_EIGHT(c, 16), LT2_EIGHT(c, 24), LT2_EIGHT(c, 32),
        LT2_EIGHT(c, 40), LT2_EIGHT(c, 48), LT2_EIGHT(c, 56)
      : "l"(a), "l"(b), "r"(int{add}));
}
// Likewise, b given as 16 rows k of n columns.
__device__ inline void MultiplySharedRows(float (&c)[64], uint64_t a, uint64_t b, bool add) {
  LT2_HOPPER_ASM(
      "{.reg .pred p; setp.ne.b32 p, %66, 0; "
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
      "}, %64, %65, p, 1, 1, 0, 1;}"
      : LT2_EIGHT(c, 0), LT2_EIGHT(c, 8), LT2_EIGHT(c, 16), LT2_EIGHT(c, 24), LT2_EIGHT(c, 32),
        LT2_EIGHT(c, 40), LT2_EIGHT(c, 48), LT2_EIGHT(c, 56)
      : "l"(a), "l"(b), "r"(int{add}));
}
// The same with a in registers.
__device__ inline void MultiplyHeld(float (&c)[32], const uint32_t (&a)[4], uint64_t b, bool add) {
  LT2_HOPPER_ASM(
      "{.reg .pred p; setp.ne.b32 p, %37, 0; "
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
      "}, {%32, %33, %34, %35}, %36, p, 1, 1, 0;}"
      : LT2_EIGHT(c, 0), LT2_EIGHT(c, 8), LT2_EIGHT(c, 16), LT2_EIGHT(c, 24)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int{add}));
}
// Likewise, b given as 16 rows k of n columns.
__device__ inline void MultiplyTransposed(float (&c)[32], const uint32_t (&a)[4], uint64_t b,
                                          bool add) {
  LT2_HOPPER_ASM(
      "{.reg .pred p; setp.ne.b32 p, %37, 0; "
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
      "}, {%32, %33, %34, %35}, %36, p, 1, 1, 1;}"
      : LT2_EIGHT(c, 0), LT2_EIGHT(c, 8), LT2_EIGHT(c, 16), LT2_EIGHT(c, 24)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int{add}));
}
__device__ inline void MultiplyTransposed(float (&c)[48], const uint32_t (&a)[4], uint64_t b,
                                          bool add) {
  LT2_HOPPER_ASM(
      "{.reg .pred p; setp.ne.b32 p, %53, 0; "
      "wgmma.mma_async.sync.aligned.m64n96k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
      "}, {%48, %49, %50, %51}, %52, p, 1, 1, 1;}"
      : LT2_EIGHT(c, 0), LT2_EIGHT(c, 8), LT2_EIGHT(c, 16), LT2_EIGHT(c, 24), LT2_EIGHT(c, 32),
        LT2_EIGHT(c, 40)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int{add}));
}
__device__ inline void MultiplyTransposed(float (&c)[64], const uint32_t (&a)[4], uint64_t b,
                                          bool add) {
  LT2_HOPPER_ASM(
      "{.reg .pred p; setp.ne.b32 p, %69, 0; "
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
      "}, {%64, %65, %66, %67}, %68, p, 1, 1, 1;}"
      : LT2_EIGHT(c, 0), LT2_EIGHT(c, 8), LT2_EIGHT(c, 16), LT2_EIGHT(c, 24), LT2_EIGHT(c, 32),
        LT2_EIGHT(c, 40), LT2_EIGHT(c, 48), LT2_EIGHT(c, 56)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int{add}));
}

// Both transposed, in shared memory: a given as 16 rows k of 64 columns, b as 16 rows k of n.
__device__ inline void MultiplyTransposed(float (&c)[32], uint64_t a, uint64_t b, bool add) {
  LT2_HOPPER_ASM(
      "{.reg .pred p; setp.ne.b32 p, %34, 0; "
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
      "}, %32, %33, p, 1, 1, 1, 1;}"
      : LT2_EIGHT(c, 0), LT2_EIGHT(c, 8), LT2_EIGHT(c, 16), LT2_EIGHT(c, 24)
      : "l"(a), "l"(b), "r"(int{add}));
}
__device__ inline void MultiplyTransposed(float (&c)[64], uint64_t a, uint64_t b, bool add) {
  LT2_HOPPER_ASM(
      "{.reg .pred p; setp.ne.b32 p, %66, 0; "
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
      "}, %64, %65, p, 1, 1, 1, 1;}"
      : LT2_EIGHT(c, 0), LT2_EIGHT(c, 8), LT2_EIGHT(c, 16), LT2_EIGHT(c, 24), LT2_EIGHT(c, 32),
        LT2_EIGHT(c, 40), LT2_EIGHT(c, 48), LT2_EIGHT(c, 56)
      : "l"(a), "l"(b), "r"(int{add}));
}

#undef LT2_EIGHT
#undef LT2_TWO
}  // namespace lt2::cuda
