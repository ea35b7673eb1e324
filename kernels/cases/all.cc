#include "kernels/case.h"

namespace lt2 {

#define OP_CASE(Name) OpCase Name##Case();
#include "kernels/cases/cases.def"
#undef OP_CASE

const std::vector<OpCase>& AllOpCases() {
  static const std::vector<OpCase> cases = {
#define OP_CASE(Name) Name##Case(),
#include "kernels/cases/cases.def"
#undef OP_CASE
  };
  return cases;
}

const OpCase* FindOpCase(const std::string& op) {
  for (const OpCase& op_case : AllOpCases()) {
    if (op == op_case.op) return &op_case;
  }
  return nullptr;
}

}  // namespace lt2
