// The gradient of a Fenchel-Young loss of α-entmax, y − target, from the states of solved rows.
#include "state.hpp"

namespace fenchel {
namespace {

// out may be scores: every entry is read before its gradient is written.
template <class T>
FENCHEL_INLINE void weighted_row(const T* x, int64_t d, double alpha, const State& at, T weight,
                                 T* out) {
  if (weight == 0)
    std::memset(out, 0, static_cast<size_t>(d) * sizeof(T));
  else if (is_nonfinite(at.top))
    write_nonfinite(x, d, static_cast<T>(at.top), weight * static_cast<T>(at.share), out);
  else
    each_weight(x, d, alpha, at, [&](Vec<T> y, int64_t i, int64_t count) FENCHEL_LAMBDA {
      store_some<T>(out + i, y * (weight * static_cast<T>(at.share)), count);
    });
}

template <class T>
int gradient(const T* scores, const State* states, const int64_t* target, const T* weights,
             const double* alphas, int64_t alpha_step, int64_t rows, int64_t d, T* out, int threads) {
  return parallel_rows(rows, d, threads, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      T *y = out + row * d, weight = states[row].top == -kInf<double> ? T(0) : weights[row];
      weighted_row(scores + row * d, d, alphas[row * alpha_step], states[row], weight, y);
      if (target && target[row] >= 0 && target[row] < d) y[target[row]] -= weight;
    }
  });
}

}  // namespace
}  // namespace fenchel

// target may be null: then nothing is subtracted. A row of weight zero gives zeros whatever it holds, and so
// does one without entries.
#define FENCHEL_GRADIENT(suffix, T)                                                                \
  FENCHEL_API int fenchel_entmax_gradient_##suffix(                                                \
      const T* scores, const double* state, const int64_t* target, const T* weights,                    \
      const double* alphas, int64_t alpha_step, int64_t rows, int64_t d, T* out, int threads) {    \
    auto states = reinterpret_cast<const fenchel::State*>(state);                                  \
    return fenchel::gradient(scores, states, target, weights, alphas, alpha_step, rows, d, out,     \
                             threads);                                                             \
  }                                                                                                \
  FENCHEL_SIGNATURE(entmax_gradient_##suffix,                                                      \
                    "scores, state, target, weights, alpha, alpha_step, rows, d, out, threads")
FENCHEL_GRADIENT(f32, float)
FENCHEL_GRADIENT(f64, double)
