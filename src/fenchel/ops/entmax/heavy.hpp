// α < 1: y = (s + (1−α)Δ)^(−1/(1−α)), whose tails are heavy: no finite score gets zero. In double.
#pragma once

#include "threshold.hpp"

namespace fenchel {

// (1 + near_one)^r, r < 0; zero where near_one is infinite.
FENCHEL_INLINE Vec<double> heavy_power(Vec<double> near_one, double r) {
  Vec<double> inside = near_one < kInf<double> ? near_one : Vec<double>{};
  return near_one < kInf<double> ? power(inside + 1, inside, r) : Vec<double>{};
}

// Calls use(distance below the top, offset, count) on consecutive vectors of a row, in double.
template <class T, class F>
FENCHEL_INLINE void each_distance(const T* x, int64_t d, double top, F use) {
  for (int64_t i = 0; i < d; i += kLanes<double>) {
    int64_t count = d - i < kLanes<double> ? d - i : kLanes<double>;
    Vec<double> v = splat<double>(-kInf<double>);
    for (int64_t k = 0; k < count; ++k) v[k] = x[i + k];
    use(top - v, i, count);
  }
}

// The root and, unless it is null, y. The r-norm of u is concave in s for r < 0, so that Newton from the
// left goes up to the root.
template <class T>
FENCHEL_INLINE Root heavy_row(const T* x, T* y, int64_t d, double top, double alpha) {
  const double kappa = 1 - alpha, r = -1 / kappa;
  double rise = 0;
  for (int i = 0; i < kMaxSteps; ++i) {
    Vec<double> at = {}, below = {};
    each_distance(x, d, top, [&](Vec<double> delta, int64_t, int64_t) FENCHEL_LAMBDA {
      Vec<double> near_one = rise + kappa * delta, e = heavy_power(near_one, r);
      at += e;
      below += e / (near_one + 1);
    });
    double total = sum<double>(at);
    double next = rise + std::expm1(-std::log(total) / r) * total / sum<double>(below);
    if (!(next > rise)) break;
    rise = next;
  }
  ExactSum<double> mass;
  Vec<double> moment = {};
  each_distance(x, d, top, [&](Vec<double> delta, int64_t, int64_t) FENCHEL_LAMBDA {
    Vec<double> e = heavy_power(rise + kappa * delta, r);
    mass.add(e);
    moment += e > 0 ? e * delta : Vec<double>{};
  });
  const double total = mass.value();
  if (y)
    each_distance(x, d, top, [&](Vec<double> delta, int64_t i, int64_t count) FENCHEL_LAMBDA {
      Vec<double> e = heavy_power(rise + kappa * delta, r) / total;
      for (int64_t k = 0; k < count; ++k) y[i + k] = static_cast<T>(e[k]);
    });
  return {rise, 0, sum<double>(moment) / total};
}

}  // namespace fenchel
