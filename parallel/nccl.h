// NCCL's functions, looked up when several GPUs first need them: a program that finds no libnccl
// runs all the same, on one GPU or on CPUs.
#pragma once

#include <nccl.h>

#include "absl/status/statusor.h"

namespace lt2 {

#define LT2_NCCL_FUNCTIONS(FN) \
  FN(GetVersion)               \
  FN(GetUniqueId)              \
  FN(GetErrorString)           \
  FN(GetLastError)             \
  FN(CommInitRankConfig)       \
  FN(CommDestroy)              \
  FN(CommAbort)                \
  FN(CommGetAsyncError)        \
  FN(GroupStart)               \
  FN(GroupEnd)                 \
  FN(AllReduce)                \
  FN(Reduce)                   \
  FN(ReduceScatter)            \
  FN(AllGather)                \
  FN(Broadcast)                \
  FN(Send)                     \
  FN(Recv)

// nccl.AllReduce(…) is ncclAllReduce(…).
struct Nccl {
#define LT2_NCCL_MEMBER(Name) decltype(&nccl##Name) Name = nullptr;
  LT2_NCCL_FUNCTIONS(LT2_NCCL_MEMBER)
#undef LT2_NCCL_MEMBER
};

// The process's library, or FailedPrecondition saying where it was looked for. NVLink multicast
// (NVLS) is off unless NCCL_NVLS_ENABLE is set: it can take the GPUs of a host out of service.
absl::StatusOr<const Nccl*> LoadNccl();

}  // namespace lt2
