#include "checkpoints/import.h"

#include <algorithm>

#include "checkpoints/float_values.h"
#include "checkpoints/write_rows.h"
#include "core/status_macros.h"
#include "core/strings.h"

namespace lt2 {
namespace {

// A parameter's rows, converted to the stored tensor's dtype.
class ImportStream : public RowStream {
 public:
  // All must outlive the stream.
  ImportStream(const SafetensorsModel& model, const ImportedParam& param,
               const StoredTensor& stored)
      : model_(model),
        param_(param),
        stored_(stored),
        row_values_(stored.shape.size() / std::max<int64_t>(1, stored.shape[0])),
        end_(stored.shape.size() == 0 ? 0 : stored.shape[0]) {}

  bool done() const override { return row_ == end_; }

  absl::StatusOr<TensorRows> Next() override {
    const Box rows = Box::RowsOf(stored_.shape, row_, std::min(row_ + RowsAtATime(stored_), end_));
    bytes_.assign(rows.size() * SizeOf(stored_.dtype), std::byte{0});
    if (!param_.from.empty()) RETURN_IF_ERROR(ReadInto(rows.size()));
    row_ += rows.extent[0];
    return TensorRows{.box = rows, .dtype = stored_.dtype, .bytes = bytes_};
  }

 private:
  absl::Status ReadInto(int64_t values) {
    const FloatType type = *FloatTypeOf(model_.Find(param_.from)->dtype);
    read_.resize(values * SizeOf(type));
    const int64_t first = param_.begin + row_ * row_values_;
    RETURN_IF_ERROR(model_.Read(param_.from, first * SizeOf(type), read_));
    ConvertFloats(type, read_, FloatTypeOf(stored_.dtype), bytes_);
    return absl::OkStatus();
  }

  const SafetensorsModel& model_;
  const ImportedParam& param_;
  const StoredTensor& stored_;
  const int64_t row_values_;
  int64_t row_ = 0, end_;
  std::vector<std::byte> read_, bytes_;
};

absl::StatusOr<DType> KeptAs(const SafetensorsModel& model, const ImportedParam& param) {
  if (param.from.empty()) return DType::kF32;
  const SafeTensor& tensor = *model.Find(param.from);
  const std::optional<FloatType> type = FloatTypeOf(tensor.dtype);
  if (type) return HeldAs(*type);
  return absl::InvalidArgumentError(StrCat(model.path(), ": ", tensor.name, " is stored as ",
                                           tensor.dtype,
                                           "; parameters are read from F32, F64, BF16 and F16"));
}

}  // namespace

absl::StatusOr<int64_t> ImportParams(const SafetensorsModel& model,
                                     const std::vector<ImportedParam>& params,
                                     const CheckpointInfo& info, const std::string& to,
                                     const ScanOptions& options) {
  RowSource source;
  for (const ImportedParam& param : params) {
    ASSIGN_OR_RETURN(const DType dtype, KeptAs(model, param));
    source.tensors.push_back(
        {.group = "param", .name = param.name, .dtype = dtype, .shape = param.shape, .boxes = {}});
  }
  source.open = [&](size_t i) {
    return std::make_unique<ImportStream>(model, params[i], source.tensors[i]);
  };
  CheckpointInfo one_file = info;
  one_file.ranks = 1;
  return WriteCheckpoint(to, std::move(one_file), source, options);
}

}  // namespace lt2
