#include "attention.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "pool.h"
#include "scratch.h"

namespace artesian {
namespace {

constexpr int64_t kHeadsPerTask = 8;  // whose queries or sums, released, fill half the first cache
constexpr int64_t kIndexHeads = 16;   // likewise of the indexer
constexpr int64_t kKeysPerTask = 512;
constexpr int64_t kWorthWaking = 1 << 17;  // products

struct AttentionCall {
  const Kernels& kernels;
  const Attention& a;
  int64_t tasks_per_row;
};

// The keys a row sees: its window from the oldest on, then its selection.
void collect(const Attention& a, int64_t row, std::vector<const float*>& keys) {
  keys.clear();
  const int64_t newest = a.newest + row;
  for (int64_t i = std::max<int64_t>(0, newest - a.window_size + 1); i <= newest; ++i) {
    keys.push_back(a.window + i * a.width);
  }
  if (a.selection == nullptr) return;
  const int64_t* chosen = a.selection + row * a.n_selected;
  for (int64_t i = 0; i < a.n_selected; ++i) {
    if (chosen[i] >= 0) keys.push_back(a.latents + chosen[i] * a.width);
  }
}

void attend_some_heads(void* context, int64_t task) {
  static thread_local std::vector<const float*> keys;
  static thread_local Scratch memory;
  const AttentionCall& call = *static_cast<const AttentionCall*>(context);
  const Attention& a = call.a;
  const int64_t row = task / call.tasks_per_row, first = task % call.tasks_per_row * kHeadsPerTask;
  const int64_t n_heads = std::min(kHeadsPerTask, a.heads - first);
  collect(a, row, keys);
  const int64_t n_keys = static_cast<int64_t>(keys.size());
  float* scores = memory.floats(static_cast<size_t>(n_heads * n_keys));  // [head][key]
  const float* query = a.query + (row * a.heads + first) * a.width;
  for (int64_t j = 0; j < n_keys; ++j) {
    float of_key[kHeadsPerTask];
    call.kernels.dots(query, a.width, n_heads, keys[static_cast<size_t>(j)], a.width, of_key);
    for (int64_t h = 0; h < n_heads; ++h) scores[h * n_keys + j] = of_key[h] * a.scale;
  }
  for (int64_t h = 0; h < n_heads; ++h) {
    float* weight = scores + h * n_keys;
    float top = a.sink[first + h];
    for (int64_t j = 0; j < n_keys; ++j) top = std::max(top, weight[j]);
    float total = std::exp(a.sink[first + h] - top);
    for (int64_t j = 0; j < n_keys; ++j) total += weight[j] = std::exp(weight[j] - top);
    for (int64_t j = 0; j < n_keys; ++j) weight[j] /= total;
  }
  call.kernels.weighted_sums(keys.data(), scores, n_keys, n_heads, n_keys, a.width,
                             a.out + (row * a.heads + first) * a.width);
}

struct IndexCall {
  const Kernels& kernels;
  const IndexScores& s;
  int64_t tasks_per_row;
};

void score_some_keys(void* context, int64_t task) {
  const IndexCall& call = *static_cast<const IndexCall*>(context);
  const IndexScores& s = call.s;
  const int64_t row = task / call.tasks_per_row, from = task % call.tasks_per_row * kKeysPerTask;
  const int64_t end = std::min(from + kKeysPerTask, s.n_keys);
  float* const sums = s.out + row * s.n_keys;
  std::fill(sums + from, sums + end, 0.0f);
  for (int64_t first = 0; first < s.heads; first += kIndexHeads) {
    const int64_t n_heads = std::min(kIndexHeads, s.heads - first);
    const float *query = s.query + (row * s.heads + first) * s.width, *weight = s.weight + row * s.heads + first;
    for (int64_t j = from; j < end; ++j) {
      float of_key[kIndexHeads];
      call.kernels.dots(query, s.width, n_heads, s.keys + j * s.width, s.width, of_key);
      float sum = sums[j];
      for (int64_t h = 0; h < n_heads; ++h) sum += std::max(of_key[h], 0.0f) * weight[h];
      sums[j] = sum;
    }
  }
}

}  // namespace

void attend(const Kernels& kernels, const Attention& attention) {
  AttentionCall call{kernels, attention, (attention.heads + kHeadsPerTask - 1) / kHeadsPerTask};
  const int64_t n_keys = attention.window_size + attention.n_selected;
  const bool worth = attention.rows * attention.heads * attention.width * n_keys >= kWorthWaking;
  run_tasks(attention.rows * call.tasks_per_row, attend_some_heads, &call, worth);
}

void index_scores(const Kernels& kernels, const IndexScores& scores) {
  IndexCall call{kernels, scores, (scores.n_keys + kKeysPerTask - 1) / kKeysPerTask};
  const bool worth = scores.rows * scores.heads * scores.width * scores.n_keys >= kWorthWaking;
  run_tasks(scores.rows * call.tasks_per_row, score_some_keys, &call, worth);
}

}  // namespace artesian
