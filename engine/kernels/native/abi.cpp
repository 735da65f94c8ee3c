// The C interface. Callers have checked shapes, types and contiguity; nothing here trusts alignment.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <initializer_list>
#include <new>

#include "matmul.h"
#include "pool.h"

#define ARTESIAN_API extern "C" __attribute__((visibility("default")))

namespace {

using namespace artesian;

std::atomic<const Kernels*> chosen{nullptr};

const Kernels* by_name(const char* name) {
  for (const Kernels* set : {avx512_kernels(), avx2_kernels(), neon_kernels(), portable_kernels()}) {
    if (set != nullptr && (std::strcmp(name, "native") == 0 || std::strcmp(name, set->name) == 0)) return set;
  }
  return nullptr;
}

constexpr int kDone = 0, kNoMemory = 1;

}  // namespace

// Bumped with every change of a signature below; the Python side refuses another number.
ARTESIAN_API int artesian_abi() { return 1; }

// Chooses an instruction set, "native" for the widest; gives its name, or nullptr where it cannot run.
ARTESIAN_API const char* artesian_choose(const char* name) {
  const Kernels* set = by_name(name);
  if (set == nullptr) return nullptr;
  chosen.store(set);
  return set->name;
}

ARTESIAN_API void artesian_set_threads(int n) { set_threads(n); }

// y [rows, n] = x [rows, groups * k] times the matrix [n, k] as stored, block-diagonal over `groups`.
ARTESIAN_API int artesian_matmul(int format, const void* weight, const void* scale, int64_t n, int64_t k, int64_t groups,
                                 const float* x, int64_t x_stride, int64_t rows, float* y) {
  const Matrix matrix{static_cast<Format>(format), static_cast<const uint8_t*>(weight),
                      static_cast<const uint8_t*>(scale), n, k};
  try {
    matmul(*chosen.load(), matrix, groups, x, x_stride, rows, y, n);
  } catch (const std::bad_alloc&) {
    return kNoMemory;
  }
  return kDone;
}

// The benchmark's floors, on as many threads as a product may use: reads n floats once; makes multiply-adds, and gives
// their number.
ARTESIAN_API void artesian_read(const float* data, int64_t n) {
  struct Work {
    const Kernels* set;
    const float* data;
    int64_t n, per_task;
    std::atomic<float> sink;
  } work{chosen.load(), data, n, (n / (4 * threads()) / 64 + 1) * 64, {0.0f}};
  run_tasks(
      (n + work.per_task - 1) / work.per_task,
      [](void* context, int64_t task) {
        Work& w = *static_cast<Work*>(context);
        const int64_t first = task * w.per_task;
        w.sink.store(w.set->read_floats(w.data + first, std::min(w.per_task, w.n - first)));
      },
      &work);
}

ARTESIAN_API int64_t artesian_multiply_adds(int64_t steps) {
  struct Work {
    const Kernels* set;
    int64_t steps;
    std::atomic<float> sink;
  } work{chosen.load(), steps, {0.0f}};
  run_tasks(
      threads(),
      [](void* context, int64_t) {
        Work& w = *static_cast<Work*>(context);
        w.sink.store(w.set->multiply_add_rate(w.steps));
      },
      &work);
  return 10 * work.set->lanes * steps * threads();
}
