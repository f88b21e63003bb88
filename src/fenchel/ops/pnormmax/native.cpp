// Mappings regularized by a norm, by safeguarded Newton steps: y ∝ u^(q−1), u = [s − Δ]₊, Δ the distance below
// the largest score and q the dual exponent, 1/p + 1/q = 1. Only entries with Δ < 1 can be in the support.
#include <optional>

#include "short_rows.hpp"

namespace fenchel {
namespace {

// A root of f in [low, high], f decreasing. evaluate(x, step) returns f(x) and proposes a step. The bracket is
// halved where that step leaves it. It is also halved where the step is more than half of the last but one:
// then steps may oscillate. A short step is the last if what f has left is rounding.
template <class T, class F>
FENCHEL_INLINE double bracketed_root(double x, double low, double high, double tolerance, F evaluate) {
  double last = high - low, before = 2 * last;
  Residual<T> residual;
  for (int i = 0; i < kMaxSteps; ++i) {
    double step, f = evaluate(x, step);
    (f > 0 ? low : high) = x;
    double next = x + step;
    if (step < tolerance && step > -tolerance && residual.is_rounding(f)) return next;
    if (!(next > low && next < high) || 2 * std::fabs(step) > before) next = low + (high - low) / 2;
    if (next == low || next == high) return next;
    before = last;
    last = std::fabs(next - x);
    x = next;
  }
  return x;
}

// Σ u^(q−1) = ‖u‖_q^(q−2), in the unknown x = −log s, which lies in [0, (2/q) log n].
template <bool from_one, class T>
FENCHEL_INLINE void squared_root_from(Candidates<T>& candidates, double q) {
  const T a = static_cast<T>(q - 1);
  double high = 2 / q * std::log(static_cast<double>(candidates.count));
  double tolerance = sizeof(T) == 4 ? 3e-5 : 1e-8;
  double root = bracketed_root<T>(0, 0, high, tolerance, [&](double x, double& step) {
    double s = std::exp(-x);
    PowerSums u = power_sums<from_one>(candidates, 1, point_of<from_one, T>(s, 0), a);
    double f = std::log(u.at) - (q - 2) / q * std::log(u.above);
    step = f / (s * ((q - 1) * u.below / u.at - (q - 2) * u.at / u.above));
    return f;
  });
  normalize(candidates, weigh_powers<from_one>(candidates, 1, point_of<from_one, T>(std::exp(-root), 0), a));
}

template <class T>
FENCHEL_INLINE void squared_root(Candidates<T>& candidates, double q) {
  return q - 1 > kSmallPower ? squared_root_from<true>(candidates, q) : squared_root_from<false>(candidates, q);
}

template <class T>
int solve(const T* scores, const double* ps, int64_t p_step, bool squared, int64_t rows, int64_t d,
          T* out, int threads) {
  return parallel_rows(rows, d, threads, [&](int64_t first, int64_t last) {
    Candidates<T> candidates(d);
    std::optional<ShortRows> waiting;
    if constexpr (sizeof(T) == 4) {
      const double q = ps[0] / (ps[0] - 1);
      if (squared && p_step == 0 && ShortRows::takes(q - 1)) waiting.emplace(q, d, out);
    }
    for (int64_t row = first; row < last; ++row) {
      const T* x = scores + row * d;
      T* y = out + row * d;
      double p = ps[row * p_step], q = p / (p - 1);
      T top = p > 1 && p < kInf<double> ? maximum(x, d) : std::numeric_limits<T>::quiet_NaN();
      if (handle_nonfinite(x, y, d, top)) continue;
      candidates.take(x, d, top, T(1));
      if constexpr (sizeof(T) == 4) {
        if (waiting && candidates.count <= ShortRows::kLongest) {
          waiting->add(candidates, row);
          continue;
        }
      }
      if (!squared)
        precise_power_root(candidates, 1, q, q - 1);
      else if (p == 2)
        linear_root(candidates);
      else
        squared_root(candidates, q);
      candidates.scatter(candidates.distance.get(), y);
    }
    if (waiting) waiting->flush();
  });
}

// out = a s (v − shift) − b y with s = y^(2−p): both Jacobians have this form.
template <class T>
int jvp(const T* ys, const T* vs, const double* ps, int64_t p_step, bool squared, int64_t rows,
        int64_t d, T* outs, int threads) {
  return parallel_rows(rows, d, threads, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      const T *y = ys + row * d, *v = vs + row * d;
      T* out = outs + row * d;
      double p = ps[row * p_step];
      double mass = 0, moment = 0, along = 0, power = 0;
      for (int64_t start = 0; start < d; start += kBlock<T>) {
        int64_t n = d - start < kBlock<T> ? d - start : kBlock<T>;
        Vec<T> m0 = {}, m1 = {}, m2 = {}, m3 = {};
        each_vector<T>(y + start, n, T(0), [&](Vec<T> at, int64_t i, int64_t count) {
          Vec<T> w = load_some<T>(v + start + i, count);
          w = at > 0 ? w : Vec<T>{};
          Vec<T> s = fenchel::power<T>(at, static_cast<T>(2 - p));
          m0 += s;
          m1 += s * w;
          m2 += at * w;
          m3 += at * at / (at > 0 ? s : splat<T>(1));
          store_some<T>(out + start + i, s, count);
        });
        mass += sum<T>(m0);
        moment += sum<T>(m1);
        along += sum<T>(m2);
        power += sum<T>(m3);
      }
      double norm = std::pow(power, 1 / p), a, b, shift;
      if (squared) {
        a = std::pow(norm, p - 2) / (p - 1);
        double bend = (2 - p) / (p - 1) / (norm * norm);
        shift = (a * moment - bend * along) / (a * mass - bend);
        b = bend * (along - shift);
      } else {
        a = std::pow(norm, p - 1) / (p - 1);
        shift = along;
        b = a * (moment - shift * mass);
      }
      T scale = static_cast<T>(a), mean = static_cast<T>(shift), back = static_cast<T>(b);
      each_vector<T>(y, d, T(0), [&](Vec<T> at, int64_t i, int64_t count) {
        Vec<T> w = load_some<T>(v + i, count), s = load_some<T>(out + i, count);
        store_some<T>(out + i, at > 0 ? scale * s * (w - mean) - back * at : Vec<T>{}, count);
      });
    }
  });
}

}  // namespace
}  // namespace fenchel

#define FENCHEL_NORM(name, squared, suffix, T)                                                     \
  FENCHEL_API int fenchel_##name##_##suffix(const T* scores, const double* p, int64_t p_step,      \
                                            int64_t rows, int64_t d, T* y, int threads) {          \
    return fenchel::solve(scores, p, p_step, squared, rows, d, y, threads);                        \
  }                                                                                                \
  FENCHEL_SIGNATURE(name##_##suffix, "scores, p, p_step, rows, d, y, threads")                     \
  FENCHEL_API int fenchel_##name##_jvp_##suffix(const T* y, const T* v, const double* p,           \
                                                int64_t p_step, int64_t rows, int64_t d, T* out,   \
                                                int threads) {                                     \
    return fenchel::jvp(y, v, p, p_step, squared, rows, d, out, threads);                          \
  }                                                                                                \
  FENCHEL_SIGNATURE(name##_jvp_##suffix, "y, v, p, p_step, rows, d, out, threads")
FENCHEL_NORM(normmax, false, f32, float)
FENCHEL_NORM(normmax, false, f64, double)
FENCHEL_NORM(pnormmax, true, f32, float)
FENCHEL_NORM(pnormmax, true, f64, double)
