#include "kernels/add.h"

namespace lt2::reference {

void Add(Stream&, const AddArgs& args) {
  for (int64_t i = 0; i < args.y.size(); ++i) {
    args.y.data<double>()[i] = args.a.data<double>()[i] + args.b.data<double>()[i];
  }
}

}  // namespace lt2::reference
