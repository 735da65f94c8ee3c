// Plain C++ for processors that none of the other sets knows. A product is rounded before it is added: without hardware
// for it, a fused multiply-add is a call of some 20 ns.
#include <algorithm>
#include <cstring>

#include "formats.h"
#include "kernels.h"
#include "scratch.h"

#define ARTESIAN_INLINE inline

namespace artesian {
namespace {

struct Isa {
  static constexpr const char* kName = "portable";
  static constexpr int64_t W = 8;
  static constexpr int kDirectRows = 3;  // more would only take longer to compile
  static constexpr bool kRunning = false;
  struct V {
    float lane[W];
  };

  static V broadcast(float x) {
    V v;
    for (float& lane : v.lane) lane = x;
    return v;
  }
  static V zero() { return broadcast(0.0f); }
  static V load(const float* p) {
    V v;
    std::memcpy(v.lane, p, sizeof v.lane);
    return v;
  }
  static void store(float* p, V v) { std::memcpy(p, v.lane, sizeof v.lane); }
  static V mul(V a, V b) {
    for (int i = 0; i < W; ++i) a.lane[i] *= b.lane[i];
    return a;
  }
  static V add(V a, V b) {
    for (int i = 0; i < W; ++i) a.lane[i] += b.lane[i];
    return a;
  }
  static V fma(V a, V b, V c) { return add(mul(a, b), c); }
  static float sum(V v) {
    for (int width = W / 2; width > 0; width /= 2) {
      for (int i = 0; i < width; ++i) v.lane[i] += v.lane[i + width];
    }
    return v.lane[0];
  }

  struct Unmarked {};
  struct Plain {
    using Mark = Unmarked;
    static constexpr bool kScaled = false, kInOrder = true;
    static constexpr float kGain = 1.0f;
    static float finish(float sum, Mark) { return sum; }
    static int64_t order(int64_t i, int64_t lane) { return W * i + lane; }
  };
  struct Fp8 : Plain {
    static constexpr Format kFormat = Format::kFp8;
    static constexpr float kGain = kFp8Gain;
    template <int kHalf>
    static void decode(const uint8_t* p, const uint8_t*, V (&v)[4], Mark&) {
      for (int i = 0; i < 4 * W; ++i) v[i / W].lane[i % W] = kFp8[p[4 * W * kHalf + i]];
    }
  };
  struct Fp4 : Plain {
    static constexpr Format kFormat = Format::kFp4;
    static constexpr bool kScaled = true, kInOrder = false;
    static int64_t order(int64_t i, int64_t lane) { return lane / 4 * kScaleBlock + 4 * i + lane % 4; }
    template <int kHalf>
    static void decode(const uint8_t* p, const uint8_t*, V (&v)[4], Mark&) {
      for (int i = 0; i < 4; ++i) {
        for (int block = 0; block < 2; ++block) {
          for (int pair = 0; pair < 2; ++pair) {
            const uint8_t byte = p[16 * block + 2 * (4 * kHalf + i) + pair];
            std::memcpy(v[i].lane + 4 * block + 2 * pair, kFp4Pairs + 2 * byte, 8);
          }
        }
      }
    }
    static V factors(const uint8_t* s) {
      V v;
      for (int i = 0; i < W; ++i) v.lane[i] = kScale[s[i / 4]];
      return v;
    }
  };
  struct Bf16 : Plain {
    static constexpr Format kFormat = Format::kBf16;
    template <int kHalf>
    static void decode(const uint8_t* p, const uint8_t*, V (&v)[4], Mark&) {
      for (int i = 0; i < 4 * W; ++i) {
        uint16_t high;
        std::memcpy(&high, p + 2 * (4 * W * kHalf + i), 2);
        const uint32_t bits = static_cast<uint32_t>(high) << 16;
        std::memcpy(&v[i / W].lane[i % W], &bits, 4);
      }
    }
  };
  struct F32 : Plain {
    static constexpr Format kFormat = Format::kF32;
    template <int kHalf>
    static void decode(const uint8_t* p, const uint8_t*, V (&v)[4], Mark&) {
      std::memcpy(v, p + 16 * W * kHalf, 16 * W);
    }
  };
};

#include "body.inc"

}  // namespace

const Kernels* portable_kernels() { return &kernels; }

}  // namespace artesian
