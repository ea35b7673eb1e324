#include "launch/threads.h"

#include <omp.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

namespace lt2 {

void UseThreadsFor(const Communicator& world) {
  if (std::getenv("OMP_NUM_THREADS") != nullptr) return;
  cpu_set_t mine;
  CPU_ZERO(&mine);
  const bool known = sched_getaffinity(0, sizeof(mine), &mine) == 0;
  const int cores = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  const int allowed = known ? CPU_COUNT(&mine) : cores;
  // A launcher that bound ranks to cores has shared them out already.
  const int threads = allowed < cores ? allowed : cores / world.local_size();
  omp_set_num_threads(std::max(1, threads));
}

}  // namespace lt2
