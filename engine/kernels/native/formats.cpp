#include "formats.h"

#include <cmath>
#include <cstring>
#include <limits>

namespace artesian {
namespace {

struct Tables {
  float scale[256];
  float fp8[256];
  float fp4_pairs[512];
  Fp4Table fp4[256];

  Tables() {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    for (int byte = 0; byte < 256; ++byte) {
      scale[byte] = byte == 255 ? nan : std::ldexp(1.0f, byte - 127);
      const int exponent = (byte >> 3) & 15, mantissa = byte & 7;
      const float magnitude =
          exponent == 0 ? std::ldexp(mantissa / 8.0f, -6) : std::ldexp(1.0f + mantissa / 8.0f, exponent - 7);
      fp8[byte] = (byte & 127) == 127 ? nan : (byte & 128 ? -magnitude : magnitude) / kFp8Gain;
      for (int code = 0; code < 16; ++code) {
        const float value = kFp4[code] * scale[byte];
        uint32_t bits;
        std::memcpy(&bits, &value, sizeof bits);
        fp4[byte].low[code] = static_cast<uint8_t>(bits >> 16);
        fp4[byte].high[code] = static_cast<uint8_t>(bits >> 24);
      }
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
const Fp4Table* const kFp4Tables = tables.fp4;

}  // namespace artesian
