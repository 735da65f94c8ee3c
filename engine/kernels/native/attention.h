// Attention over each row's own keys, and the indexer's scores. A row is done by itself, so it does not depend on others.
#pragma once
#include "kernels.h"

namespace artesian {

struct Attention {
  const float* query;  // [rows, heads, width]
  int64_t rows, heads, width;
  const float* window;  // [.., width] keys by position, also the values; row t sees those ending at `newest + t`
  int64_t newest, window_size;
  const float* latents;      // [.., width]
  const int64_t* selection;  // [rows, n_selected] rows of latents, -1 for none; or nullptr
  int64_t n_selected;
  const float* sink;  // [heads] in the denominator only
  float scale;        // of the scores, not of the sink
  float* out;         // [rows, heads, width]
};

// Throws std::bad_alloc.
void attend(const Kernels& kernels, const Attention& attention);

struct IndexScores {
  const float* query;   // [rows, heads, width]
  const float* weight;  // [rows, heads], may be negative
  int64_t rows, heads, width;
  const float* keys;  // [n_keys, width]
  int64_t n_keys;
  float* out;  // [rows, n_keys] sum over heads of weight * max(0, query . key)
};

// Throws std::bad_alloc.
void index_scores(const Kernels& kernels, const IndexScores& scores);

}  // namespace artesian
