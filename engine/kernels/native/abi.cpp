// The C interface. Callers have checked shapes, types and contiguity; nothing here trusts alignment.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <initializer_list>
#include <new>

#include "attention.h"
#include "experts.h"
#include "matmul.h"
#include "pool.h"
#include "sublayers.h"

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

template <class Work>
int status_of(Work work) {
  try {
    work();
  } catch (const std::bad_alloc&) {
    return kNoMemory;
  }
  return kDone;
}

}  // namespace

// Bumped with every change of a signature below; the Python side refuses another number.
ARTESIAN_API int artesian_abi() { return 2; }

// Chooses an instruction set, "native" for the widest; gives its name, or nullptr where it cannot run.
ARTESIAN_API const char* artesian_choose(const char* name) {
  const Kernels* set = by_name(name);
  if (set == nullptr) return nullptr;
  chosen.store(set);
  return set->name;
}

ARTESIAN_API void artesian_set_threads(int n) { set_threads(n); }

// y [rows, n] = x [rows, groups * k] times the matrix [n, k] as stored, block-diagonal over `groups`.
ARTESIAN_API int artesian_matmul(int format, const void* weight, const void* scale, int64_t n, int64_t k,
                                 int64_t groups, const float* x, int64_t x_stride, int64_t rows, float* y) {
  const Matrix matrix{static_cast<Format>(format), static_cast<const uint8_t*>(weight),
                      static_cast<const uint8_t*>(scale), n, k};
  return status_of([&] { matmul(*chosen.load(), matrix, groups, x, x_stride, rows, y, n); });
}

// Fields of RoutedExperts; `experts` holds w1, s1, w3, s3, w2, s2 of each.
ARTESIAN_API int artesian_experts(int format, const void* const* experts, int64_t n_experts, const int64_t* starts,
                                  const int64_t* rows, const int64_t* targets, const float* weights, const float* x,
                                  int64_t n_rows, int64_t width, int64_t inner, float limit, float* out) {
  static_assert(sizeof(ExpertBytes) == 6 * sizeof(void*), "six pointers and nothing else");
  const RoutedExperts call{static_cast<Format>(format), reinterpret_cast<const ExpertBytes*>(experts), n_experts,
                           starts, rows, targets, weights, x, n_rows, width, inner, limit, out};
  return status_of([&] { routed_experts(*chosen.load(), call); });
}

// Fields of Attention.
ARTESIAN_API int artesian_attend(const float* query, int64_t rows, int64_t heads, int64_t width, const float* window,
                                 int64_t newest, int64_t window_size, const float* latents, const int64_t* selection,
                                 int64_t n_selected, const float* sink, float scale, float* out) {
  const Attention call{query,   rows,      heads,      width, window, newest, window_size,
                       latents, selection, n_selected, sink,  scale,  out};
  return status_of([&] { attend(*chosen.load(), call); });
}

// Fields of IndexScores.
ARTESIAN_API int artesian_index_scores(const float* query, const float* weight, int64_t rows, int64_t heads,
                                       int64_t width, const float* keys, int64_t n_keys, float* out) {
  const IndexScores call{query, weight, rows, heads, width, keys, n_keys, out};
  return status_of([&] { index_scores(*chosen.load(), call); });
}

// Fields of Norm, Rotation, Mix and so on, in their order.
ARTESIAN_API int artesian_norm(const float* x, const float* weight, int64_t rows, int64_t width, float eps, float* out) {
  return status_of([&] { norm(*chosen.load(), {x, weight, rows, width, eps, out}); });
}

ARTESIAN_API int artesian_rotate(float* x, int64_t rows, int64_t heads, int64_t width, const int64_t* positions,
                                 const float* freq, int64_t pairs, int back) {
  return status_of([&] { rotate({x, rows, heads, width, positions, freq, pairs, back != 0}); });
}

ARTESIAN_API int artesian_mix(const float* h, int64_t rows, int64_t copies, int64_t width, const float* fn,
                              const float* base, const float* scale, float norm_eps, float eps, int64_t rounds,
                              float* pre, float* post, float* comb) {
  return status_of([&] {
    mix(*chosen.load(), {h, rows, copies, width, fn, base, scale, norm_eps, eps, rounds, pre, post, comb});
  });
}

ARTESIAN_API int artesian_collapse(const float* h, const float* pre, const float* weight, int64_t rows, int64_t copies,
                                   int64_t width, float eps, float* out) {
  return status_of([&] { collapse(*chosen.load(), {h, pre, weight, rows, copies, width, eps, out}); });
}

ARTESIAN_API int artesian_update(const float* h, const float* y, const float* post, const float* comb, int64_t rows,
                                 int64_t copies, int64_t width, float* out) {
  return status_of([&] { update(*chosen.load(), {h, y, post, comb, rows, copies, width, out}); });
}

ARTESIAN_API int artesian_total(const float* parts, const float* last, int64_t rows, int64_t n, int64_t width,
                                float* out) {
  return status_of([&] { total({parts, last, rows, n, width, out}); });
}

ARTESIAN_API int artesian_route(const float* logits, const float* bias, int64_t rows, int64_t experts, int64_t used,
                                int over_sum, float scale, int64_t* chosen_experts, float* weights) {
  return status_of([&] { route({logits, bias, rows, experts, used, over_sum != 0, scale, chosen_experts, weights}); });
}

ARTESIAN_API int artesian_choose_groups(const float* scores, int64_t rows, int64_t n, const int64_t* counts,
                                        const bool* allowed, int64_t blocks, int64_t block_size, int64_t wanted,
                                        int64_t* groups) {
  return status_of([&] { choose_groups({scores, rows, n, counts, allowed, blocks, block_size, wanted, groups}); });
}

ARTESIAN_API int artesian_engram(const float* h, const float* projected, const float* weight, int64_t rows,
                                 int64_t copies, int64_t width, float eps, float* out) {
  return status_of([&] { engram(*chosen.load(), {h, projected, weight, rows, copies, width, eps, out}); });
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
