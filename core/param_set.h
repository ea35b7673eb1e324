// The parameters of a model, in the order in which they were declared.
//
//   ParamSet set;
//   ParamScope scope = ParamScope(set).Sub("layers.0").Sub("mixer");
//   Param& q = scope.Add("q_proj.weight", {width, width}, init);   // layers.0.mixer.q_proj.weight
//
// Declaring takes no memory; whoever trains or loads binds values and gradients.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/param.h"

namespace lt2 {

class ParamSet {
 public:
  Param& Add(ParamSpec spec) {
    CHECK(Find(spec.name) == nullptr) << spec.name << " is declared twice";
    return AddShared(std::move(spec));
  }
  // The parameter of that name, made by the first of the sites that share it.
  Param& AddShared(ParamSpec spec) {
    Param& param = Hold(std::move(spec));
    ++sites_[&param];
    return param;
  }
  // The same without a site: others' are in other pipeline stages.
  Param& Hold(ParamSpec spec) {
    if (Param* const param = Find(spec.name)) return *param;
    params_.push_back(std::make_unique<Param>(std::move(spec)));
    sites_[params_.back().get()] = 0;
    return *params_.back();
  }
  // How many places of the model declared it, each of which uses it once when it runs.
  int Sites(const Param* param) const { return sites_.at(param); }
  int size() const { return static_cast<int>(params_.size()); }
  Param* Find(const std::string& name) const {
    for (const auto& param : params_) {
      if (param->spec.name == name) return param.get();
    }
    return nullptr;
  }
  std::vector<Param*> all() const {
    std::vector<Param*> all;
    for (const auto& param : params_) all.push_back(param.get());
    return all;
  }
  std::vector<ParamSpec> specs() const {
    std::vector<ParamSpec> specs;
    for (const auto& param : params_) specs.push_back(param->spec);
    return specs;
  }
  int64_t elements() const {
    int64_t sum = 0;
    for (const auto& param : params_) sum += param->spec.shape.size();
    return sum;
  }

 private:
  std::vector<std::unique_ptr<Param>> params_;
  std::map<const Param*, int> sites_;
};

// A place in the tree of names.
class ParamScope {
 public:
  explicit ParamScope(ParamSet& set, std::string prefix = "") : set_(&set), prefix_(prefix) {}
  // Parameters declared so far, in all scopes.
  int declared() const { return set_->size(); }
  ParamScope Sub(const std::string& name) const { return ParamScope(*set_, prefix_ + name + "."); }
  Param& Hold(const ParamSpec& spec) const { return set_->Hold(spec); }
  // A matrix of products, or a vector of anything else.
  Param& Add(const std::string& name, const Shape& shape, const Init& init, bool decay = true,
             const ParamSplit& split = {}) const {
    return set_->Add(Spec(name, shape, init, decay, /*elementwise=*/shape.rank() == 1, split));
  }
  // Of any rank, and read by no matrix product.
  Param& AddElementwise(const std::string& name, const Shape& shape, const Init& init,
                        bool decay = true, const ParamSplit& split = {}) const {
    return set_->Add(Spec(name, shape, init, decay, /*elementwise=*/true, split));
  }
  // Likewise, and of several sites.
  Param& AddShared(const std::string& name, const Shape& shape, const Init& init, bool decay = true,
                   const ParamSplit& split = {}) const {
    ParamSpec spec = Spec(name, shape, init, decay, /*elementwise=*/true, split);
    spec.across_stages = true;
    return set_->AddShared(std::move(spec));
  }

 private:
  ParamSpec Spec(const std::string& name, const Shape& shape, const Init& init, bool decay,
                 bool elementwise, const ParamSplit& split) const {
    return {.name = prefix_ + name,
            .shape = shape,
            .init = init,
            .decay = decay,
            .elementwise = elementwise,
            .split = split};
  }

  ParamSet* set_;
  std::string prefix_;
};

}  // namespace lt2
