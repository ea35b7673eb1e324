#include "launch/progress.h"

#include "absl/strings/str_format.h"

namespace lt2 {

std::string Duration(double seconds) {
  const int64_t s = static_cast<int64_t>(seconds + 0.5);
  if (s >= 86400) return absl::StrFormat("%d d %02d:%02d", s / 86400, s / 3600 % 24, s / 60 % 60);
  if (s >= 3600) return absl::StrFormat("%d:%02d:%02d", s / 3600, s / 60 % 60, s % 60);
  return absl::StrFormat("%d:%02d", s / 60, s % 60);
}

std::string WithCommas(int64_t number) {
  std::string text = std::to_string(number);
  for (int64_t at = static_cast<int64_t>(text.size()) - 3; at > 0; at -= 3) text.insert(at, ",");
  return text;
}

std::string ConsoleLine(const StepMetrics& m, int64_t last_step, double eta_seconds) {
  return absl::StrFormat("step %d/%d  %s tokens  loss %.4f  lr %.2e  norm %.3g  %s tok/s  ETA %s",
                         m.step, last_step, WithCommas(m.tokens), m.loss, m.lr, m.grad_norm,
                         WithCommas(static_cast<int64_t>(m.tokens_per_s)), Duration(eta_seconds));
}

JsonLine ToJson(const LoopDiagnostics& diagnostics, double counted) {
  std::vector<double> gradient_norm = diagnostics.gradient_norm;
  for (double& norm : gradient_norm) norm /= counted > 0 ? counted : 1;
  return {{"loop_loss", diagnostics.loss},
          {"loop_rms", diagnostics.hidden_rms},
          {"loop_grad_norm", gradient_norm},
          {"first_token_mass", diagnostics.first_token_mass}};
}

JsonLine ExitsToJson(std::span<const double> sums, double counted) {
  const double tokens = counted > 0 ? counted : 1;
  std::vector<double> probability;
  double loop = 0;
  for (size_t t = 1; t < sums.size(); ++t) {
    probability.push_back(sums[t] / tokens);
    loop += static_cast<double>(t) * probability.back();
  }
  return {
      {"exit_loop", loop}, {"exit_entropy", sums[0] / tokens}, {"exit_probability", probability}};
}

}  // namespace lt2
