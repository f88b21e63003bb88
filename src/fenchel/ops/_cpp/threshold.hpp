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

// An upper bound of s. The root on a part of the row is one, and the largest entries of strided
// slices are the best part to take; so is the root for a larger r; so is any step of Newton from above
// on the norm of u, which is convex, and any shorter step. One is enough, with whole powers and the
// means that bound the rest f of the exponent: u / (f + (1−f)u) ≤ u^f ≤ fu + 1−f.
template <class T>
FENCHEL_INLINE double upper_root(const Peaks<T>& peak, double kappa, double r) {
  if (r > 64) return 1;
  auto add = [](auto a, auto b) { return a + b; };
  const int n = static_cast<int>(std::ceil(r * (1 - 1e-6)));
  const double rest = r - (n - 1);
  const bool split = n > 1 && rest < 0.2;  // a larger rest leaves the bounds too far apart
  const T f = static_cast<T>(split ? rest : 1), g = 1 - f;
  Vec<T> at = {}, below = {};
  for (const Vec<T>& slice : peak.slice) {
    Vec<T> u = max<T>(T(1) - static_cast<T>(kappa) * (peak.top - slice), Vec<T>{});
    Vec<T> p = whole_power<T>(u, split ? n - 2 : n - 1);
    at += split ? p * u * u / (f + g * u) : p * u;
    below += split ? p * (f * u + g) : p;
  }
  const T total = fold(at, add), power = (n - 1) + f;
  T norm = power == 1 ? total : power == 2 ? std::sqrt(total) : std::pow(total, 1 / power);
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
  T* y = near.distance.get();
  Vec<double> moment = {};
  for (int64_t i = 0; i < near.count; i += kLanes<double>) {
    Vec<double> delta = wide_load(y + i), u = s - kappa * delta;
    u = u > 0 ? u : Vec<double>{};
    Vec<double> value = power == 1 ? u : u * u;
    moment += value * delta;
    Narrow narrow = __builtin_convertvector(value, Narrow);
    std::memcpy(y + i, &narrow, sizeof narrow);
  }
  if constexpr (sizeof(T) == 8) {  // the last places of s, times the size of the support
    double share = 1 / compensated_sum(y, near.count);
    for (int64_t i = 0; i < near.count; ++i) y[i] *= share;
  }
  return sum<double>(moment);
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

// Σ u^(a+1), Σ u^a, Σ u^(a−1), Σ u^(a−2) over u = s − κΔ > 0.
struct PowerSums {
  double above, at, below, lower;
};

// u^a, u^(a−1) and u^(a−2)
template <class T>
struct Powers {
  Vec<T> at, below, lower;
};

// Those sums, with the powers from raise(u − 1, i), zero where u is not positive.
template <class T, class F>
FENCHEL_INLINE PowerSums power_sums_by(const Candidates<T>& near, double kappa, double s, F raise) {
  PowerSums total = {0, 0, 0, 0};
  const T rise = static_cast<T>(s - 1), fall = static_cast<T>(kappa);
  for (int64_t start = 0; start < near.count; start += kBlock<T>) {
    int64_t stop = near.count - start < kBlock<T> ? near.count : start + kBlock<T>;
    Vec<T> above = {}, at = {}, below = {}, lower = {};
    for (int64_t i = start; i < stop; i += kLanes<T>) {
      Vec<T> near_one = rise - load<T>(near.distance.get() + i) * fall;
      Powers<T> p = raise(near_one, i);
      above += p.at * (near_one + T(1));
      at += p.at;
      below += p.below;
      lower += p.lower;
    }
    total.above += sum<T>(above);
    total.at += sum<T>(at);
    total.below += sum<T>(below);
    total.lower += sum<T>(lower);
  }
  return total;
}

// Leaves u^a in the scratch, unless a is whole and u^a as cheap as a load.
template <class T>
FENCHEL_INLINE PowerSums power_sums(const Candidates<T>& near, double kappa, double s, double a) {
  const T rounded = static_cast<T>(a);
  if (is_whole(rounded))
    return power_sums_by(near, kappa, s, [n = static_cast<int>(rounded)](Vec<T> near_one, int64_t) {
      Vec<T> u = max<T>(near_one + T(1), Vec<T>{});
      if (n == 1) return Powers<T>{u, whole_power<T>(u, 0), Vec<T>{}};
      Vec<T> lower = whole_power<T>(u, n - 2), below = lower * u;
      return Powers<T>{below * u, below, lower};
    });
  return power_sums_by(near, kappa, s, [&](Vec<T> near_one, int64_t i) {
    Vec<T> u = near_one + T(1);
    near_one = u > 0 ? near_one : Vec<T>{};
    Vec<T> over = T(1) / (near_one + T(1)), e = power(near_one + T(1), near_one, rounded);
    e = u > 0 ? e : Vec<T>{};
    store<T>(near.scratch + i, e);
    return Powers<T>{e, e * over, e * over * over};
  });
}

// Replaces each distance by value(Δ, i), divided by the sum of all, and returns Σ y Δ.
template <class T, class F>
FENCHEL_INLINE double write_normalized(Candidates<T>& near, F value) {
  constexpr int64_t kPart = kBlock<T> / 4;  // short, since y is to sum to one
  double total = 0, moment = 0;
  for (int64_t start = 0; start < near.count; start += kPart) {
    int64_t stop = near.count - start < kPart ? near.count : start + kPart;
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
  if constexpr (sizeof(T) == 8) total = compensated_sum(near.distance.get(), near.count);
  T share = static_cast<T>(1 / total);
  for (int64_t i = 0; i < near.count; i += kLanes<T>)
    store<T>(near.distance.get() + i, load<T>(near.distance.get() + i) * share);
  return moment / total;
}

// y ∝ u^a, u = s − κΔ
template <class T>
FENCHEL_INLINE double write_powers(Candidates<T>& near, double kappa, double s, double a) {
  const T rise = static_cast<T>(s - 1), fall = static_cast<T>(kappa), rounded = static_cast<T>(a);
  if (is_whole(rounded))
    return write_normalized(near, [&](Vec<T> delta, int64_t) {
      return whole_power1p<T>(rise - delta * fall, static_cast<int>(rounded));
    });
  return write_normalized(near, [&](Vec<T> delta, int64_t) {
    return power1m<T>(delta * fall - rise, rounded);
  });
}

// y ∝ (u + move)^r from u^r in the scratch, by the first terms of the series. Where the move is not
// small against u, neither power matters.
template <class T>
FENCHEL_INLINE double write_moved_powers(Candidates<T>& near, double kappa, double s, T r, T move) {
  const T from = static_cast<T>(s), fall = static_cast<T>(kappa);
  return write_normalized(near, [&](Vec<T> delta, int64_t i) {
    Vec<T> e = load<T>(near.scratch + i), u = from - delta * fall;
    Vec<T> tau = move / (u > 0 ? u : splat<T>(1));
    tau = tau < 1 ? tau : splat<T>(1);
    e += e * (tau * r) * (T(1) + tau * ((r - 1) / 2));
    return tau > -1 ? max<T>(e, Vec<T>{}) : Vec<T>{};
  });
}

// 1 − x^(−1/r), by short series near x = 1, where the solver spends its time.
FENCHEL_INLINE double one_minus_root(double x, double r) {
  double w = (x - 1) / (x + 1), q = w * w;
  if (q > 0.01) return 1 - std::pow(x, -1 / r);
  double z = 2 * w * (1 + q * (1.0 / 3 + q * (1.0 / 5 + q * (1.0 / 7 + q / 9)))) / r;  // log x / r
  if (z * z > 0.01) return -std::expm1(-z);
  return z * (1 - z * (1.0 / 2 - z * (1.0 / 6 - z * (1.0 / 24 - z * (1.0 / 120 - z / 720)))));
}

// A root of f in [low, high], f decreasing. evaluate(x, step) returns f(x) and proposes a step. Where that
// leaves the bracket, or is not half the last but one and may go to and fro, the bracket is halved.
template <class F>
FENCHEL_INLINE double bracketed_root(double x, double low, double high, double tolerance, F evaluate) {
  double last = high - low, before = 2 * last;
  for (int i = 0; i < 200; ++i) {
    double step, f = evaluate(x, step);
    (f > 0 ? low : high) = x;
    double next = x + step;
    if (step < tolerance && step > -tolerance) return next;
    if (!(next > low && next < high) || 2 * std::fabs(step) > before) next = low + (high - low) / 2;
    if (next == low || next == high) return next;
    before = last;
    last = std::fabs(next - x);
    x = next;
  }
  return x;
}

// Below r = 1 the sum is not convex in s, and steep without end where an entry joins the support: steps
// may go to and fro, or be short though the root is far. Then a step must be at most half the last move,
// or the bracket is halved; and a short one is the end only if the norm of u is one but for the slack,
// which an entry that joins within the resolution of s makes up.
template <class T>
struct Wary {
  bool of_steps;
  T slack;

  explicit Wary(double r)
      : of_steps(r < 1),
        slack(static_cast<T>(std::pow(std::numeric_limits<T>::epsilon(), r))) {}
};

// Any r > 0, by Halley on the r-norm of u: exact in one step when all scores are equal, or r is
// infinite. The last step, below the cube root of the resolution, needs no new powers.
template <class T>
FENCHEL_INLINE Root power_root(Candidates<T>& near, double kappa, double r, double out_power, double s,
                               double resolution) {
  double power = r < out_power ? r : out_power;
  double shortest = (power < 3 ? std::pow(resolution, 1 / power) : std::cbrt(resolution)) / (2 * r);
  if (shortest < 1e-14) shortest = 1e-14;
  const Wary<double> wary(r);
  double low = std::numeric_limits<double>::epsilon(), high = 2 * s, at = s, last = high;
  for (int i = 0; i < 200; ++i) {
    at = s;
    PowerSums p = power_sums<T>(near, kappa, s, r);
    double t = one_minus_root(p.at, r);  // 1 − 1/‖u‖
    double steep = p.below * p.below, bend = steep - t * (r - 1) * (p.lower * p.at - steep) / 2;
    double step = t * p.at * (bend > 0.5 * steep && bend < 2 * steep ? p.below / bend : 1 / p.below);
    (t > 0 ? high : low) = s;
    s -= step;
    const bool brief = step < shortest * at && step > -shortest * at;
    const bool far = wary.of_steps && std::fabs(t) > wary.slack && high - low > 4 * shortest * at;
    if (brief && !far) break;
    if (brief || !(s > low && s < high) || (wary.of_steps && 2 * std::fabs(step) > last))
      s = low + (high - low) / 2;
    if (s == low || s == high) break;
    last = std::fabs(s - at);
  }
  if (out_power != r || wary.of_steps || is_whole(static_cast<T>(r)))
    return {(1 - s) * r, write_powers<T>(near, kappa, s, out_power)};
  T move = static_cast<T>(s - at);
  return {(1 - s) * r, write_moved_powers<T>(near, kappa, at, static_cast<T>(r), move)};
}

// The same in double where an exponent below one would magnify what u and the distances round.
template <class T>
FENCHEL_INLINE Root precise_power_root(Candidates<T>& near, double kappa, double r, double out_power,
                                       double s = 1) {
  constexpr double resolution = std::numeric_limits<T>::epsilon();
  if (sizeof(T) == sizeof(double) || (r >= 1 && out_power >= 1))
    return power_root(near, kappa, r, out_power, s, resolution);
  Candidates<double> wide(near.count);
  wide.count = near.count;
  for (int64_t i = 0; i < near.count; ++i)
    wide.distance[i] = static_cast<double>(near.top) - near.row[near.index[i]];
  for (int64_t i = near.count; i < padded<T>(near.count); ++i) wide.distance[i] = near.distance[i];
  Root root = power_root(wide, kappa, r, out_power, s, resolution);
  for (int64_t i = 0; i < near.count; ++i) near.distance[i] = static_cast<T>(wide.distance[i]);
  return root;
}

}  // namespace fenchel
