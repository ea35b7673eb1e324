// What a scan over a part of a document must know of the tokens before and after it.
//
// A run of tokens maps the state it begins with to the one it ends with, S_out = M S_in + E, where
// M is a matrix (the delta rule), a factor per key channel, or one per head. A scan over a part
// gives E and M of its own tokens and gets the S_in of its first document; in backward it gives the
// gradient of S_in through its own tokens alone and gets that of its last document's S_out. Who
// holds the other parts is the link's business: an operator sees tensors.
#pragma once

#include <functional>
#include <vector>

#include "core/tensor.h"

namespace lt2 {

class StateLink {
 public:
  virtual ~StateLink() = default;

  // What the last document's tokens here leave if it begins from nothing; G heads, states [K, V].
  struct Segment {
    Tensor state_1GKV;  // E
    Tensor map_1GKX;    // M: X = K for a matrix, 1 for a factor per row. See kernels/state_fold.h
    // Where states have a frame (kernels/scan_mlstm.h): that of E, and log M instead of M.
    Tensor max_1G = {}, log_map_1G = {};
  };
  struct Incoming {
    Tensor state_1GKV;  // zero where the first document begins here
    Tensor maps;        // for OutgoingGradient
    // With frames: that of the state, and that of the state the next part begins with.
    Tensor max_1G = {}, next_max_1G = {};
  };
  // An exchange that was launched; the call waits for it.
  template <class What>
  using Arriving = std::function<What()>;
  // The tensors of `incoming` are there at once, and their numbers when the returned call is done.
  virtual Arriving<void> Exchange(Stream& stream, const Segment& segment, Incoming* incoming) = 0;

  // dincoming_1GKV: the gradient of S_in with none of S_out. Gives that of S_out, zero where the
  // last document ends here; with frames in `final_max_1G`, that of S_out.
  virtual Arriving<Tensor> ExchangeGradient(Stream& stream, const Tensor& dincoming_1GKV,
                                            const Incoming& incoming,
                                            const Tensor& final_max_1G = {}) = 0;

  // Unit matrices [1, heads, k, k], made once.
  const Tensor& Unit(int64_t heads, int64_t k, DType dtype, Device device);

 private:
  std::vector<Tensor> units_;
};

}  // namespace lt2
