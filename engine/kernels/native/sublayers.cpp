#include "sublayers.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "matmul.h"
#include "pool.h"
#include "scratch.h"

namespace artesian {
namespace {

constexpr int64_t kWorthWaking = 1 << 17;  // values

// Every row by itself, on several threads where there is enough to do.
template <class Work>
void each_row(int64_t rows, int64_t values, const Work& work) {
  run_tasks(
      rows, [](void* context, int64_t row) { (*static_cast<const Work*>(context))(row); }, const_cast<Work*>(&work),
      rows * values >= kWorthWaking);
}

float sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }

float inverse_rms(const Kernels& kernels, const float* x, int64_t n, float eps) {
  float squares;
  kernels.dots(x, 0, 1, x, n, &squares);
  return 1.0f / std::sqrt(squares / static_cast<float>(n) + eps);
}

void norm_row(const Kernels& kernels, const float* x, const float* weight, int64_t n, float eps, float* out) {
  const float factor = inverse_rms(kernels, x, n, eps);
  for (int64_t i = 0; i < n; ++i) out[i] = x[i] * factor * weight[i];
}

// Divides the m values at `at`, `step` apart, by their sum and eps.
void over_sum(float* at, int64_t m, int64_t step, float eps) {
  float sum = 0.0f;
  for (int64_t i = 0; i < m; ++i) sum += at[i * step];
  for (int64_t i = 0; i < m; ++i) at[i * step] /= sum + eps;
}

// A softmax over rows and one normalisation of columns, then rows and columns in turn, ending on columns.
void sinkhorn(float* comb, int64_t m, float eps, int64_t rounds) {
  for (int64_t i = 0; i < m; ++i) {
    float* row = comb + i * m;
    const float top = *std::max_element(row, row + m);
    float sum = 0.0f;
    for (int64_t j = 0; j < m; ++j) sum += row[j] = std::exp(row[j] - top);
    for (int64_t j = 0; j < m; ++j) row[j] = row[j] / sum + eps;
  }
  for (int64_t j = 0; j < m; ++j) over_sum(comb + j, m, m, eps);
  for (int64_t round = 1; round < rounds; ++round) {
    for (int64_t i = 0; i < m; ++i) over_sum(comb + i * m, m, 1, eps);
    for (int64_t j = 0; j < m; ++j) over_sum(comb + j, m, m, eps);
  }
}

}  // namespace

void norm(const Kernels& kernels, const Norm& c) {
  each_row(c.rows, c.width, [&](int64_t row) {
    norm_row(kernels, c.x + row * c.width, c.weight, c.width, c.eps, c.out + row * c.width);
  });
}

void rotate(const Rotation& c) {
  each_row(c.rows, c.heads * c.pairs, [&](int64_t row) {
    const float position = static_cast<float>(c.positions[row]);
    float* const tail = c.x + row * c.heads * c.width + c.width - 2 * c.pairs;
    for (int64_t pair = 0; pair < c.pairs; ++pair) {
      const float angle = position * c.freq[pair];  // in float32, as the released runtime has it
      const float cosine = std::cos(angle), sine = c.back ? -std::sin(angle) : std::sin(angle);
      for (int64_t head = 0; head < c.heads; ++head) {
        float* const at = tail + head * c.width + 2 * pair;
        const float even = at[0], odd = at[1];
        at[0] = even * cosine - odd * sine;
        at[1] = even * sine + odd * cosine;
      }
    }
  });
}

void mix(const Kernels& kernels, const Mix& c) {
  static thread_local Scratch memory;
  const int64_t m = c.copies, n = (2 + m) * m, k = m * c.width;
  float* const products = memory.floats(static_cast<size_t>(c.rows * n));
  const Matrix fn{Format::kF32, reinterpret_cast<const uint8_t*>(c.fn), nullptr, n, k};
  matmul(kernels, fn, 1, c.h, k, c.rows, products, n);
  each_row(c.rows, k, [&](int64_t row) {
    const float factor = inverse_rms(kernels, c.h + row * k, k, c.norm_eps);
    const float* z = products + row * n;
    float *pre = c.pre + row * m, *post = c.post + row * m, *comb = c.comb + row * m * m;
    for (int64_t i = 0; i < m; ++i) {
      pre[i] = sigmoid(z[i] * factor * c.scale[0] + c.base[i]) + c.eps;
      post[i] = 2.0f * sigmoid(z[m + i] * factor * c.scale[1] + c.base[m + i]);
    }
    for (int64_t i = 0; i < m * m; ++i) comb[i] = z[2 * m + i] * factor * c.scale[2] + c.base[2 * m + i];
    sinkhorn(comb, m, c.eps, c.rounds);
  });
}

void collapse(const Kernels& kernels, const Collapse& c) {
  each_row(c.rows, c.copies * c.width, [&](int64_t row) {
    static thread_local std::vector<const float*> copies;
    copies.clear();
    for (int64_t i = 0; i < c.copies; ++i) copies.push_back(c.h + (row * c.copies + i) * c.width);
    float* const out = c.out + row * c.width;
    kernels.weighted_sums(copies.data(), c.pre + row * c.copies, 0, 1, c.copies, c.width, out);
    if (c.weight != nullptr) norm_row(kernels, out, c.weight, c.width, c.eps, out);
  });
}

