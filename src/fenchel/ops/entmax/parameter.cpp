// The derivative of α-entmax in α, times a vector: one pass over each row, in double precision.
//
// With a = −log y, ε = α − 1, f = (y^−ε − 1)/ε and g = (f − a)/ε, means weighted by y and v the vector,
//
//   ⟨v, ∂y/∂α⟩ = (ḡ Σ vy − Σ vyg + f̄ Σ vya − ā Σ vyf) / (1 + ε f̄).
#include "math.hpp"
#include "state.hpp"

namespace fenchel {
namespace {

constexpr double kSeries = 0.3;  // below it, differences would cancel

// (eᵗ − 1 − t)/t², by its series where t is small
FENCHEL_INLINE Vec<double> expm2_over(Vec<double> t) {
  const Vec<double> size = magnitude<double>(t), near = size < kSeries ? t : Vec<double>{};
  Vec<double> series = {};
  for (int k = 14; k > 1; --k) series = (series * near + 1.0) / static_cast<double>(k);
  const Vec<double> far = size < kSeries ? splat<double>(1) : t;
  return size < kSeries ? series : (exp<double>(far) - 1.0 - far) / (far * far);
}

template <class T>
double parameter_row(const T* y, const T* v, int64_t d, double alpha) {
  const double epsilon = alpha - 1;
  Vec<double> a_mean = {}, f_mean = {}, g_mean = {}, plain = {}, by_a = {}, by_f = {}, by_g = {};
  for (int64_t i = 0; i < d; i += kLanes<double>) {
    const int64_t n = d - i < kLanes<double> ? d - i : kLanes<double>;
    T ys[kLanes<double>] = {}, vs[kLanes<double>] = {};
    std::memcpy(ys, y + i, static_cast<size_t>(n) * sizeof(T));
    std::memcpy(vs, v + i, static_cast<size_t>(n) * sizeof(T));
    const Vec<double> p = wide_load(ys);
    if (!below<double>(Vec<double>{}, p)) continue;
    const Vec<double> inside = p > 0 ? p : splat<double>(1);
    const Vec<double> a = -log<double>(inside, Vec<double>{}), t = epsilon * a, tail = expm2_over(t);
    const Vec<double> f = a * (1.0 + t * tail), g = a * a * tail;
    const Vec<double> w = p > 0 ? p * wide_load(vs) : Vec<double>{};
    a_mean += p * a, f_mean += p * f, g_mean += p * g;
    plain += w, by_a += w * a, by_f += w * f, by_g += w * g;
  }
  const double mean = sum<double>(f_mean);
  return (sum<double>(g_mean) * sum<double>(plain) - sum<double>(by_g) + mean * sum<double>(by_a) -
          sum<double>(a_mean) * sum<double>(by_f)) /
         (1 + epsilon * mean);
}

template <class T>
int parameter_vjp(const T* y, const T* v, const double* alphas, int64_t alpha_step, int64_t rows, int64_t d,
                  T* out, int threads) {
  return parallel_rows(rows, 8 * d, threads, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row)
      out[row] = static_cast<T>(parameter_row(y + row * d, v + row * d, d, alphas[row * alpha_step]));
  });
}

}  // namespace
}  // namespace fenchel

#define FENCHEL_PARAMETER(suffix, T)                                                                        \
  FENCHEL_API int fenchel_entmax_parameter_vjp_##suffix(const T* y, const T* v, const double* alphas,       \
                                                        int64_t alpha_step, int64_t rows, int64_t d, T* out, \
                                                        int threads) {                                      \
    return fenchel::parameter_vjp(y, v, alphas, alpha_step, rows, d, out, threads);                         \
  }                                                            \
  FENCHEL_SIGNATURE(entmax_parameter_vjp_##suffix, "y, v, alpha, alpha_step, rows, d, out, threads")
FENCHEL_PARAMETER(f32, float)
FENCHEL_PARAMETER(f64, double)
