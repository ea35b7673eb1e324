// Which source the i-th sample of a weighted mixture comes from, in closed form.
//
// Source 0 with share p owns sample i where floor((i + 1)p) > floor(ip), and has given floor(ip)
// samples before it; what is left is dealt out among the other sources in the same way. So the
// choice is a pure function of (weights, i), costs O(sources), and along each split the counts
// never stray from the shares by one sample or more.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace lt2 {

class Mixture {
 public:
  // Weights are positive and finite; only their ratios matter.
  explicit Mixture(std::span<const double> weights);

  struct Choice {
    int source;
    int64_t index;  // how many samples of this source came before
  };
  Choice operator()(int64_t sample) const;

  // How many of the first `samples` samples come from `source`.
  int64_t Count(int source, int64_t samples) const;

 private:
  // Of each source among itself and those after it, in units of 2^-62; the last one's is 1.
  std::vector<int64_t> shares_;
};

}  // namespace lt2
