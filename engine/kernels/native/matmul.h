// Products of whole matrices: activations are prepared, rows of the matrix are handed out to threads.
#pragma once
#include "kernels.h"

namespace artesian {

// y[t, r] = sum over k of x[t, group(r) * k + k'] * W[r, k'], groups of n / groups consecutive rows; one group is the
// plain product. x [rows, groups * k] with x_stride floats a row, y [rows, n] with y_stride. Throws std::bad_alloc.
void matmul(const Kernels& kernels, const Matrix& matrix, int64_t groups, const float* x, int64_t x_stride,
            int64_t rows, float* y, int64_t y_stride);

// Floats of prepared activations.
inline int64_t prepared_floats(const Kernels& kernels, int64_t rows, int64_t k) {
  return rows * ((k + kernels.chunk - 1) / kernels.chunk * kernels.chunk);
}

// Matrix rows for one task: enough to be worth waking a thread for, few enough to share out. Never a cut that shows: a
// row's result does not depend on it.
int64_t rows_per_task(Format format, int64_t n, int64_t k, int64_t rows);

}  // namespace artesian
