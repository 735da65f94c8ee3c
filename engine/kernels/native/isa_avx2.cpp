// AVX2 with FMA and F16C: what every x86-64 desktop processor of the last ten years has.
#include <algorithm>
#include <cstring>

#include "formats.h"
#include "kernels.h"
#include "scratch.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define ARTESIAN_INLINE inline __attribute__((always_inline))

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#endif

namespace artesian {
namespace {

struct Isa {
  static constexpr const char* kName = "avx2";
  static constexpr int64_t W = 8;
  static constexpr int kDirectRows = 8;
  static constexpr bool kRunning = true;  // sixteen registers: none to spare for the sums of a chunk
  using V = __m256;

  ARTESIAN_INLINE static V broadcast(float x) { return _mm256_set1_ps(x); }
  ARTESIAN_INLINE static V zero() { return _mm256_setzero_ps(); }
  ARTESIAN_INLINE static V load(const float* p) { return _mm256_loadu_ps(p); }
  ARTESIAN_INLINE static void store(float* p, V v) { _mm256_storeu_ps(p, v); }
  ARTESIAN_INLINE static V mul(V a, V b) { return _mm256_mul_ps(a, b); }
  ARTESIAN_INLINE static V add(V a, V b) { return _mm256_add_ps(a, b); }
  ARTESIAN_INLINE static V fma(V a, V b, V c) { return _mm256_fmadd_ps(a, b, c); }
  ARTESIAN_INLINE static float sum(V v) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
  }

  ARTESIAN_INLINE static __m256i bytes(const uint8_t* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  }
  // The bfloat16 in the low and in the high half of each lane.
  ARTESIAN_INLINE static V low_half(__m256i v) { return _mm256_castsi256_ps(_mm256_slli_epi32(v, 16)); }
  ARTESIAN_INLINE static V high_half(__m256i v) {
    return _mm256_castsi256_ps(_mm256_and_si256(v, _mm256_set1_epi32(static_cast<int>(0xFFFF0000))));
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
      __m256i most;
    };
    static int64_t order(int64_t i, int64_t lane) { return W * i + lane; }
    // As fp16 bits, which are sign, exponent and mantissa moved to their places, codes are 2^-8 times their values.
    template <int kHalf>
    ARTESIAN_INLINE static void decode(const uint8_t* p, const uint8_t*, V (&v)[4], Mark& mark) {
      const __m256i codes = bytes(p + 32 * kHalf), zero = _mm256_setzero_si256();
      const __m256i places = _mm256_set1_epi16(static_cast<short>(0xBF80));
      mark.most = _mm256_max_epu8(mark.most, _mm256_and_si256(codes, _mm256_set1_epi8(0x7F)));
      const __m256i a = _mm256_and_si256(_mm256_srai_epi16(_mm256_unpacklo_epi8(zero, codes), 1), places);
      const __m256i b = _mm256_and_si256(_mm256_srai_epi16(_mm256_unpackhi_epi8(zero, codes), 1), places);
      v[0] = _mm256_cvtph_ps(_mm256_castsi256_si128(a)), v[2] = _mm256_cvtph_ps(_mm256_extracti128_si256(a, 1));
      v[1] = _mm256_cvtph_ps(_mm256_castsi256_si128(b)), v[3] = _mm256_cvtph_ps(_mm256_extracti128_si256(b, 1));
    }
    ARTESIAN_INLINE static float finish(float sum, Mark mark) {
      const __m256i nan = _mm256_cmpeq_epi8(mark.most, _mm256_set1_epi8(0x7F));
      return _mm256_testz_si256(nan, nan) ? sum : __builtin_nanf("");
    }
  };

  struct Fp4 : Plain {
    static constexpr Format kFormat = Format::kFp4;
    static constexpr bool kInOrder = false;
    // Vectors 0-3 are the low nibbles (even columns), 4-7 the high ones; each 128-bit half is one scale block, whose
    // factor is in the table.
    static int64_t order(int64_t i, int64_t lane) {
      const int64_t byte = lane / 4 * 16 + i / 2 % 2 * 8 + lane % 4 * 2 + i % 2;
      return 2 * byte + i / 4;
    }
    template <int kHalf>
    ARTESIAN_INLINE static void decode(const uint8_t* p, const uint8_t* s, V (&v)[4], Mark&) {
      const Fp4Table &first = kFp4Tables[s[0]], &second = kFp4Tables[s[1]];
      const __m256i packed = bytes(p);
      const __m256i codes =
          _mm256_and_si256(kHalf == 0 ? packed : _mm256_srli_epi16(packed, 4), _mm256_set1_epi8(15));
      const __m256i low = _mm256_shuffle_epi8(both(first.low, second.low), codes);
      const __m256i high = _mm256_shuffle_epi8(both(first.high, second.high), codes);
      const __m256i front = _mm256_unpacklo_epi8(low, high), back = _mm256_unpackhi_epi8(low, high);
      v[0] = low_half(front), v[1] = high_half(front), v[2] = low_half(back), v[3] = high_half(back);
    }
    ARTESIAN_INLINE static __m256i both(const uint8_t* a, const uint8_t* b) {
      const __m256i wide = _mm256_castsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(a)));
      return _mm256_inserti128_si256(wide, _mm_load_si128(reinterpret_cast<const __m128i*>(b)), 1);
    }
  };

  struct Bf16 : Plain {
    static constexpr Format kFormat = Format::kBf16;
    static constexpr bool kInOrder = false;
    static int64_t order(int64_t i, int64_t lane) { return i / 2 * 16 + 2 * lane + i % 2; }
    template <int kHalf>
    ARTESIAN_INLINE static void decode(const uint8_t* p, const uint8_t*, V (&v)[4], Mark&) {
      const __m256i a = bytes(p + 64 * kHalf), b = bytes(p + 64 * kHalf + 32);
      v[0] = low_half(a), v[1] = high_half(a), v[2] = low_half(b), v[3] = high_half(b);
    }
  };

  struct F32 : Plain {
    static constexpr Format kFormat = Format::kF32;
    template <int kHalf>
    ARTESIAN_INLINE static void decode(const uint8_t* p, const uint8_t*, V (&v)[4], Mark&) {
      for (int i = 0; i < 4; ++i) v[i] = _mm256_castsi256_ps(bytes(p + 128 * kHalf + 32 * i));
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
const Kernels* avx2_kernels() {
  // Not asked for F16C: clang knows no such question, and every processor with AVX2 has it.
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? &kernels : nullptr;
}
}  // namespace artesian

#else
namespace artesian {
const Kernels* avx2_kernels() { return nullptr; }
}  // namespace artesian
#endif
