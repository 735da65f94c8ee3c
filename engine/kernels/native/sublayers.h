// What lies between the products of a layer: norms, rotation, hyper-connections, the router, the choice of groups, the
// engram gate. Row by row, so a row does not depend on others. Each would be a dozen to a hundred small steps of torch.
#pragma once
#include "kernels.h"

namespace artesian {

// out = weight * x / rms(x). All [rows, width] but weight [width]; out may be x.
struct Norm {
  const float *x, *weight;
  int64_t rows, width;
  float eps;
  float* out;
};
void norm(const Kernels& kernels, const Norm& call);

// Turns the last 2 * pairs values of each head in place by the angle position * freq, backwards if asked.
struct Rotation {
  float* x;  // [rows, heads, width]
  int64_t rows, heads, width;
  const int64_t* positions;  // [rows]
  const float* freq;         // [pairs]
  int64_t pairs;
  bool back;
};
void rotate(const Rotation& call);

// The three coefficient sets of a half block.
struct Mix {
  const float* h;  // [rows, copies, width]
  int64_t rows, copies, width;
  const float *fn, *base, *scale;  // [(2 + copies) * copies, copies * width], [(2 + copies) * copies], [3]
  float norm_eps, eps;
  int64_t rounds;  // of Sinkhorn
  float *pre, *post, *comb;  // [rows, copies], the same, [rows, copies, copies]
};
// Throws std::bad_alloc.
void mix(const Kernels& kernels, const Mix& call);

// out = sum over copies of pre[c] * h[c], normed if there is a weight.
struct Collapse {
  const float *h, *pre, *weight;  // [rows, copies, width], [rows, copies], [width] or nullptr
  int64_t rows, copies, width;
  float eps;
  float* out;  // [rows, width]
};
// Throws std::bad_alloc.
void collapse(const Kernels& kernels, const Collapse& call);

// out[j] = post[j] * y + sum over i of comb[i, j] * h[i].
struct Update {
  const float *h, *y, *post, *comb;  // [rows, copies, width], [rows, width], [rows, copies], [rows, copies, copies]
  int64_t rows, copies, width;
  float* out;  // [rows, copies, width], not h
};
// Throws std::bad_alloc.
void update(const Kernels& kernels, const Update& call);

// out = parts[0] + parts[1] + .. + last, in that order.
struct Total {
  const float *parts, *last;  // [rows, n, width], [rows, width]
  int64_t rows, n, width;
  float* out;  // [rows, width]
};
void total(const Total& call);

// sqrt(softplus(logit)) are scores; those whose score + bias is largest win, of equal ones the lowest; their scores, over
// their sum if asked, times scale, are the weights.
struct Router {
  const float *logits, *bias;  // [rows, experts], [experts]
  int64_t rows, experts, used;
  bool over_sum;
  float scale;
  int64_t* chosen;  // [rows, used], the best first
  float* weights;   // [rows, used]
};
// Throws std::bad_alloc.
void route(const Router& call);

// The `wanted` largest scores of each row among the first count that are allowed, ascending; of equal ones the lowest
// index; -1 behind the last. Scores of -infinity are never chosen.
struct Groups {
  const float* scores;  // [rows, n]
  int64_t rows, n;
  const int64_t* counts;  // [rows]
  const bool* allowed;    // [rows, blocks] of block_size groups each, what lies behind is not allowed; or nullptr
  int64_t blocks, block_size;
  int64_t wanted;
  int64_t* chosen;  // [rows, wanted]
};
// Throws std::bad_alloc.
void choose_groups(const Groups& call);

// out[c] = h[c] + sigmoid(signed root of the normed dot product of h[c] and key[c]) * value.
struct Engram {
  const float* h;          // [rows, copies, width]
  const float* projected;  // [rows, (copies + 1) * width]: the keys of the copies, then the value
  const float* weight;     // [copies, width]
  int64_t rows, copies, width;
  float eps;
  float* out;  // [rows, copies, width]
};
// Throws std::bad_alloc.
void engram(const Kernels& kernels, const Engram& call);

}  // namespace artesian
