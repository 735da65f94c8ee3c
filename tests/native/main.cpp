// Every kernel on matrices of awkward sizes in buffers without a spare byte, for the address and undefined-behaviour
// sanitizers: what they find is a read or write outside of a tensor. That one row and many agree is asked here, and that
// products are what the formats say, for processors on which only this runs; tests/engine/test_native.py judges the rest.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

extern "C" {
const char* artesian_choose(const char* name);
void artesian_set_threads(int n);
int artesian_matmul(int format, const void* weight, const void* scale, int64_t n, int64_t k, int64_t groups,
                    const float* x, int64_t x_stride, int64_t rows, float* y);
int artesian_experts(int format, const void* const* experts, int64_t n_experts, const int64_t* starts, const int64_t* rows,
                     const int64_t* targets, const float* weights, const float* x, int64_t n_rows, int64_t width,
                     int64_t inner, float limit, float* out);
int artesian_attend(const float* query, int64_t rows, int64_t heads, int64_t width, const float* window, int64_t newest,
                    int64_t window_size, const float* latents, const int64_t* selection, int64_t n_selected,
                    const float* sink, float scale, float* out);
int artesian_index_scores(const float* query, const float* weight, int64_t rows, int64_t heads, int64_t width,
                          const float* keys, int64_t n_keys, float* out);
int artesian_norm(const float* x, const float* weight, int64_t rows, int64_t width, float eps, float* out);
int artesian_rotate(float* x, int64_t rows, int64_t heads, int64_t width, const int64_t* positions, const float* freq,
                    int64_t pairs, int back);
int artesian_mix(const float* h, int64_t rows, int64_t copies, int64_t width, const float* fn, const float* base,
                 const float* scale, float norm_eps, float eps, int64_t rounds, float* pre, float* post, float* comb);
int artesian_collapse(const float* h, const float* pre, const float* weight, int64_t rows, int64_t copies,
                      int64_t width, float eps, float* out);
int artesian_update(const float* h, const float* y, const float* post, const float* comb, int64_t rows, int64_t copies,
                    int64_t width, float* out);
int artesian_total(const float* parts, const float* last, int64_t rows, int64_t n, int64_t width, float* out);
int artesian_route(const float* logits, const float* bias, int64_t rows, int64_t experts, int64_t used, int over_sum,
                   float scale, int64_t* chosen_experts, float* weights);
int artesian_choose_groups(const float* scores, int64_t rows, int64_t n, const int64_t* counts, const bool* allowed,
                           int64_t blocks, int64_t block_size, int64_t wanted, int64_t* groups);
int artesian_engram(const float* h, const float* projected, const float* weight, int64_t rows, int64_t copies,
                    int64_t width, float eps, float* out);
void artesian_read(const float* data, int64_t n);
int64_t artesian_multiply_adds(int64_t steps);
}

namespace {

std::mt19937 random_bits(1);

std::vector<uint8_t> bytes(int64_t n, int low, int high) {
  std::vector<uint8_t> out(static_cast<size_t>(n));
  for (uint8_t& byte : out) byte = static_cast<uint8_t>(low + static_cast<int>(random_bits() % static_cast<unsigned>(high - low)));
  return out;
}

std::vector<float> floats(int64_t n) {
  std::vector<float> out(static_cast<size_t>(n));
  for (float& value : out) value = static_cast<float>(random_bits() % 2001) / 1000.0f - 1.0f;
  return out;
}

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "failed: %s\n", what);
  std::exit(1);
}

