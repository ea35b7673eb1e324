// A made-up training state whose every element is a function of (seed, tensor, index), cut into
// random boxes for any number of ranks.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "checkpoints/shard_file.h"
#include "core/hash.h"
#include "core/philox.h"

namespace lt2 {

// Small integers from a counter; the same for the same seed.
class Dice {
 public:
  explicit Dice(uint64_t seed) : seed_(seed) {}
  int64_t Below(int64_t n) { return Philox(seed_, count_++)[0] % n; }

 private:
  uint64_t seed_, count_ = 0;
};

struct SampleTensor {
  std::string group, name;
  DType dtype;
  Shape shape;
  std::string path() const { return group + "/" + name; }
};

inline std::vector<SampleTensor> SampleTensors(int64_t scale = 1) {
  const std::vector<std::pair<std::string, Shape>> params = {
      {"embed.weight", {37 * scale, 16}},
      {"layers.0.mixer.q_proj.weight", {24 * scale, 16}},
      {"layers.0.mixer.q_conv1d.weight", {24, 4}},
      {"layers.0.mixer.A_log", {3}},
      {"loop.residual", {2, 3, 5}},
      {"norm.weight", {16}},
  };
  std::vector<SampleTensor> tensors;
  for (const char* group : {"param", "adam_m", "adam_v"}) {
    for (const auto& [name, shape] : params) tensors.push_back({group, name, DType::kF32, shape});
  }
  tensors.push_back({"param", "wide", DType::kF64, {5, 7}});
  return tensors;
}

// The values of one box of a tensor.
inline TensorPiece SamplePiece(const SampleTensor& of, const Box& box, uint64_t seed) {
  TensorPiece piece{of.group, of.name, of.shape, box, Tensor::Empty(box.extent, of.dtype, {})};
  const Box whole = Box::Whole(of.shape);
  const uint64_t key = Hash64(of.path()) ^ seed;
  DispatchFloat(of.dtype, [&]<class T>() {
    ForEachRun(whole, box, [&](int64_t from, int64_t to, int64_t count) {
      for (int64_t i = 0; i < count; ++i) {
        const int32_t drawn = static_cast<int32_t>(Philox(key, from + i)[0]);
        piece.tensor.data<T>()[to + i] = static_cast<T>(drawn * 0x1p-20);
      }
    });
  });
  return piece;
}

// True if the piece holds what SamplePiece gives, bit for bit.
inline bool HasSampleValues(const TensorPiece& piece, const SampleTensor& of, uint64_t seed) {
  const Tensor expected = SamplePiece(of, piece.box, seed).tensor;
  return piece.tensor.bytes() == expected.bytes() &&
         std::memcmp(piece.tensor.raw(), expected.raw(), expected.bytes()) == 0;
}

inline std::vector<Box> RandomTiling(const Shape& shape, int64_t parts, Dice& dice) {
  std::vector<Box> boxes = {Box::Whole(shape)};
  for (int64_t tries = 0; static_cast<int64_t>(boxes.size()) < parts && tries < 10 * parts;
       ++tries) {
    Box& box = boxes[dice.Below(boxes.size())];
    const int axis = static_cast<int>(dice.Below(shape.rank()));
    if (box.extent[axis] < 2) continue;
    const int64_t cut = 1 + dice.Below(box.extent[axis] - 1);
    Box rest = box;
    rest.begin[axis] += cut;
    rest.extent[axis] -= cut;
    box.extent[axis] = cut;
    boxes.push_back(rest);
  }
  return boxes;
}

// Pieces by rank that tile every tensor once; some ranks get several boxes of a tensor, some none.
inline std::vector<std::vector<TensorPiece>> RandomPieces(const std::vector<SampleTensor>& tensors,
                                                          int ranks, uint64_t seed, Dice& dice) {
  std::vector<std::vector<TensorPiece>> pieces(ranks);
  for (const SampleTensor& tensor : tensors) {
    for (const Box& box : RandomTiling(tensor.shape, 1 + dice.Below(2 * ranks), dice)) {
      pieces[dice.Below(ranks)].push_back(SamplePiece(tensor, box, seed));
    }
  }
  return pieces;
}

inline Box RandomBox(const Shape& shape, Dice& dice) {
  Box box = Box::Whole(shape);
  for (int i = 0; i < shape.rank(); ++i) {
    box.begin[i] = dice.Below(shape[i]);
    box.extent[i] = 1 + dice.Below(shape[i] - box.begin[i]);
  }
  return box;
}

inline TensorPiece EmptyPiece(const SampleTensor& of, const Box& box) {
  return {of.group, of.name, of.shape, box, Tensor::Zeros(box.extent, of.dtype, {})};
}

}  // namespace lt2
