// Products with SwiGLU run fused or in parts: what is faster, measured at the first use of a shape
// and remembered in the user's cache.
#include "kernels/swiglu_ffn.h"

#include <map>

#include "absl/strings/str_cat.h"
#include "core/cuda/stream.h"
#include "core/file.h"
#include "core/log.h"
#include "kernels/cuda/swiglu_ffn_warpgroup.h"
#include "kernels/cuda/timing.h"
#include "kernels/measured_choices.h"

namespace lt2::cuda {
namespace {

constexpr const char *kFused = "fused", *kInParts = "parts";

// A thread's choices for a GPU.
class Choices {
 public:
  static Choices& OfThread(Device device) {
    thread_local std::map<int, Choices> of_device;
    return of_device[device.index];
  }

  Choices() {
    int device = 0;
    cudaDeviceProp properties;
    LT2_CUDA_CHECK(cudaGetDevice(&device));
    LT2_CUDA_CHECK(cudaGetDeviceProperties(&properties, device));
    std::string name = properties.name;
    std::replace(name.begin(), name.end(), ' ', '-');
    machine_ = absl::StrCat(name, ":", properties.multiProcessorCount, ":", CUDART_VERSION, ":");
    const absl::StatusOr<std::string> folder = CacheDirectory();
    if (folder.ok()) {
      cache_ = std::make_unique<MeasuredChoices>(JoinPath(*folder, "swiglu_ffn.txt"));
    }
  }

  // Fused where nothing can be measured: while the stream is being captured, or without a cache.
  template <class Fused, class InParts>
  bool IsFused(cudaStream_t stream, const std::string& key, const Fused& fused,
               const InParts& in_parts) {
    const auto known = known_.find(key);
    if (known != known_.end()) return known->second;
    if (BeingCaptured(stream)) return true;
    bool is_fused = true;
    if (cache_ != nullptr) {
      const absl::StatusOr<std::string> word = cache_->Choose(
          machine_ + key,
          [](const std::string& word) { return word == kFused || word == kInParts; },
          [&] { return Measure(stream, key, fused, in_parts); });
      if (!word.ok()) LogWarn(absl::StrCat(word.status().ToString(), ": ", key, " is fused"));
      is_fused = !word.ok() || *word != kInParts;
    }
    return known_[key] = is_fused;
  }

 private:
  template <class Fused, class InParts>
  static std::string Measure(cudaStream_t stream, const std::string& key, const Fused& fused,
                             const InParts& in_parts) {
    constexpr int kRuns = 7;
    in_parts();  // its own products are measured here
    fused();
    const Timing timing(stream);
    if (!timing.possible()) return "";
    std::vector<float> of_fused, of_parts;
    for (int run = 0; run < kRuns; ++run) {
      of_fused.push_back(timing.Once([&] { return fused(), true; }));
      of_parts.push_back(timing.Once([&] { return in_parts(), true; }));
    }
    const float one = MedianOf(of_fused), other = MedianOf(of_parts);
    LogDebug(absl::StrCat("swiglu_ffn ", key, ": fused ", 1e3 * one, " us, in parts ", 1e3 * other,
                          " us"));
    return one < other ? kFused : kInParts;
  }

  std::string machine_;                     // of the keys in the cache
  std::unique_ptr<MeasuredChoices> cache_;  // null where there is none
  std::map<std::string, bool> known_;
};

template <class Args>
void RunFaster(Stream& stream, const char* pass, const Tensor& from, const Tensor& to,
               const Args& args, void (*parts)(Stream&, const Args&)) {
  constexpr double kSmall = 1e9;  // multiply-adds: a few microseconds, as long as launches take
  const double size = static_cast<double>(from.size()) * static_cast<double>(to.shape().back());
  if (!WarpgroupsTake(args) || size < kSmall) return parts(stream, args);
  const auto fused = [&] { WarpgroupSwiGluFfn(stream, args); };
  const auto in_parts = [&] { parts(stream, args); };
  // Whether hidden is wanted does not matter: gate and up that are made again are the same.
  const std::string key = absl::StrCat(pass, ":", from.shape().rows(), "x", to.shape().back(), "x",
                                       from.shape().back());
  if (Choices::OfThread(stream.device).IsFused(Handle(stream), key, fused, in_parts)) {
    fused();
  } else {
    in_parts();
  }
}

}  // namespace

void SwiGluFfnForward(Stream& stream, const SwiGluFfnForwardArgs& args) {
  RunFaster(stream, "forward", args.x, args.gate, args, SwiGluFfnForwardInParts);
}

void SwiGluFfnBackward(Stream& stream, const SwiGluFfnBackwardArgs& args) {
  RunFaster(stream, "backward", args.dy, args.gate, args, SwiGluFfnBackwardInParts);
}

}  // namespace lt2::cuda
