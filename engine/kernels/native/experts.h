// The routed experts of a layer: all rows and all experts that are in memory now, in one call.
#pragma once
#include "kernels.h"

namespace artesian {

struct ExpertBytes {
  const uint8_t *w1, *s1;  // [inner, width] the gate
  const uint8_t *w3, *s3;  // [inner, width] the other branch
  const uint8_t *w2, *s2;  // [width, inner]
};

struct RoutedExperts {
  Format format;  // of all their matrices
  const ExpertBytes* experts;
  int64_t n_experts;
  const int64_t* starts;   // [n_experts + 1]: uses starts[e] .. starts[e + 1] - 1 are of expert e
  const int64_t* rows;     // [uses] row of x
  const int64_t* targets;  // [uses] row of out
  const float* weights;    // [uses] of the router
  const float* x;          // [n_rows, width]
  int64_t n_rows, width, inner;
  float limit;  // of the gated unit's inputs; 0 is none
  float* out;   // [.., width]: w2 (weight * silu(min(w1 x, limit)) * clamp(w3 x, limit)) of each use, not added up
};

// Throws std::bad_alloc.
void routed_experts(const Kernels& kernels, const RoutedExperts& call);

}  // namespace artesian
