// AVX-512 F, BW, DQ, VL: the shape of isa_avx2.cpp with lanes of 16, so a chunk is 128 columns in four scale blocks.
#include <algorithm>
#include <cstring>

#include "formats.h"
#include "kernels.h"
#include "scratch.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define ARTESIAN_INLINE inline __attribute__((always_inline))

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl"))), \
                             apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")
#endif

namespace artesian {
namespace {

struct Isa {
  static constexpr const char* kName = "avx512";
  static constexpr int64_t W = 16;
  static constexpr int kDirectRows = 8;
  static constexpr bool kRunning = false;  // thirty-two registers
  using V = __m512;

  ARTESIAN_INLINE static V broadcast(float x) { return _mm512_set1_ps(x); }
  ARTESIAN_INLINE static V zero() { return _mm512_setzero_ps(); }
  ARTESIAN_INLINE static V load(const float* p) { return _mm512_loadu_ps(p); }
  ARTESIAN_INLINE static void store(float* p, V v) { _mm512_storeu_ps(p, v); }
  ARTESIAN_INLINE static V mul(V a, V b) { return _mm512_mul_ps(a, b); }
  ARTESIAN_INLINE static V add(V a, V b) { return _mm512_add_ps(a, b); }
  ARTESIAN_INLINE static V fma(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }
  ARTESIAN_INLINE static float sum(V v) {
    const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
  }
  ARTESIAN_INLINE static __m512i bytes(const uint8_t* p) { return _mm512_loadu_si512(p); }
  // The bfloat16 in the low and in the high half of each lane.
  ARTESIAN_INLINE static V low_half(__m512i v) { return _mm512_castsi512_ps(_mm512_slli_epi32(v, 16)); }
  ARTESIAN_INLINE static V high_half(__m512i v) {
    return _mm512_castsi512_ps(_mm512_and_si512(v, _mm512_set1_epi32(static_cast<int>(0xFFFF0000))));
  }

  struct Unmarked {};
  struct Plain {
    using Mark = Unmarked;
    static constexpr bool kScaled = false, kInOrder = true;
    static constexpr float kGain = 1.0f;
    ARTESIAN_INLINE static float finish(float sum, Mark) { return sum; }
    static int64_t order(int64_t i, int64_t lane) { return W * i + lane; }
  };

  struct Fp8 {
    static constexpr Format kFormat = Format::kFp8;
    static constexpr bool kScaled = false, kInOrder = true;
    static constexpr float kGain = kFp8Gain;
    // Largest magnitude code of each byte column: NaN is the largest code there is, so it is looked for at the end.
    struct Mark {
      __m512i most;
    };
    static int64_t order(int64_t i, int64_t lane) { return W * i + lane; }
    template <int kHalf>
    ARTESIAN_INLINE static void decode(const uint8_t* p, const uint8_t*, V (&v)[4], Mark& mark) {
      p += 64 * kHalf;
      mark.most = _mm512_max_epu8(mark.most, _mm512_and_si512(bytes(p), _mm512_set1_epi8(0x7F)));
      halves(p, v[0], v[1]);
      halves(p + 32, v[2], v[3]);
    }
    // Thirty-two codes as fp16 bits: sign, exponent and mantissa moved to their places, 2^-8 times the value.
    ARTESIAN_INLINE static void halves(const uint8_t* p, V& first, V& second) {
      __m512i w = _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
      w = _mm512_and_si512(_mm512_slli_epi16(w, 7), _mm512_set1_epi16(static_cast<short>(0xBF80)));
      first = _mm512_cvtph_ps(_mm512_castsi512_si256(w));
      second = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(w, 1));
    }
    ARTESIAN_INLINE static float finish(float sum, Mark mark) {
      return _mm512_cmpeq_epi8_mask(mark.most, _mm512_set1_epi8(0x7F)) == 0 ? sum : __builtin_nanf("");
    }
  };

  struct Fp4 : Plain {
    static constexpr Format kFormat = Format::kFp4;
    static constexpr bool kScaled = true, kInOrder = false;
    // A lane holds eight columns of a row in one 32-bit word; vector i takes nibble i. Four lanes are a scale block.
    static int64_t order(int64_t i, int64_t lane) { return 8 * lane + i; }
    template <int kHalf>
    ARTESIAN_INLINE static void decode(const uint8_t* p, const uint8_t*, V (&v)[4], Mark&) {
      const __m512 table = _mm512_load_ps(kFp4);
      const __m512i w = bytes(p);  // the table look-up reads the lowest four bits of a lane and ignores the others
      v[0] = _mm512_permutexvar_ps(_mm512_srli_epi32(w, 16 * kHalf), table);
      v[1] = _mm512_permutexvar_ps(_mm512_srli_epi32(w, 16 * kHalf + 4), table);
      v[2] = _mm512_permutexvar_ps(_mm512_srli_epi32(w, 16 * kHalf + 8), table);
      v[3] = _mm512_permutexvar_ps(_mm512_srli_epi32(w, 16 * kHalf + 12), table);
    }
    ARTESIAN_INLINE static V factors(const uint8_t* s) {
      const __m128 four = _mm_setr_ps(kScale[s[0]], kScale[s[1]], kScale[s[2]], kScale[s[3]]);
      return _mm512_permutexvar_ps(_mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3),
                                   _mm512_castps128_ps512(four));
    }
  };

  struct Bf16 : Plain {
    static constexpr Format kFormat = Format::kBf16;
    static constexpr bool kInOrder = false;
    static int64_t order(int64_t i, int64_t lane) { return i / 2 * 32 + 2 * lane + i % 2; }
    template <int kHalf>
    ARTESIAN_INLINE static void decode(const uint8_t* p, const uint8_t*, V (&v)[4], Mark&) {
      const __m512i a = bytes(p + 128 * kHalf), b = bytes(p + 128 * kHalf + 64);
      v[0] = low_half(a), v[1] = high_half(a), v[2] = low_half(b), v[3] = high_half(b);
    }
  };

  struct F32 : Plain {
    static constexpr Format kFormat = Format::kF32;
    template <int kHalf>
    ARTESIAN_INLINE static void decode(const uint8_t* p, const uint8_t*, V (&v)[4], Mark&) {
      for (int i = 0; i < 4; ++i) v[i] = _mm512_castsi512_ps(bytes(p + 256 * kHalf + 64 * i));
    }
  };
};

#include "body.inc"

}  // namespace
}  // namespace artesian

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

namespace artesian {
const Kernels* avx512_kernels() {
  return avx2_kernels() != nullptr && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                 __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")
             ? &kernels
             : nullptr;
}
}  // namespace artesian

#else
namespace artesian {
const Kernels* avx512_kernels() { return nullptr; }
}  // namespace artesian
#endif
