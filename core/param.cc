#include "core/param.h"

namespace lt2 {

Param::Param(ParamSpec the_spec) : spec(std::move(the_spec)), held(Box::Whole(spec.shape)) {}

Param::Param(ParamSpec the_spec, DType dtype, Device device)
    : spec(std::move(the_spec)),
      held(Box::Whole(spec.shape)),
      value(Tensor::Empty(spec.shape, dtype, device)) {
  if (dtype != DType::kBF16) master = value;
}

void Param::Hold(const Box& box) {
  CHECK(!value.defined() && !master.defined() && !main_grad.defined()) << spec.name;
  held = box;
}

void Param::BindValue(Tensor tensor) {
  CHECK_EQ(tensor.size(), held.size()) << spec.name;
  value = tensor.Reshape(held.extent);
  if (value.dtype() != DType::kBF16) master = value;
}

void Param::BindMaster(Tensor tensor) {
  CHECK_EQ(tensor.size(), held.size()) << spec.name;
  master = tensor.Reshape(held.extent);
  if (!value.defined() || value.dtype() != DType::kBF16) value = master;
}

void Param::BindGradient(Tensor gradient) {
  CHECK_EQ(gradient.size(), held.size()) << spec.name;
  main_grad = gradient.Reshape(held.extent);
}

void Param::ExpectUses(int uses, int rounds) {
  CHECK_EQ(outstanding(), 0) << spec.name << " is still in the middle of a step";
  uses_ = uses;
  rounds_ = rounds;
  arrived_ = 0;
  if (main_grad.defined()) main_grad.Zero();
}

void Param::Arrive() {
  CHECK_GT(outstanding(), 0) << spec.name << " was used more often than the schedule said";
  ++arrived_;
  if (arrived_ % uses_ == 0 && on_ready) on_ready(*this);
}

}  // namespace lt2
