#include "matmul.h"

#include <algorithm>

#include "pool.h"
#include "scratch.h"

namespace artesian {
namespace {

// A task below this is done by whoever has it: waking a sleeping thread takes some 10 microseconds, in which one thread
// reads about this much.
constexpr int64_t kTaskBytes = 128 << 10;
constexpr int64_t kTasksPerThread = 8;
constexpr int64_t kRowsAligned = 32;  // rows of one fp8 scale block stay together
constexpr int64_t kRowsTogether = 4;  // others need only fill a panel
constexpr int64_t kPreparedTogether = 4;  // rows of activations that a task prepares
constexpr int64_t kWorthPreparing = 1 << 16;  // activations

int64_t aligned_rows(Format format) { return format == Format::kFp8 ? kRowsAligned : kRowsTogether; }

struct Product {
  const Kernels& kernels;
  const Matrix& matrix;
  int64_t groups, rows_per_group, aligned, per_task, tasks_per_group;
  const float* prepared;
  int64_t prepared_per_group, rows;
  float* y;
  int64_t y_stride;
};

struct Preparation {
  const Kernels& kernels;
  const Matrix& matrix;
  const float* x;
  int64_t x_stride, rows, tasks_per_group, per_group;
  float* prepared;
};

void run_preparation(void* context, int64_t task) {
  const Preparation& p = *static_cast<const Preparation*>(context);
  const int64_t group = task / p.tasks_per_group, first = task % p.tasks_per_group * kPreparedTogether;
  p.kernels.prepare(p.matrix.format, p.x + first * p.x_stride + group * p.matrix.k, p.x_stride, first,
                    std::min(kPreparedTogether, p.rows - first), p.rows, p.matrix.k, p.prepared + group * p.per_group);
}

void run_product(void* context, int64_t task) {
  const Product& p = *static_cast<const Product*>(context);
  const int64_t group = task / p.tasks_per_group, part = task % p.tasks_per_group;
  const int64_t start = group * p.rows_per_group, end = start + p.rows_per_group;
  // Cuts lie at multiples of the alignment in the whole matrix, wherever the group begins.
  const int64_t base = start / p.aligned * p.aligned;
  const int64_t first = std::max(start, base + part * p.per_task);
  const int64_t last = std::min(end, base + (part + 1) * p.per_task);
  if (first < last) {
    p.kernels.multiply(p.matrix, first, last, p.prepared + group * p.prepared_per_group, p.rows, p.y + first,
                       p.y_stride);
  }
}

}  // namespace

int64_t rows_per_task(Format format, int64_t n, int64_t k, int64_t rows) {
  const int64_t bytes = row_bytes(format, k) * std::max<int64_t>(1, rows / 2);
  const int64_t worth = (kTaskBytes + bytes - 1) / bytes;
  const int64_t shared = n / (kTasksPerThread * threads());
  const int64_t aligned = aligned_rows(format);
  return (std::max(worth, shared) + aligned - 1) / aligned * aligned;
}

void matmul(const Kernels& kernels, const Matrix& matrix, int64_t groups, const float* x, int64_t x_stride,
            int64_t rows, float* y, int64_t y_stride) {
  static thread_local Scratch memory;
  const int64_t per_group = prepared_floats(kernels, rows, matrix.k);
  float* prepared = memory.floats(static_cast<size_t>(groups * per_group));
  const int64_t tasks_to_prepare = (rows + kPreparedTogether - 1) / kPreparedTogether;
  Preparation preparation{kernels, matrix, x, x_stride, rows, tasks_to_prepare, per_group, prepared};
  run_tasks(groups * tasks_to_prepare, run_preparation, &preparation, groups * per_group >= kWorthPreparing);
  const int64_t n = matrix.n / groups;
  const int64_t per_task = rows_per_task(matrix.format, n, matrix.k, rows);
  const int64_t aligned = aligned_rows(matrix.format);
  const int64_t tasks_per_group = (n + aligned - 1 + per_task - 1) / per_task;
  Product product{kernels,  matrix,    groups, n, aligned, per_task, tasks_per_group,
                  prepared, per_group, rows,   y, y_stride};
  run_tasks(groups * tasks_per_group, run_product, &product);
}

}  // namespace artesian
