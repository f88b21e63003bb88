// The C ABI: every entry point takes pointers, sizes and a thread count, and returns a status.
#pragma once

#include <cstdint>
#include <exception>

#include "signature.hpp"

#define FENCHEL_API extern "C" __attribute__((visibility("default")))

// Exports the signature of fenchel_NAME: types are the function's own, names are given in its order.
#define FENCHEL_SIGNATURE(name, names)                                                      \
  FENCHEL_API const char* fenchel_##name##_signature() {                                    \
    static_assert(fenchel::arity(&fenchel_##name) == fenchel::count_names(names));          \
    static const std::string text = fenchel::signature(&fenchel_##name, names);             \
    return text.c_str();                                                                    \
  }

#define FENCHEL_INLINE inline __attribute__((always_inline))
#define FENCHEL_LAMBDA __attribute__((always_inline))

namespace fenchel {

constexpr int kOk = 0;
constexpr int kOutOfMemory = 1;

// Below this many entries a second thread costs more than it brings.
constexpr int64_t kParallelGrain = 16384;

// Calls work(first, last) on contiguous ranges of rows, one per thread.
template <class Work>
int parallel_rows(int64_t rows, int64_t width, int threads, Work work) {
  int64_t max_threads = rows * width / kParallelGrain + 1;
  if (threads > max_threads) threads = static_cast<int>(max_threads);
  if (threads > rows) threads = static_cast<int>(rows);
  if (threads < 1) threads = 1;
  int status = kOk;
#pragma omp parallel for num_threads(threads) schedule(static, 1) if (threads > 1)
  for (int t = 0; t < threads; ++t) {
    try {
      work(rows * t / threads, rows * (t + 1) / threads);
    } catch (const std::exception&) {  // only an allocation can fail
#pragma omp atomic write
      status = kOutOfMemory;
    }
  }
  return status;
}

}  // namespace fenchel