// The value of column c of row r, from the definitions of the formats.
double value_at(int format, const std::vector<uint8_t>& weight, const std::vector<uint8_t>& scale, int64_t k, int64_t r,
                int64_t c) {
  const auto factor = [&](int64_t at) { return std::ldexp(1.0, scale[static_cast<size_t>(at)] - 127); };
  if (format == 0) {
    const int code = weight[static_cast<size_t>(r * k + c)], exponent = code >> 3 & 15, mantissa = code & 7;
    const double magnitude = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
    return (code & 128 ? -magnitude : magnitude) * factor(r / 32 * ((k + 31) / 32) + c / 32);
  }
  if (format == 1) {
    const double magnitudes[] = {0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0};
    const int code = weight[static_cast<size_t>(r * (k / 2) + c / 2)] >> (c % 2 ? 4 : 0) & 15;
    return (code & 8 ? -1.0 : 1.0) * magnitudes[code & 7] * factor(r * (k / 32) + c / 32);
  }
  uint32_t bits = 0;
  const size_t size = format == 2 ? 2 : 4;
  std::memcpy(reinterpret_cast<uint8_t*>(&bits) + 4 - size, weight.data() + static_cast<size_t>(r * k + c) * size, size);
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

void matrices(int format, int64_t n, int64_t k, int64_t groups) {
  const int64_t row_bytes[] = {k, k / 2, 2 * k, 4 * k};
  std::vector<uint8_t> weight = bytes(n * row_bytes[format], 0, 120), scale;
  if (format == 0) scale = bytes((n + 31) / 32 * ((k + 31) / 32), 118, 130);
  if (format == 1) scale = bytes(n * (k / 32), 118, 130);
  if (format >= 2) {  // bytes would be enormous numbers; halves and ones are not
    for (size_t i = 0; i < weight.size(); ++i) weight[i] = format == 2 ? (i % 2 ? 0x3F : 0x80) : (i % 4 == 3 ? 0x3F : 0);
  }
  const int64_t rows = 70;
  const std::vector<float> x = floats(rows * groups * k);
  std::vector<float> alone(static_cast<size_t>(rows * n));
  for (int64_t t = 0; t < rows; ++t) {
    require(artesian_matmul(format, weight.data(), scale.data(), n, k, groups, x.data() + t * groups * k, groups * k, 1,
                            alone.data() + t * n) == 0, "a product of one row");
  }
  if (groups == 1) {
    for (int64_t r = 0; r < n; r += 1 + n / 40) {
      double sum = 0.0, size = 0.0;
      for (int64_t c = 0; c < k; ++c) {
        const double product = value_at(format, weight, scale, k, r, c) * static_cast<double>(x[static_cast<size_t>(c)]);
        sum += product, size += std::fabs(product);
      }
      require(std::fabs(static_cast<double>(alone[static_cast<size_t>(r)]) - sum) <= 1e-6 * size, "a product's value");
    }
  }
  for (int64_t some : {2, 3, 4, 5, 6, 7, 8, 9, 12, 33, 70}) {
    std::vector<float> together(static_cast<size_t>(some * n));
    require(artesian_matmul(format, weight.data(), scale.data(), n, k, groups, x.data(), groups * k, some,
                            together.data()) == 0, "a product of many rows");
    require(std::memcmp(together.data(), alone.data(), together.size() * sizeof(float)) == 0, "rows agree");
  }
}

void experts(int64_t rows) {
  const int64_t width = 96, inner = 32, used = 2;
  std::vector<std::vector<uint8_t>> kept;
  std::vector<const void*> pointers;
  for (int i = 0; i < 3 * 3; ++i) {
    kept.push_back(bytes(width * inner / 2, 0, 256));
    kept.push_back(bytes(width * inner / 32, 118, 130));
  }
  for (const std::vector<uint8_t>& part : kept) pointers.push_back(part.data());
  std::vector<int64_t> starts{0}, of_row, targets;
  for (int64_t e = 0; e < 3; ++e) {
    for (int64_t t = 0; t < rows; ++t) {
      for (int64_t rank = 0; rank < used; ++rank) {
        if ((t + rank) % 3 == e) of_row.push_back(t), targets.push_back(t * used + rank);
      }
    }
    starts.push_back(static_cast<int64_t>(of_row.size()));
  }
  const std::vector<float> x = floats(rows * width), weights = floats(rows * used);
  std::vector<float> out(static_cast<size_t>(rows * used * width));
  require(artesian_experts(1, pointers.data(), 3, starts.data(), of_row.data(), targets.data(), weights.data(), x.data(),
                           rows, width, inner, 2.0f, out.data()) == 0, "routed experts");
}

void attention(int64_t rows, int64_t heads, int64_t width, int64_t before) {
  const int64_t n_latents = 5, n_selected = 3;
  const std::vector<float> query = floats(rows * heads * width), window = floats((before + rows) * width),
                           latents = floats(n_latents * width), sink = floats(heads), keys = floats(600 * width);
  std::vector<int64_t> selection;
  for (int64_t i = 0; i < rows * n_selected; ++i) selection.push_back(i % (n_latents + 1) - 1);
  std::vector<float> out(query.size()), scores(static_cast<size_t>(rows * 600));
  require(artesian_attend(query.data(), rows, heads, width, window.data(), before, 4, latents.data(), selection.data(),
                          n_selected, sink.data(), 0.1f, out.data()) == 0, "attention");
  require(artesian_attend(query.data(), rows, heads, width, window.data(), before, 4, nullptr, nullptr, 0, sink.data(),
                          0.1f, out.data()) == 0, "attention without a selection");
  const std::vector<float> weight = floats(rows * heads);
  require(artesian_index_scores(query.data(), weight.data(), rows, heads, width, keys.data(), 600, scores.data()) == 0,
          "index scores");
}

void sublayers(int64_t rows, int64_t width) {
  const int64_t copies = 4, n_mix = (2 + copies) * copies, n_experts = 11, used = 4, n_groups = 37;
  const std::vector<float> h = floats(rows * copies * width), y = floats(rows * width), weight = floats(copies * width),
                           fn = floats(n_mix * copies * width), base = floats(n_mix), scale = floats(3),
                           logits = floats(rows * n_experts), bias = floats(n_experts), freq = floats(width / 4),
                           scores = floats(rows * n_groups), projected = floats(rows * (copies + 1) * width);
  std::vector<float> out(h.size()), one(y.size()), pre(static_cast<size_t>(rows * copies)), post(pre.size()),
      comb(static_cast<size_t>(rows * copies * copies)), shares(static_cast<size_t>(rows * used));
  std::vector<int64_t> positions, counts, chosen(static_cast<size_t>(rows * used)),
      groups(static_cast<size_t>(rows * used));
  for (int64_t row = 0; row < rows; ++row) positions.push_back(row), counts.push_back(row * 7 % (n_groups + 1));
  const std::unique_ptr<bool[]> allowed(new bool[static_cast<size_t>(rows * 4)]);
  for (int64_t i = 0; i < rows * 4; ++i) allowed[static_cast<size_t>(i)] = i % 3 != 0;
  require(artesian_mix(h.data(), rows, copies, width, fn.data(), base.data(), scale.data(), 1e-20f, 1e-6f, 20,
                       pre.data(), post.data(), comb.data()) == 0, "a mix");
  require(artesian_collapse(h.data(), pre.data(), weight.data(), rows, copies, width, 1e-20f, one.data()) == 0,
          "a normed collapse");
  require(artesian_update(h.data(), y.data(), post.data(), comb.data(), rows, copies, width, out.data()) == 0, "an update");
  require(artesian_total(h.data(), y.data(), rows, copies, width, one.data()) == 0, "a total");
  require(artesian_norm(one.data(), weight.data(), rows, width, 1e-20f, one.data()) == 0, "a norm in place");
  require(artesian_rotate(out.data(), rows, copies, width, positions.data(), freq.data(), width / 4, 1) == 0,
          "a rotation");
  require(artesian_route(logits.data(), bias.data(), rows, n_experts, used, 1, 1.5f, chosen.data(), shares.data()) == 0,
          "a choice of experts");
  for (const bool* some : {static_cast<const bool*>(nullptr), static_cast<const bool*>(allowed.get())}) {
    require(artesian_choose_groups(scores.data(), rows, n_groups, counts.data(), some, 4, 8, used, groups.data()) == 0,
            "a choice of groups");
    for (int64_t i = 0; i < rows * used; ++i) {
      require(groups[static_cast<size_t>(i)] < counts[static_cast<size_t>(i / used)], "chosen groups are seen");
    }
  }
  require(artesian_engram(h.data(), projected.data(), weight.data(), rows, copies, width, 1e-20f, out.data()) == 0,
          "an engram gate");
}

}  // namespace

int main() {
  for (const char* name : {"avx512", "avx2", "neon", "portable"}) {
    if (artesian_choose(name) == nullptr) continue;
    for (int threads : {1, 3}) {
      artesian_set_threads(threads);
      for (int format = 0; format < 4; ++format) {
        for (int64_t n : {1, 3, 33, 100}) {
          for (int64_t k : {1, 7, 32, 63, 130, 544}) {
            const int64_t columns = format == 1 ? (k + 31) / 32 * 32 : k;
            matrices(format, n, columns, 1);
          }
        }
      }
      matrices(0, 3 * 20, 65, 3);
      matrices(2, 520, 1024, 1);  // large enough to be shared out
      experts(1);
      experts(9);
      experts(1200);  // more uses than are gone through together, and one expert with more than half of them
      attention(1, 4, 64, 9);
      attention(7, 17, 20, 0);
      sublayers(1, 64);
      sublayers(9, 53);
      sublayers(70, 600);  // large enough to be shared out
      artesian_read(floats(1001).data(), 1001);
      require(artesian_multiply_adds(10) > 0, "multiply-adds are counted");
    }
    std::printf("%s: no fault\n", name);
  }
  return 0;
}
