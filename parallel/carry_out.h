// Collectives between ranks of one process: whoever comes last carries one out, on the tensors of
// all, which lie in host memory or on GPUs.
#pragma once

#include <span>

#include "parallel/communicator.h"

namespace lt2 {

// Waits for what the calling thread has queued on the GPU where the collective's tensors lie; on
// the host there is nothing to wait for. Every rank calls it before another touches its tensors.
void SettleTensors(const Collective& collective);

// What rank r gave is ranks[r]; they fit together. Sums are made on the host in rank order, one of
// bf16 in float32. Everything is done when it returns.
void CarryOut(std::span<Collective* const> ranks);
void CarryOutMessage(const Collective& send, const Collective& receive);

}  // namespace lt2
