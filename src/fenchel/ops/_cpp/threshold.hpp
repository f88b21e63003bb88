// One scalar unknown per row: the root s of Σ [s − κΔ]₊^r = 1, where Δ is the distance below the
// largest score. Each solver turns the candidates' distances into the values of the answer.
#pragma once

#include "math.hpp"
#include "row.hpp"

namespace fenchel {

// Of a solved row, what its value max_Ω needs besides y.
struct Root {
  double peak_loss;      // r (1 − s), which tends to −log y_max as r → ∞
  double mean_distance;  // Σ y Δ
};

// u^n by repeated squaring
template <class T>
FENCHEL_INLINE Vec<T> whole_power(Vec<T> u, int n) {
  Vec<T> power = splat<T>(1);
  for (; n; n >>= 1, u *= u)
    if (n & 1) power *= u;
  return power;
}

// An upper bound of s. The root on a part of the row is one, and the largest entries of strided
// slices are the best part to take; so is the root for a larger r, and a whole one needs no
// logarithm; so is any step of Newton from above on the norm of u, which is convex. One is enough.
template <class T>
FENCHEL_INLINE double upper_root(const Peaks<T>& peak, double kappa, double r) {
  if (r > 64) return 1;
  auto add = [](auto a, auto b) { return a + b; };
  int n = static_cast<int>(std::ceil(r * (1 - 1e-6)));
  Vec<T> at = {}, below = {};
  for (const Vec<T>& slice : peak.slice) {
    Vec<T> u = T(1) - static_cast<T>(kappa) * (peak.top - slice);
    Vec<T> inside = max<T>(u, Vec<T>{});
    Vec<T> p = u > 0 ? whole_power<T>(inside, n - 1) : Vec<T>{};
    at += p * inside;
    below += p;
  }
  T total = fold(at, add);
  T norm = n == 1 ? total : n == 2 ? std::sqrt(total) : std::pow(total, T(1) / n);
  return 1 - (norm - 1) / norm * total / fold(below, add) + 1e-5;  // more than T rounds
}

struct Moments {
  double count, first, second;
};

// Count, sum and sum of squares of u = s − κΔ over u > 0.
template <class T>
FENCHEL_INLINE Moments moments(const Candidates<T>& near, double kappa, double s) {
  Vec<double> count = {}, first = {}, second = {};
  for (int64_t i = 0; i < near.count; i += kLanes<double>) {
    Vec<double> u = s - kappa * wide_load(near.distance.get() + i);
    u = u > 0 ? u : Vec<double>{};
    count += u > 0 ? splat<double>(1) : Vec<double>{};
    first += u;
    second += u * u;
  }
  return {sum<double>(count), sum<double>(first), sum<double>(second)};
}

// Writes y = (s − κΔ)₊^power, power 1 or 2, and returns Σ y Δ.
template <int power, class T>
FENCHEL_INLINE double write(Candidates<T>& near, double kappa, double s) {
  typedef T Narrow __attribute__((vector_size(sizeof(T) * kLanes<double>)));
  Vec<double> total = {};
  for (int64_t i = 0; i < near.count; i += kLanes<double>) {
    Vec<double> delta = wide_load(near.distance.get() + i), u = s - kappa * delta;
    u = u > 0 ? u : Vec<double>{};
    Vec<double> y = power == 1 ? u : u * u;
    total += y * delta;
    Narrow narrow = __builtin_convertvector(y, Narrow);
    std::memcpy(near.distance.get() + i, &narrow, sizeof narrow);
  }
  return sum<double>(total);
}

// r = 1. Newton from the right meets the root after finitely many changes of support.
template <class T>
FENCHEL_INLINE Root linear_root(Candidates<T>& near, double s = 1) {
  double support = 0;
  for (;;) {
    Moments m = moments(near, 1, s);
    s -= (m.first - 1) / m.count;
    if (m.count == support) break;
    support = m.count;
  }
  return {1 - s, write<1>(near, 1, s)};
}

// r = 2. Newton on the norm of u, and the quadratic's own root once the support stands still.
template <class T>
FENCHEL_INLINE Root quadratic_root(Candidates<T>& near, double s) {
  double support = static_cast<double>(near.count);
  for (;;) {
    Moments m = moments(near, 0.5, s);
    if (m.count == support) {
      double slack = m.first * m.first - m.count * (m.second - 1);
      double exact = s - (m.second - 1) / (m.first + std::sqrt(slack > 0 ? slack : 0));
      Moments there = moments(near, 0.5, exact);
      if (there.count == support) {
        s = exact - (there.second - 1) / (2 * there.first);  // what the square root rounded
        break;
      }
    }
    support = m.count;
    double next = s - (m.second - std::sqrt(m.second)) / m.first;
    if (!(next < s)) break;
    s = next;
  }
  return {2 * (1 - s), write<2>(near, 0.5, s)};
}

// 1/v where v > 0, else 1
template <class T>
FENCHEL_INLINE Vec<T> inverse(Vec<T> v) {
  return T(1) / (v > 0 ? v : splat<T>(1));
}

// Σ v^(a+1), Σ v^a, Σ v^(a−1), Σ v^(a−2) over v = 1 − scale·Δ > 0.
struct PowerSums {
  double above, at, below, lower;
};

// Those sums, with v^a itself, which is raise(v), left in the scratch.
template <class T, class F>
FENCHEL_INLINE PowerSums power_sums_by(const Candidates<T>& near, T scale, F raise) {
  PowerSums total = {0, 0, 0, 0};
  for (int64_t start = 0; start < near.count; start += kBlock) {
    int64_t stop = near.count - start < kBlock ? near.count : start + kBlock;
    Vec<T> above = {}, at = {}, below = {}, lower = {};
    for (int64_t i = start; i < stop; i += kLanes<T>) {
      Vec<T> x = load<T>(near.distance.get() + i) * scale, v = T(1) - x;
      Vec<T> over = inverse<T>(v), e = raise(x, v, over);
      store<T>(near.scratch + i, e);
      above += e * v;
      at += e;
      below += e * over;
      lower += e * over * over;
    }
    total.above += sum<T>(above);
    total.at += sum<T>(at);
    total.below += sum<T>(below);
    total.lower += sum<T>(lower);
  }
  return total;
}

template <class T>
FENCHEL_INLINE PowerSums power_sums(const Candidates<T>& near, T scale, T a) {
  if (a <= 16 && a == std::floor(a))
    return power_sums_by(near, scale, [&](Vec<T> x, Vec<T> v, Vec<T> over) {
      Vec<T> e = whole_power<T>(max<T>(v, Vec<T>{}), static_cast<int>(a));
      return e + e * over * (a * ((T(1) - v) - x));  // what rounding took from v
    });
  return power_sums_by(near, scale, [&](Vec<T> x, Vec<T>, Vec<T>) { return power1m<T>(x, a); });
}

// Replaces each distance by value(Δ, i), divided by the sum of all, and returns Σ y Δ.
template <class T, class F>
FENCHEL_INLINE double write_normalized(Candidates<T>& near, F value) {
  double total = 0, moment = 0;
  for (int64_t start = 0; start < near.count; start += kBlock) {
    int64_t stop = near.count - start < kBlock ? near.count : start + kBlock;
    Vec<T> mass = {}, first = {};
    for (int64_t i = start; i < stop; i += kLanes<T>) {
      Vec<T> delta = load<T>(near.distance.get() + i), e = value(delta, i);
      mass += e;
      first += e * delta;
      store<T>(near.distance.get() + i, e);
    }
    total += sum<T>(mass);
    moment += sum<T>(first);
  }
  T share = static_cast<T>(1 / total);
  for (int64_t i = 0; i < near.count; i += kLanes<T>)
    store<T>(near.distance.get() + i, load<T>(near.distance.get() + i) * share);
  return moment / total;
}

// y ∝ v^a, v = 1 − scale·Δ
template <class T>
FENCHEL_INLINE double write_powers(Candidates<T>& near, T scale, T a) {
  return write_normalized(near, [&](Vec<T> delta, int64_t) { return power1m<T>(delta * scale, a); });
}

// y ∝ (v + move (1 − v))^r from v^r in the scratch, by the first terms of the series. Where the move
// is not small against v, neither power matters.
template <class T>
FENCHEL_INLINE double write_moved_powers(Candidates<T>& near, T scale, T r, T move) {
  return write_normalized(near, [&](Vec<T> delta, int64_t i) {
    Vec<T> e = load<T>(near.scratch + i);
    Vec<T> tau = move * (inverse<T>(T(1) - delta * scale) - T(1));
    tau = tau < 1 ? tau : splat<T>(1);
    e += e * (tau * r) * (T(1) + tau * ((r - 1) / 2));
    return tau > -1 ? max<T>(e, Vec<T>{}) : Vec<T>{};
  });
}

// A root of f in [low, high], f decreasing, by steps that are halved whenever they leave the bracket.
// evaluate(x, step) returns f(x) and proposes a step.
template <class F>
FENCHEL_INLINE double bracketed_root(double x, double low, double high, double tolerance, F evaluate) {
  for (int i = 0; i < 200; ++i) {
    double step, f = evaluate(x, step);
    (f > 0 ? low : high) = x;
    double next = x + step;
    if (step < tolerance && step > -tolerance) return next;
    if (!(next > low && next < high)) next = low + (high - low) / 2;
    if (next == low || next == high) return next;
    x = next;
  }
  return x;
}

// Any r > 0, by Halley on the r-norm of u: exact in one step when all scores are equal, or r is
// infinite. The last step, below the cube root of the resolution, needs no new powers.
template <class T>
FENCHEL_INLINE Root power_root(Candidates<T>& near, double kappa, double r, double out_power, double s,
                               double resolution) {
  double power = r < out_power ? r : out_power;
  double shortest = (power < 3 ? std::pow(resolution, 1 / power) : std::cbrt(resolution)) / (2 * r);
  if (shortest < 1e-14) shortest = 1e-14;
  double low = 0, high = 2 * s, at = s;
  for (int i = 0; i < 200; ++i) {
    at = s;
    PowerSums p = power_sums<T>(near, static_cast<T>(kappa / s), static_cast<T>(r));
    double t = 1 - std::pow(p.at, -1 / r) / s;  // 1 − 1/‖u‖
    double g = p.below / p.at, h = p.lower / p.at;
    double bend = 1 - t * (r - 1) * (h / (g * g) - 1) / 2;
    double step = t / (g * (bend > 0.5 && bend < 2 ? bend : 1));
    (t > 0 ? high : low) = s;
    s -= s * step;
    if (step < shortest && step > -shortest) break;
    if (!(s > low && s < high)) s = low + (high - low) / 2;
    if (s == low || s == high) break;
  }
  if (out_power != r)
    return {(1 - s) * r, write_powers<T>(near, static_cast<T>(kappa / s), static_cast<T>(out_power))};
  return {(1 - s) * r, write_moved_powers<T>(near, static_cast<T>(kappa / at), static_cast<T>(r),
                                             static_cast<T>(1 - at / s))};
}

// The same in double where an exponent below one would magnify the rounding of v.
template <class T>
FENCHEL_INLINE Root precise_power_root(Candidates<T>& near, double kappa, double r, double out_power,
                                       double s = 1) {
  constexpr double resolution = std::numeric_limits<T>::epsilon();
  if (sizeof(T) == sizeof(double) || (r >= 1 && out_power >= 1))
    return power_root(near, kappa, r, out_power, s, resolution);
  Candidates<double> wide(near.count);
  wide.count = near.count;
  for (int64_t i = 0; i < padded<T>(near.count); ++i) wide.distance[i] = near.distance[i];
  Root root = power_root(wide, kappa, r, out_power, s, resolution);
  for (int64_t i = 0; i < near.count; ++i) near.distance[i] = static_cast<T>(wide.distance[i]);
  return root;
}

}  // namespace fenchel
