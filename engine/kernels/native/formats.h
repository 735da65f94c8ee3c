// The checkpoint's number formats, value by value: the tables every instruction set decodes with.
//
// e8m0: 2^(byte - 127), byte 0 is 2^-127 and not zero, 255 is NaN. e4m3: no infinity, S.1111.111 is NaN. e2m1: eight
// magnitudes and a sign. Sources: OCP Microscaling Formats 1.0, OCP 8-bit Floating Point 1.0.
#pragma once
#include <cstdint>

namespace artesian {

inline constexpr int kScaleBlock = 32;

// The fp16 bit pattern of an e4m3 code, exponent bits as they are, is 2^-8 times its value (bias 15 against 7). Decoders
// leave it so and the activations of an fp8 product carry the 2^8.
inline constexpr float kFp8Gain = 256.0f;

// [256] the value of every e8m0 byte.
extern const float* const kScale;

// [256] the value of every e4m3 byte, divided by kFp8Gain.
extern const float* const kFp8;

// [256][2] both values of an fp4 byte, low nibble first.
extern const float* const kFp4Pairs;

// For byte shuffles: the sixteen e2m1 values times an e8m0 scale as bfloat16, which holds every such product, split into
// low and high bytes.
struct Fp4Table {
  alignas(32) uint8_t low[16];
  uint8_t high[16];
};
extern const Fp4Table* const kFp4Tables;  // [256] by the scale's byte

alignas(64) inline constexpr float kFp4[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                               -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

}  // namespace artesian
