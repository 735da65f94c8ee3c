// Memory that a thread keeps between calls, so that a step touches no fresh pages.
#pragma once
#include <cstddef>
#include <cstdlib>
#include <new>

namespace artesian {

class Scratch {
 public:
  Scratch() = default;
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() { std::free(memory_); }

  // At least n floats, aligned to a cache line; what was there is lost when it has to grow. Throws std::bad_alloc.
  float* floats(size_t n) {
    if (n > size_) {
      std::free(memory_);
      memory_ = nullptr;
      size_ = 0;
      const size_t bytes = (n * sizeof(float) + 63) / 64 * 64;
      memory_ = static_cast<float*>(std::aligned_alloc(64, bytes));
      if (memory_ == nullptr) throw std::bad_alloc();
      size_ = n;
    }
    return memory_;
  }

 private:
  float* memory_ = nullptr;
  size_t size_ = 0;
};

}  // namespace artesian
