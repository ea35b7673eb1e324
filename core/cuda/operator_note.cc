#include "core/cuda/operator_note.h"

#include <array>

namespace lt2::cuda {
namespace {

struct Note {
  const char* name = nullptr;
  std::array<DType, 12> dtypes;
  std::array<Shape, 12> shapes;
  size_t tensors = 0;
};
thread_local Note note;

}  // namespace

void NoteOperator(const char* name) {
  note.name = name;
  note.tensors = 0;
}

void NoteTensor(const Tensor& operand) {
  if (note.tensors == note.shapes.size()) return;
  note.dtypes[note.tensors] = operand.dtype();
  note.shapes[note.tensors++] = operand.shape();
}

std::string OperatorNote() {
  if (note.name == nullptr) return "no operator yet";
  std::string text = note.name;
  for (size_t i = 0; i < note.tensors; ++i) {
    text += (i == 0 ? " of " : ", ") + std::string(Name(note.dtypes[i])) + " " +
            note.shapes[i].ToString();
  }
  return text;
}

}  // namespace lt2::cuda