void update(const Kernels& kernels, const Update& c) {
  each_row(c.rows, c.copies * c.copies * c.width, [&](int64_t row) {
    static thread_local std::vector<const float*> from;
    static thread_local std::vector<float> weights;
    const int64_t m = c.copies;
    from.clear();
    for (int64_t i = 0; i < m; ++i) from.push_back(c.h + (row * m + i) * c.width);
    from.push_back(c.y + row * c.width);
    weights.resize(static_cast<size_t>(m + 1));
    for (int64_t j = 0; j < m; ++j) {
      for (int64_t i = 0; i < m; ++i) weights[static_cast<size_t>(i)] = c.comb[(row * m + i) * m + j];
      weights[static_cast<size_t>(m)] = c.post[row * m + j];
      kernels.weighted_sums(from.data(), weights.data(), 0, 1, m + 1, c.width, c.out + (row * m + j) * c.width);
    }
  });
}

void total(const Total& c) {
  each_row(c.rows, (c.n + 1) * c.width, [&](int64_t row) {
    const float *parts = c.parts + row * c.n * c.width, *last = c.last + row * c.width;
    float* const out = c.out + row * c.width;
    for (int64_t i = 0; i < c.width; ++i) {
      float sum = parts[i];
      for (int64_t part = 1; part < c.n; ++part) sum += parts[part * c.width + i];
      out[i] = sum + last[i];
    }
  });
}

void route(const Router& c) {
  each_row(c.rows, 16 * c.experts, [&](int64_t row) {
    static thread_local std::vector<float> scores, biased;
    scores.resize(static_cast<size_t>(c.experts));
    biased.resize(static_cast<size_t>(c.experts));
    for (int64_t i = 0; i < c.experts; ++i) {
      const float logit = c.logits[row * c.experts + i];
      const size_t at = static_cast<size_t>(i);
      scores[at] = std::sqrt(logit > 20.0f ? logit : std::log1p(std::exp(logit)));
      biased[at] = scores[at] + c.bias[i];
    }
    int64_t* const chosen = c.chosen + row * c.used;
    for (int64_t i = 0, n = 0; i < c.experts; ++i) {
      int64_t rank = n;  // behind all that are as large: the lowest of equal ones comes first
      while (rank > 0 && biased[static_cast<size_t>(i)] > biased[static_cast<size_t>(chosen[rank - 1])]) --rank;
      if (rank == c.used) continue;
      n = std::min(n + 1, c.used);
      std::copy_backward(chosen + rank, chosen + n - 1, chosen + n);
      chosen[rank] = i;
    }
    float* const weights = c.weights + row * c.used;
    float sum = 0.0f;
    for (int64_t rank = 0; rank < c.used; ++rank) sum += weights[rank] = scores[static_cast<size_t>(chosen[rank])];
    for (int64_t rank = 0; rank < c.used; ++rank) {
      weights[rank] = (c.over_sum ? weights[rank] / (sum + 1e-20f) : weights[rank]) * c.scale;
    }
  });
}

void choose_groups(const Groups& c) {
  each_row(c.rows, c.n, [&](int64_t row) {
    static thread_local std::vector<float> values;
    const float* const scores = c.scores + row * c.n;
    int64_t *next = c.chosen + row * c.wanted, *const end = next + c.wanted;
    const int64_t count = std::min(c.counts[row], c.n);
    const auto open = [&](int64_t i) {
      if (c.allowed == nullptr) return true;
      const int64_t block = i / c.block_size;
      return block < c.blocks && c.allowed[row * c.blocks + block];
    };
    values.clear();
    for (int64_t i = 0; i < count; ++i) {
      if (open(i) && scores[i] > -std::numeric_limits<float>::infinity()) values.push_back(scores[i]);
    }
    float least = -std::numeric_limits<float>::infinity();  // whoever is above is in
    int64_t level = 0;                                      // so many of those that are equal to it, too
    if (static_cast<int64_t>(values.size()) > c.wanted) {
      const auto last = values.begin() + (c.wanted - 1);
      std::nth_element(values.begin(), last, values.end(), std::greater<float>());
      least = *last;
      level = c.wanted - std::count_if(values.begin(), last, [&](float value) { return value > least; });
    }
    for (int64_t i = 0; i < count; ++i) {
      if (!open(i) || !(scores[i] >= least) || scores[i] == -std::numeric_limits<float>::infinity()) continue;
      if (scores[i] == least && level-- <= 0) continue;
      *next++ = i;
    }
    std::fill(next, end, -1);
  });
}

void engram(const Kernels& kernels, const Engram& c) {
  each_row(c.rows, c.copies * c.width, [&](int64_t row) {
    static thread_local Scratch memory;
    float* const weighted = memory.floats(static_cast<size_t>(c.width));
    const float* const value = c.projected + (row * (c.copies + 1) + c.copies) * c.width;
    for (int64_t copy = 0; copy < c.copies; ++copy) {
      const float* const h = c.h + (row * c.copies + copy) * c.width;
      const float* const key = c.projected + (row * (c.copies + 1) + copy) * c.width;
      const float* const weight = c.weight + copy * c.width;
      float* const out = c.out + (row * c.copies + copy) * c.width;
      for (int64_t i = 0; i < c.width; ++i) weighted[i] = h[i] * weight[i];
      float dot;
      kernels.dots(weighted, 0, 1, key, c.width, &dot);
      dot *= inverse_rms(kernels, h, c.width, c.eps) * inverse_rms(kernels, key, c.width, c.eps);
      dot /= std::sqrt(static_cast<float>(c.width));
      const float gate = sigmoid(std::copysign(std::sqrt(std::max(std::abs(dot), 1e-6f)), dot));
      for (int64_t i = 0; i < c.width; ++i) out[i] = h[i] + gate * value[i];
    }
  });
}

}  // namespace artesian
