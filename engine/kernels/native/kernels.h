// What an instruction set offers: one table of functions each, all with the same meaning.
//
// Products are added up vector by vector along K in an order that each set has for itself (body.inc says which), and the
// lanes of what that comes to at the end. One row or many, one thread or many: the order is the same, so the bits are.
#pragma once
#include <cstdint>

namespace artesian {

enum class Format : int32_t { kFp8 = 0, kFp4 = 1, kBf16 = 2, kF32 = 3 };

// A matrix [n, k] as stored, or some rows of one. Nothing has to be aligned.
struct Matrix {
  Format format;
  const uint8_t* weight;  // row r starts at r * row_bytes
  const uint8_t* scale;   // e8m0: fp8 one per 32 x 32 block, fp4 one per row and 32 columns
  int64_t n, k;
};

constexpr int64_t row_bytes(Format format, int64_t k) {
  switch (format) {
    case Format::kFp8: return k;
    case Format::kFp4: return k / 2;
    case Format::kBf16: return 2 * k;
    default: return 4 * k;
  }
}

struct Kernels {
  const char* name;
  int64_t chunk;  // elements of K that are summed before the scale is applied; rows are padded to it
  int64_t lanes;

  // Activations in the order this set's decoders give weights, zero-padded: rows first .. first + n - 1 (the first at x,
  // each `stride` after the one before) of `rows` that belong together; out is rows * (k rounded up to a chunk).
  void (*prepare)(Format format, const float* x, int64_t stride, int64_t first, int64_t n, int64_t rows, int64_t k,
                  float* out);

  // y[t * y_stride + r - first] = row r of the matrix times row t of `rows` prepared together, for first <= r < last.
  void (*multiply)(const Matrix& matrix, int64_t first, int64_t last, const float* prepared, int64_t rows, float* y,
                   int64_t y_stride);

  // out[h] = (q + h * stride) . key, for h < count.
  void (*dots)(const float* q, int64_t stride, int64_t count, const float* key, int64_t n, float* out);
  // out[t * n + i] = sum over j < count of weights[t * stride + j] * rows[j][i], in the order of j, for t < n_sums.
  void (*weighted_sums)(const float* const* rows, const float* weights, int64_t stride, int64_t n_sums, int64_t count,
                        int64_t n, float* out);

  // For the benchmark: reads n floats in one stream and adds them; makes 10 * lanes * steps multiply-adds in registers.
  float (*read_floats)(const float* data, int64_t n);
  float (*multiply_add_rate)(int64_t steps);
};

// nullptr where the compiler or the processor lacks it.
const Kernels* portable_kernels();
const Kernels* avx2_kernels();
const Kernels* avx512_kernels();
const Kernels* neon_kernels();

}  // namespace artesian
