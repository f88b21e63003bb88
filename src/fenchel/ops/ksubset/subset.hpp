// One row of the k-subset mappings: y_i = min(1, [1 + ε(x_i − t)]₊^(1/ε)), ε = α − 1, with t such that Σy = k.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>

#include "row.hpp"

namespace fenchel {

// The entry `below` the threshold t at which it would reach one.
FENCHEL_INLINE double capped(double below, double epsilon) {
  if (below <= 0) return 1;
  if (epsilon == 0) return std::exp(-below);
  double u = 1 - epsilon * below;
  if (u <= 0) return 0;
  return epsilon == 1 ? u : epsilon == 0.5 ? u * u : std::pow(u, 1 / epsilon);
}

// The m-th largest of n numbers, which may change places.
inline double nth_largest(double* x, int64_t n, int64_t m) {
  constexpr int64_t kFew = 8;
  if (m > kFew) {
    std::nth_element(x, x + m - 1, x + n, std::greater<double>());
    return x[m - 1];
  }
  Vec<double> top[kFew];  // the m largest of every lane, in order
  for (int64_t j = 0; j < m; ++j) top[j] = splat<double>(-kInf<double>);
  each_vector<double>(x, n, -kInf<double>, [&](Vec<double> v, int64_t, int64_t) FENCHEL_LAMBDA {
    for (int64_t j = 0; j < m; ++j) {
      Vec<double> less = top[j] < v ? top[j] : v;
      top[j] = max<double>(top[j], v);
      v = less;
    }
  });
  double largest = reduce_max(top[0]);
  for (; m > 1; --m) {  // the largest leaves its lane
    const int lane = __builtin_ctz(~below<double>(top[0], splat<double>(largest)));
    for (int64_t j = 0; j + 1 < m; ++j) top[j][lane] = top[j + 1][lane];
    largest = reduce_max(top[0]);
  }
  return largest;
}

// The t with Σy = k, 0 < k < n, as a base and what t lies above it. The distance of a score from the base is
// exact; the last place of t is not.
struct Threshold {
  double base, above;
};

// Σy, and how fast it falls as t rises.
struct Mass {
  double total, slope;
};

FENCHEL_INLINE Vec<double> linear_capped(Vec<double> below) {
  Vec<double> u = max<double>(1 - below, Vec<double>{});
  return u < 1 ? u : splat<double>(1);
}

// At ε = 1, of n heights, padded with −∞.
FENCHEL_INLINE Mass linear_mass(const double* x, int64_t n, double t) {
  Vec<double> total = {}, rounded = {}, slope = {};
  for (int64_t i = 0; i < n; i += kLanes<double>) {
    Vec<double> y = linear_capped(t - load<double>(x + i)), next = total + y, part = next - total;
    rounded += (total - (next - part)) + (y - part);
    total = next;
    Vec<double> one = y < 1 ? splat<double>(1) : Vec<double>{};
    slope += y > 0 ? one : Vec<double>{};
  }
  return {sum<double>(total) + sum<double>(rounded), sum<double>(slope)};
}

inline Mass mass(const double* x, int64_t n, double t, double epsilon) {
  double total = 0, rounded = 0, slope = 0;
  for (int64_t i = 0; i < n; ++i) {
    double y = capped(t - x[i], epsilon), term = y - rounded, next = total + term;
    rounded = (next - total) - term;
    total = next;
    if (y > 0 && y < 1) slope += std::pow(y, 1 - epsilon);
  }
  return {total, slope};
}

// Newton's method. With m = ⌈k⌉, the m-th largest score is the base, since m entries are one at that threshold.
// At most m − 1 others reach one, which bounds t from above. What lies above that bound is one, what lies 1/ε
// below the base is zero, and the steps are taken on the open entries between. x has room for whole vectors.
inline Threshold subset_threshold(double* x, int64_t n, double k, double epsilon) {
  double m = std::ceil(k);
  double base = nth_largest(x, n, static_cast<int64_t>(m)), share = (k - m + 1) / (static_cast<double>(n) - m + 1);
  double low = 0, high = epsilon == 0 ? -std::log(share) : epsilon == 1 ? 1 - share : (1 - std::pow(share, epsilon)) / epsilon;
  const Vec<double> ceiling = splat<double>(high), floor = splat<double>(epsilon > 0 ? -1 / epsilon : -kInf<double>);
  int64_t open = 0;
  each_vector<double>(x, n, -kInf<double>, [&](Vec<double> v, int64_t, int64_t) FENCHEL_LAMBDA {
    Vec<double> height = v - base;
    const unsigned lower = below<double>(height, ceiling), inside = lower & below<double>(floor, height);
    k -= __builtin_popcount(~lower & ((1u << kLanes<double>) - 1));
    pack(x + open, height, inside);
    open += __builtin_popcount(inside);
  });
  for (int64_t i = open; i < padded<double>(open); ++i) x[i] = -kInf<double>;
  double t = high / 2;
  for (int pass = 0; pass < 200; ++pass) {
    const Mass now = epsilon == 1 ? linear_mass(x, open, t) : mass(x, open, t, epsilon);
    (now.total > k ? low : high) = t;
    double step = (now.total - k) / now.slope, next = t + step;
    if (std::fabs(step) <= 1e-16 * (1 + t)) break;
    if (!(next > low && next < high)) next = low + (high - low) / 2;
    if (next == low || next == high) break;
    t = next;
  }
  return {base, t};
}

// The entries of a row of finite scores, vector by vector at α = 2.
template <class T>
void write_subset(const T* x, T* y, int64_t d, Threshold t, double epsilon) {
  if (epsilon == 1)
    return each_vector<T>(x, d, T(0), [&](Vec<T> v, int64_t i, int64_t count) FENCHEL_LAMBDA {
      auto entries = [&](Vec<double> part) { return linear_capped(t.above - (part - t.base)); };
      store_some<T>(y + i, in_double(v, entries), count);
    });
  for (int64_t i = 0; i < d; ++i) y[i] = static_cast<T>(capped(t.above - (x[i] - t.base), epsilon));
}

template <class T>
void ksubset_row(const T* x, T* y, int64_t d, double k, double epsilon, double* finite) {
  int is_plain = k > 0 && k < static_cast<double>(d);
  for (int64_t i = 0; i < d; ++i) {
    is_plain &= x[i] - x[i] == 0;  // neither infinite nor NaN
    finite[i] = x[i];
  }
  if (is_plain) return write_subset(x, y, d, subset_threshold(finite, d, k, epsilon), epsilon);
  int64_t n = 0, num_infinite = 0;
  bool is_valid = k >= 0 && k <= static_cast<double>(d);
  for (int64_t i = 0; i < d; ++i) {
    is_valid = is_valid && x[i] == x[i];
    if (!is_valid) {
      for (int64_t j = 0; j < d; ++j) y[j] = std::numeric_limits<T>::quiet_NaN();
      return;
    }
    num_infinite += x[i] == kInf<T>;
    if (x[i] > -kInf<T> && x[i] < kInf<T>) finite[n++] = x[i];
  }
  double remaining = k - static_cast<double>(num_infinite);
  bool solvable = remaining > 0 && remaining < static_cast<double>(n);
  Threshold t = solvable ? subset_threshold(finite, n, remaining, epsilon) : Threshold{0, 0};
  T value_at_infinity = static_cast<T>(num_infinite && remaining < 0 ? k / static_cast<double>(num_infinite) : 1);
  for (int64_t i = 0; i < d; ++i) {
    if (x[i] == kInf<T>)
      y[i] = value_at_infinity;
    else if (x[i] == -kInf<T> || remaining <= 0)
      y[i] = 0;
    else
      y[i] = solvable ? static_cast<T>(capped(t.above - (x[i] - t.base), epsilon)) : T(1);
  }
}

}  // namespace fenchel
