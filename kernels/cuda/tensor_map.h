// How the copy engine of Hopper finds boxes of a tensor: made on the host, given to kernels by
// value (bulk_copy.cuh). What a box has outside of its tensor arrives as zeros.
#pragma once

#include <cuda.h>

#include "core/tensor.h"

namespace lt2::cuda {

// Boxes of `rows` rows and 64 columns of one head of x [tokens, heads, size] in bf16, each a panel
// of warpgroup.cuh. x begins at a multiple of 16 bytes and size is a multiple of 8.
CUtensorMap PanelMap(const Tensor& x, int rows);

CUtensorMap PanelMap(const void* x, int64_t tokens, int64_t heads, int64_t size, int rows);

// Boxes of `rows` rows and `columns` columns, 64 or 32, of a matrix x [height, width] in bf16, each
// a panel. x begins at a multiple of 16 bytes and width is a multiple of 8.
CUtensorMap MatrixMap(const void* x, int64_t height, int64_t width, int rows, int columns);

// Boxes of `rows` rows and `columns` columns, at most 256, of a matrix x [height, width] in bf16,
// as they are. x begins at a multiple of 16 bytes and width is a multiple of 8.
CUtensorMap RowsMap(const void* x, int64_t height, int64_t width, int rows, int columns);

// Boxes of `rows` rows and 32 columns of floats, of a matrix x [height, width]: 128 bytes a row,
// whose 16-byte pieces are permuted as a panel's. x begins at a multiple of 16 bytes and width is a
// multiple of 4.
CUtensorMap FloatPanelMap(const void* x, int64_t height, int64_t width, int rows);

// Boxes of `count` floats of a row of x [rows, columns]. Rows are `stride` floats apart, x begins
// at a multiple of 16 bytes; stride and count are multiples of 4.
CUtensorMap FloatMap(const void* x, int64_t rows, int64_t columns, int64_t stride, int count);

}  // namespace lt2::cuda
