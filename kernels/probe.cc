#include "kernels/probe.h"

#include "kernels/elementwise.h"

namespace lt2 {

Var Probe(Tape& tape, Var x, std::function<void(const Tensor& dy)> on_gradient) {
  Stream& stream = tape.stream();
  return tape.Record({x}, x.value,
                     {.name = "probe",
                      .input_grad = [&stream, on_gradient = std::move(on_gradient)](
                                        std::span<const Tensor> dy, std::span<GradSlot> dx) {
                        on_gradient(dy[0]);
                        PassGradient(stream, dx[0], dy[0]);
                      }});
}

}  // namespace lt2
