// k-subset mappings of a batch of rows, and their Jacobians.
#include <memory>

#include "side_by_side.hpp"

namespace fenchel {
namespace {

template <class T>
int ksubset(const T* scores, const double* ks, int64_t k_step, double alpha, int64_t rows,
            int64_t d, T* y, int threads) {
  return parallel_rows(rows, d, threads, [&](int64_t first, int64_t last) {
    std::unique_ptr<double[]> finite(new double[padded<double>(d)]);
    SubsetRows<T> waiting(d);
    for (int64_t row = first; row < last; ++row) {
      const T* x = scores + row * d;
      const double k = ks[row * k_step];
      if (alpha == 2 && k > 0 && k < static_cast<double>(d) && copy_finite(x, d, finite.get())) {
        const double base = nth_largest(x, finite.get(), d, k);
        waiting.add(open_entries(finite.get(), d, k, 1, base), finite.get(), x, y + row * d);
      } else {
        ksubset_row(x, y + row * d, d, k, alpha - 1, finite.get());
      }
    }
    waiting.flush();
  });
}

// The Jacobian of entmax at what is below one: an entry at one stays there. It may write over its y.
template <class T, class Jvp>
int free_jvp(const T* y, const T* v, double alpha, int64_t rows, int64_t d, T* out, int threads, Jvp jvp) {
  int status = parallel_rows(rows, d, threads, [&](int64_t first, int64_t last) {
    for (int64_t i = first * d; i < last * d; ++i) out[i] = y[i] < 1 ? y[i] : T(0);
  });
  return status == kOk ? jvp(out, v, &alpha, 0, rows, d, out, threads) : status;
}

}  // namespace
}  // namespace fenchel

#define FENCHEL_KSUBSET(suffix, T)                                                                 \
  FENCHEL_API int fenchel_ksubset_##suffix(const T* scores, const double* k, int64_t k_step,       \
                                           double alpha, int64_t rows, int64_t d, T* y,            \
                                           int threads) {                                          \
    return fenchel::ksubset(scores, k, k_step, alpha, rows, d, y, threads);                        \
  }                                                                                                \
  FENCHEL_SIGNATURE(ksubset_##suffix, "scores, k, k_step, alpha, rows, d, y, threads")             \
  extern "C" int fenchel_entmax_jvp_##suffix(const T*, const T*, const double*, int64_t, int64_t,  \
                                             int64_t, T*, int);                                    \
  FENCHEL_API int fenchel_ksubset_jvp_##suffix(const T* y, const T* v, double alpha, int64_t rows, \
                                               int64_t d, T* out, int threads) {                   \
    return fenchel::free_jvp(y, v, alpha, rows, d, out, threads, fenchel_entmax_jvp_##suffix);     \
  }                                                                                                \
  FENCHEL_SIGNATURE(ksubset_jvp_##suffix, "y, v, alpha, rows, d, out, threads")
FENCHEL_KSUBSET(f32, float)
FENCHEL_KSUBSET(f64, double)
