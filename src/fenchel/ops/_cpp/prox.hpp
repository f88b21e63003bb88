// The entry points of a mapping of one strength λ, from its functions on a range of rows.
#pragma once

#include "abi.hpp"

#define FENCHEL_PROX_OF(name, suffix, T)                                                           \
  FENCHEL_API int fenchel_##name##_##suffix(const T* scores, double lam, int64_t rows, int64_t d,  \
                                            T* y, int threads) {                                   \
    return fenchel::parallel_rows(rows, d, threads, [&](int64_t first, int64_t last) {             \
      fenchel::name##_rows(scores, lam, first, last, d, y);                                        \
    });                                                                                            \
  }                                                                                                \
  FENCHEL_SIGNATURE(name##_##suffix, "scores, lam, rows, d, y, threads")                           \
  FENCHEL_API int fenchel_##name##_jvp_##suffix(const T* y, const T* v, int64_t rows, int64_t d,   \
                                                T* out, int threads) {                             \
    return fenchel::parallel_rows(rows, d, threads, [&](int64_t first, int64_t last) {             \
      fenchel::jvp_rows(y, v, first, last, d, out);                                                \
    });                                                                                            \
  }                                                                                                \
  FENCHEL_SIGNATURE(name##_jvp_##suffix, "y, v, rows, d, out, threads")

#define FENCHEL_PROX(name)            \
  FENCHEL_PROX_OF(name, f32, float)   \
  FENCHEL_PROX_OF(name, f64, double)
