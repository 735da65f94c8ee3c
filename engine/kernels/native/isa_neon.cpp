// NEON of aarch64, which every such processor has: the shape of isa_avx2.cpp with lanes of 4, a chunk is one scale block.
#include <algorithm>
#include <cstring>

#include "formats.h"
#include "kernels.h"
#include "scratch.h"

#if defined(__aarch64__) && !defined(__AARCH64EB__)
#include <arm_neon.h>

#define ARTESIAN_INLINE inline __attribute__((always_inline))

namespace artesian {
namespace {

struct Isa {
  static constexpr const char* kName = "neon";
  static constexpr int64_t W = 4;
  static constexpr int kDirectRows = 8;
  static constexpr bool kRunning = false;  // thirty-two registers
  using V = float32x4_t;

  ARTESIAN_INLINE static V broadcast(float x) { return vdupq_n_f32(x); }
  ARTESIAN_INLINE static V zero() { return vdupq_n_f32(0.0f); }
  ARTESIAN_INLINE static V load(const float* p) { return vld1q_f32(p); }
  ARTESIAN_INLINE static void store(float* p, V v) { vst1q_f32(p, v); }
  ARTESIAN_INLINE static V mul(V a, V b) { return vmulq_f32(a, b); }
  ARTESIAN_INLINE static V add(V a, V b) { return vaddq_f32(a, b); }
  ARTESIAN_INLINE static V fma(V a, V b, V c) { return vfmaq_f32(c, a, b); }
  ARTESIAN_INLINE static float sum(V v) {
    const float32x2_t s = vadd_f32(vget_low_f32(v), vget_high_f32(v));
    return vget_lane_f32(vpadd_f32(s, s), 0);
  }

  // The bfloat16 in the low and in the high half of each lane.
  ARTESIAN_INLINE static V low_half(uint32x4_t v) { return vreinterpretq_f32_u32(vshlq_n_u32(v, 16)); }
  ARTESIAN_INLINE static V high_half(uint32x4_t v) {
    return vreinterpretq_f32_u32(vandq_u32(v, vdupq_n_u32(0xFFFF0000u)));
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
      uint8x16_t most;
    };
    static int64_t order(int64_t i, int64_t lane) { return W * i + lane; }
    template <int kHalf>
    ARTESIAN_INLINE static void decode(const uint8_t* p, const uint8_t*, V (&v)[4], Mark& mark) {
      const uint8x16_t codes = vld1q_u8(p + 16 * kHalf);
      mark.most = vmaxq_u8(mark.most, vandq_u8(codes, vdupq_n_u8(0x7F)));
      halves(vget_low_u8(codes), v[0], v[1]);
      halves(vget_high_u8(codes), v[2], v[3]);
    }
    // Eight codes as fp16 bits: sign, exponent and mantissa moved to their places, 2^-8 times the value.
    ARTESIAN_INLINE static void halves(uint8x8_t codes, V& first, V& second) {
      const int16x8_t wide = vshlq_n_s16(vmovl_s8(vreinterpret_s8_u8(codes)), 7);
      const float16x8_t w = vreinterpretq_f16_u16(vandq_u16(vreinterpretq_u16_s16(wide), vdupq_n_u16(0xBF80)));
      first = vcvt_f32_f16(vget_low_f16(w));
      second = vcvt_f32_f16(vget_high_f16(w));
    }
    ARTESIAN_INLINE static float finish(float sum, Mark mark) {
      return vmaxvq_u8(mark.most) == 0x7F ? __builtin_nanf("") : sum;
    }
  };

  struct Fp4 : Plain {
    static constexpr Format kFormat = Format::kFp4;
    static constexpr bool kInOrder = false;
    // Vectors 0-3 are the low nibbles (even columns), 4-7 the high ones; the factor is in the table.
    static int64_t order(int64_t i, int64_t lane) { return 2 * (i / 2 % 2 * 8 + lane * 2 + i % 2) + i / 4; }
    template <int kHalf>
    ARTESIAN_INLINE static void decode(const uint8_t* p, const uint8_t* s, V (&v)[4], Mark&) {
      const uint8x16_t packed = vld1q_u8(p);
      const uint8x16_t codes = kHalf == 0 ? vandq_u8(packed, vdupq_n_u8(15)) : vshrq_n_u8(packed, 4);
      const Fp4Table& table = kFp4Tables[s[0]];
      const uint8x16_t low = vqtbl1q_u8(vld1q_u8(table.low), codes), high = vqtbl1q_u8(vld1q_u8(table.high), codes);
      const uint32x4_t front = vreinterpretq_u32_u8(vzip1q_u8(low, high));
      const uint32x4_t back = vreinterpretq_u32_u8(vzip2q_u8(low, high));
      v[0] = low_half(front), v[1] = high_half(front), v[2] = low_half(back), v[3] = high_half(back);
    }
  };

  struct Bf16 : Plain {
    static constexpr Format kFormat = Format::kBf16;
    static constexpr bool kInOrder = false;
    static int64_t order(int64_t i, int64_t lane) { return i / 2 * 8 + 2 * lane + i % 2; }
    template <int kHalf>
    ARTESIAN_INLINE static void decode(const uint8_t* p, const uint8_t*, V (&v)[4], Mark&) {
      const uint32x4_t a = words(p + 32 * kHalf), b = words(p + 32 * kHalf + 16);
      v[0] = low_half(a), v[1] = high_half(a), v[2] = low_half(b), v[3] = high_half(b);
    }
  };

  struct F32 : Plain {
    static constexpr Format kFormat = Format::kF32;
    template <int kHalf>
    ARTESIAN_INLINE static void decode(const uint8_t* p, const uint8_t*, V (&v)[4], Mark&) {
      for (int i = 0; i < 4; ++i) v[i] = vreinterpretq_f32_u32(words(p + 64 * kHalf + 16 * i));
    }
  };

  ARTESIAN_INLINE static uint32x4_t words(const uint8_t* p) { return vreinterpretq_u32_u8(vld1q_u8(p)); }
};

#include "body.inc"

}  // namespace

const Kernels* neon_kernels() { return &kernels; }

}  // namespace artesian

#else
namespace artesian {
const Kernels* neon_kernels() { return nullptr; }
}  // namespace artesian
#endif
