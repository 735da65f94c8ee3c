#include "formats.h"

#include <cmath>
#include <limits>

namespace artesian {
namespace {

struct Tables {
  float scale[256];
  float fp8[256];
  float fp4_pairs[512];

  Tables() {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    for (int byte = 0; byte < 256; ++byte) {
      scale[byte] = byte == 255 ? nan : std::ldexp(1.0f, byte - 127);
      const int exponent = (byte >> 3) & 15, mantissa = byte & 7;
      const float magnitude =
          exponent == 0 ? std::ldexp(mantissa / 8.0f, -6) : std::ldexp(1.0f + mantissa / 8.0f, exponent - 7);
      fp8[byte] = (byte & 127) == 127 ? nan : (byte & 128 ? -magnitude : magnitude) / kFp8Gain;
      fp4_pairs[2 * byte] = kFp4[byte & 15];
      fp4_pairs[2 * byte + 1] = kFp4[byte >> 4];
    }
  }
};

const Tables tables;

}  // namespace

const float* const kScale = tables.scale;
const float* const kFp8 = tables.fp8;
const float* const kFp4Pairs = tables.fp4_pairs;

}  // namespace artesian
