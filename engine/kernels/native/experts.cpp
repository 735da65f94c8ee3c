#include "experts.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "matmul.h"
#include "pool.h"
#include "scratch.h"

namespace artesian {
namespace {

constexpr int64_t kWorthWaking = 1 << 18;  // weights
constexpr int64_t kUsesTogether = 1024;    // their rows and results lie in memory at once: 70 MB of the release's widths

struct Call {
  const Kernels& kernels;
  const RoutedExperts& r;
  int64_t n_uses;
  int64_t up_rows, up_tasks, down_rows, down_tasks;  // rows of a task and tasks of an expert, in each half
  int64_t x_stride, inner_stride;                    // of prepared rows; x_stride is 0 when all uses share one
  float *prepared, *gate, *up, *prepared_inner, *result;
};

// The expert of a use, and the uses it has.
struct Place {
  int64_t start, n;
};

Place place_of(const RoutedExperts& r, int64_t use) {
  const int64_t* next = std::upper_bound(r.starts, r.starts + r.n_experts + 1, use);
  return {next[-1], next[0] - next[-1]};
}

void prepare_use(void* context, int64_t use) {
  const Call& c = *static_cast<const Call*>(context);
  const Place place = c.x_stride == 0 ? Place{0, 1} : place_of(c.r, use);
  c.kernels.prepare(c.r.format, c.r.x + c.r.rows[use] * c.r.width, c.r.width, use - place.start, 1, place.n, c.r.width,
                    c.prepared + place.start * c.x_stride);
}

void up_and_gate(void* context, int64_t task) {
  const Call& c = *static_cast<const Call*>(context);
  const RoutedExperts& r = c.r;
  const int64_t expert = task / c.up_tasks, first = task % c.up_tasks * c.up_rows;
  const int64_t last = std::min(first + c.up_rows, r.inner);
  const int64_t start = r.starts[expert], n = r.starts[expert + 1] - start;
  if (n == 0 || first >= last) return;
  const ExpertBytes& bytes = r.experts[expert];
  const float* x = c.prepared + start * c.x_stride;
  float* gate = c.gate + start * r.inner + first;
  float* up = c.up + start * r.inner + first;
  c.kernels.multiply({r.format, bytes.w1, bytes.s1, r.inner, r.width}, first, last, x, n, gate, r.inner);
  c.kernels.multiply({r.format, bytes.w3, bytes.s3, r.inner, r.width}, first, last, x, n, up, r.inner);
  for (int64_t use = 0; use < n; ++use, gate += r.inner, up += r.inner) {
    const float weight = r.weights[start + use];
    for (int64_t i = 0; i < last - first; ++i) {
      float g = gate[i], u = up[i];
      if (r.limit > 0.0f) {
        g = g > r.limit ? r.limit : g;  // written so that NaN stays NaN
        u = u > r.limit ? r.limit : u < -r.limit ? -r.limit : u;
      }
      gate[i] = g / (1.0f + std::exp(-g)) * u * weight;
    }
  }
}

void prepare_inner(void* context, int64_t use) {
  const Call& c = *static_cast<const Call*>(context);
  const Place place = place_of(c.r, use);
  c.kernels.prepare(c.r.format, c.gate + use * c.r.inner, c.r.inner, use - place.start, 1, place.n, c.r.inner,
                    c.prepared_inner + place.start * c.inner_stride);
}

void down(void* context, int64_t task) {
  const Call& c = *static_cast<const Call*>(context);
  const RoutedExperts& r = c.r;
  const int64_t expert = task / c.down_tasks, first = task % c.down_tasks * c.down_rows;
  const int64_t last = std::min(first + c.down_rows, r.width);
  const int64_t start = r.starts[expert], n = r.starts[expert + 1] - start;
  if (n == 0 || first >= last) return;
  const ExpertBytes& bytes = r.experts[expert];
  c.kernels.multiply({r.format, bytes.w2, bytes.s2, r.width, r.inner}, first, last,
                     c.prepared_inner + start * c.inner_stride, n, c.result + start * r.width + first, r.width);
  for (int64_t use = start; use < start + n; ++use) {
    std::memcpy(r.out + r.targets[use] * r.width + first, c.result + use * r.width + first,
                static_cast<size_t>(last - first) * sizeof(float));
  }
}

void run_together(const Kernels& kernels, const RoutedExperts& r) {
  static thread_local Scratch memory;
  Call call{kernels, r, r.starts[r.n_experts], 0, 0, 0, 0, 0, 0, nullptr, nullptr, nullptr, nullptr, nullptr};
  const int64_t uses = call.n_uses, per_expert = (uses + r.n_experts - 1) / r.n_experts;
  const bool shared = r.n_rows == 1;
  call.x_stride = shared ? 0 : prepared_floats(kernels, 1, r.width);
  call.inner_stride = prepared_floats(kernels, 1, r.inner);
  const int64_t x_floats = shared ? prepared_floats(kernels, 1, r.width) : uses * call.x_stride;
  call.prepared = memory.floats(
      static_cast<size_t>(x_floats + uses * (2 * r.inner + call.inner_stride + r.width)));
  call.prepared_inner = call.prepared + x_floats;
  call.gate = call.prepared_inner + uses * call.inner_stride;
  call.up = call.gate + uses * r.inner;
  call.result = call.up + uses * r.inner;
  // All experts are handed out together, so few rows of each already keep every thread busy.
  call.up_rows = rows_per_task(r.format, r.inner, r.width, 2 * per_expert);
  call.down_rows = rows_per_task(r.format, r.width, r.inner, per_expert);
  call.up_tasks = (r.inner + call.up_rows - 1) / call.up_rows;
  call.down_tasks = (r.width + call.down_rows - 1) / call.down_rows;
  const bool worth = uses * r.inner * r.width >= kWorthWaking;
  run_tasks(shared ? 1 : uses, prepare_use, &call, worth);
  run_tasks(r.n_experts * call.up_tasks, up_and_gate, &call, worth);
  run_tasks(uses, prepare_inner, &call, worth);
  run_tasks(r.n_experts * call.down_tasks, down, &call, worth);
}

}  // namespace

void routed_experts(const Kernels& kernels, const RoutedExperts& r) {
  const int64_t uses = r.starts[r.n_experts];
  std::vector<int64_t> starts;
  for (int64_t from = 0, expert = 0; from < uses;) {
    while (r.starts[expert + 1] <= from) ++expert;
    // Whole experts, as many as fit; of one that alone is too much, a part.
    const int64_t most = std::min(uses, from + kUsesTogether);
    const int64_t whole = *(std::upper_bound(r.starts, r.starts + r.n_experts + 1, most) - 1);
    const int64_t to = whole > from ? whole : most;
    starts.assign(1, 0);
    for (int64_t e = expert; e < r.n_experts && r.starts[e] < to; ++e) {
      starts.push_back(std::min(r.starts[e + 1], to) - from);
    }
    RoutedExperts part = r;
    part.experts += expert, part.rows += from, part.targets += from, part.weights += from;
    part.starts = starts.data(), part.n_experts = static_cast<int64_t>(starts.size()) - 1;
    run_together(kernels, part);
    from = to;
  }
}

}  // namespace artesian
