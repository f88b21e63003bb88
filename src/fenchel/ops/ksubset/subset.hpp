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

constexpr int64_t kFew = 8;

// The m-th largest of n numbers, m ≤ kFew.
template <class T>
FENCHEL_INLINE T nth_of_few(const T* x, int64_t n, int64_t m) {
  Vec<T> top[kFew];  // the m largest of every lane, in order
  for (Vec<T>& at : top) at = splat<T>(-kInf<T>);
  each_vector<T>(x, n, -kInf<T>, [&](Vec<T> v, int64_t, int64_t) FENCHEL_LAMBDA {
    for (int64_t j = 0; j < m; ++j) {
      Vec<T> less = top[j] < v ? top[j] : v;
      top[j] = max<T>(top[j], v);
      v = less;
    }
  });
  T largest = reduce_max(top[0]);
  for (; m > 1; --m) {  // the largest leaves its lane
    const int lane = __builtin_ctz(~below<T>(top[0], splat<T>(largest)));
    for (int64_t j = 0; j + 1 < m; ++j) top[j][lane] = top[j + 1][lane];
    largest = reduce_max(top[0]);
  }
  return largest;
}

// The ⌈k⌉-th largest of n numbers x; those of `copy` are the same, and may change places.
template <class T>
inline double nth_largest(const T* x, double* copy, int64_t n, double k) {
  const int64_t m = static_cast<int64_t>(std::ceil(k));
  if (m <= kFew) return nth_of_few(x, n, m);
  std::nth_element(copy, copy + m - 1, copy + n, std::greater<double>());
  return copy[m - 1];
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

// At ε = 1, lane by lane, as if in twice the precision.
struct LinearMass {
  Vec<double> total = {}, rounded = {}, slope = {};

  FENCHEL_INLINE void add(Vec<double> below) {
    const Vec<double> y = linear_capped(below), next = total + y, part = next - total;
    rounded += (total - (next - part)) + (y - part);
    total = next;
    const Vec<double> one = y < 1 ? splat<double>(1) : Vec<double>{};
    slope += y > 0 ? one : Vec<double>{};
  }
};

// Of n heights, padded with −∞.
FENCHEL_INLINE Mass linear_mass(const double* x, int64_t n, double t) {
  LinearMass mass;
  for (int64_t i = 0; i < n; i += kLanes<double>) mass.add(t - load<double>(x + i));
  return {sum<double>(mass.total) + sum<double>(mass.rounded), sum<double>(mass.slope)};
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

// What is left to solve: the heights of the open entries above the base are to give k, with t at most `high`.
struct Open {
  double base, k, high;
  int64_t count;
};

// With m = ⌈k⌉, the m-th largest score is the base, since m entries are one at that threshold. At most m − 1 others
// reach one, which bounds t from above. What lies above that bound is one, what lies 1/ε below the base is zero, and
// the entries between are open: their heights replace x, which has room for whole vectors.
inline Open open_entries(double* x, int64_t n, double k, double epsilon, double base) {
  const double m = std::ceil(k), share = (k - m + 1) / (static_cast<double>(n) - m + 1);
  double high = epsilon == 0   ? -std::log(share)
                : epsilon == 1 ? 1 - share
                               : (1 - std::pow(share, epsilon)) / epsilon;
  const Vec<double> ceiling = splat<double>(high), floor = splat<double>(epsilon > 0 ? -1 / epsilon : -kInf<double>);
  int64_t count = 0;
  each_vector<double>(x, n, -kInf<double>, [&](Vec<double> v, int64_t, int64_t) FENCHEL_LAMBDA {
    Vec<double> height = v - base;
    const unsigned lower = below<double>(height, ceiling), inside = lower & below<double>(floor, height);
    k -= __builtin_popcount(~lower & ((1u << kLanes<double>) - 1));
    pack(x + count, height, inside);
    count += __builtin_popcount(inside);
  });
  for (int64_t i = count; i < padded<double>(count); ++i) x[i] = -kInf<double>;
  return {base, k, high, count};
}

constexpr int kMaxPasses = 200;
constexpr double kShortStep = 1e-16;

// Newton's method on the heights of the open entries.
inline Threshold newton(const Open& open, const double* x, double epsilon) {
  double low = 0, high = open.high, t = high / 2;
  for (int pass = 0; pass < kMaxPasses; ++pass) {
    const Mass now = epsilon == 1 ? linear_mass(x, open.count, t) : mass(x, open.count, t, epsilon);
    (now.total > open.k ? low : high) = t;
    double step = (now.total - open.k) / now.slope, next = t + step;
    if (std::fabs(step) <= kShortStep * (1 + t)) break;
    if (!(next > low && next < high)) next = low + (high - low) / 2;
    if (next == low || next == high) break;
    t = next;
  }
  return {open.base, t};
}

inline Threshold subset_threshold(double* x, int64_t n, double k, double epsilon) {
  const Open open = open_entries(x, n, k, epsilon, nth_largest(x, x, n, k));
  return newton(open, x, epsilon);
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

// Copies a row, which has room for whole vectors; returns whether all its scores are finite.
template <class T>
FENCHEL_INLINE bool copy_finite(const T* x, int64_t d, double* finite) {
  int is_finite = 1;
  for (int64_t i = 0; i < d; ++i) {
    is_finite &= x[i] - x[i] == 0;  // neither infinite nor NaN
    finite[i] = x[i];
  }
  return is_finite;
}

template <class T>
void ksubset_row(const T* x, T* y, int64_t d, double k, double epsilon, double* finite) {
  if (copy_finite(x, d, finite) && k > 0 && k < static_cast<double>(d))
    return write_subset(x, y, d, subset_threshold(finite, d, k, epsilon), epsilon);
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
