// One scalar unknown per row: the root s of Σ [s − κΔ]₊^r = 1, where Δ is the distance below the
// largest score. Each solver turns the candidates' distances into the values of the answer.
#pragma once

#include "math.hpp"
#include "row.hpp"

namespace fenchel {

// Newton and Halley need ten at most; a bound that no row is known to meet.
constexpr int kMaxSteps = 200;

// A solved row: s − 1 = rise + rest, two doubles, and Σ y Δ.
struct Root {
  double rise, rest, mean_distance;
};

inline Root root_at(double s, double rest, double mean_distance) {
  double rise = s - 1;
  return {rise, (s - (rise + 1)) + rest, mean_distance};
}

// An upper bound of s. The root on a part of the row is one; the largest entries of strided slices are the
// best part to take. The root for a larger r is one. So is any step of Newton from above on the norm of u,
// which is convex, and any shorter step. One step is enough: with whole powers, and with the means that bound
// the rest f of the exponent, u / (f + (1−f)u) ≤ u^f ≤ fu + 1−f.
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
  const T total = reduce(at, add), power = (n - 1) + f;
  T norm = power == 1 ? total : power == 2 ? std::sqrt(total) : std::pow(total, 1 / power);
  return 1 - (norm - 1) / norm * total / reduce(below, add) + 1e-5;  // more than T rounds
}

struct Moments {
  double count, first, second;
};

// Count, sum and sum of squares of u = s − κΔ over u > 0.
template <class T>
FENCHEL_INLINE Moments moments(const Candidates<T>& candidates, double kappa, double s) {
  Vec<double> count = {}, first = {}, second = {};
  for (int64_t i = 0; i < candidates.count; i += kLanes<double>) {
    Vec<double> u = s - kappa * wide_load(candidates.distance.get() + i);
    u = u > 0 ? u : Vec<double>{};
    count += u > 0 ? splat<double>(1) : Vec<double>{};
    first += u;
    second += u * u;
  }
  return {sum<double>(count), sum<double>(first), sum<double>(second)};
}

// Writes y = u^power, power 1 or 2, u = (s − κΔ) + rest, and returns Σ y Δ. In double, what the last
// places of u leave of the sum is taken off as a step of s would: the share of y is u^(power−1).
template <int power, class T>
FENCHEL_INLINE double write(Candidates<T>& candidates, double kappa, double s, double rest) {
  T* y = candidates.distance.get();
  Vec<double> moment = {}, slope = {};
  for (int64_t i = 0; i < candidates.count; i += kLanes<double>) {
    Vec<double> delta = wide_load(y + i), u = (s - kappa * delta) + rest;
    u = u > 0 ? u : Vec<double>{};
    Vec<double> value = power == 1 ? u : u * u;
    moment += value * delta;
    slope += power == 2 ? u : u > 0 ? splat<double>(1) : Vec<double>{};
    narrow_store(y + i, value);
  }
  if constexpr (sizeof(T) == 8) {
    double excess = (compensated_sum(y, candidates.count) - 1) / sum<double>(slope);
    for (int64_t i = 0; i < candidates.count; i += kLanes<T>) {
      Vec<T> value = load<T>(y + i), share = power == 1 ? splat<T>(excess) : sqrt<T>(value) * excess;
      store<T>(y + i, value > 0 ? max<T>(value - share, Vec<T>{}) : value);
    }
  }
  return sum<double>(moment);
}

// r = 1. Newton from the right meets the root after finitely many changes of support: every step but
// the last leaves fewer entries in it.
template <class T>
FENCHEL_INLINE Root linear_root(Candidates<T>& candidates, double s = 1) {
  double support = kInf<double>, rest;
  for (;;) {
    Moments m = moments(candidates, 1, s);
    rest = (1 - m.first) / m.count;
    if (!(m.count < support)) break;
    support = m.count;
    s += rest;
  }
  return root_at(s, rest, write<1>(candidates, 1, s, rest));
}

// r = 2. Newton on the norm of u, and the quadratic's own root once the support stands still.
template <class T>
FENCHEL_INLINE Root quadratic_root(Candidates<T>& candidates, double s) {
  double support = static_cast<double>(candidates.count), rest = 0;
  for (int i = 0; i < kMaxSteps; ++i) {
    Moments m = moments(candidates, 0.5, s);
    if (m.count == support) {
      double slack = m.first * m.first - m.count * (m.second - 1);
      double exact = s - (m.second - 1) / (m.first + std::sqrt(slack > 0 ? slack : 0));
      Moments there = moments(candidates, 0.5, exact);
      if (there.count == support) {
        s = exact, rest = (1 - there.second) / (2 * there.first);  // what the square root rounded
        break;
      }
    }
    support = m.count;
    double next = s - (m.second - std::sqrt(m.second)) / m.first;
    if (!(next < s)) break;
    s = next;
  }
  return root_at(s, rest, write<2>(candidates, 0.5, s, rest));
}

// Above this power a step of s − 1 in its last place shows in y; below it, one of u where u is small
// and entries are many.
constexpr double kSmallPower = 4.5;

// s as high + low, two numbers of the row's type, or s − 1 where the power is large. Then
// (high − κΔ) + low is u, or u − 1, to its own last place: the difference is exact where it is small.
template <class T>
struct Point {
  T high, low;

  Point(double at, double rest)
      : high(static_cast<T>(at)), low(static_cast<T>((at - static_cast<double>(high)) + rest)) {}
};

template <bool from_one, class T>
FENCHEL_INLINE Point<T> point_at(double rise, double rest) {
  if constexpr (from_one) return Point<T>(rise, rest);
  double s = 1 + rise;
  return Point<T>(s, (rise - (s - 1)) + rest);
}

template <bool from_one, class T>
FENCHEL_INLINE Point<T> point_of(double s, double rest) {
  if constexpr (!from_one) return Point<T>(s, rest);
  Root root = root_at(s, rest, 0);
  return Point<T>(root.rise, root.rest);
}

// u and u − 1 of a vector of distances.
template <bool from_one, class T>
struct Above {
  Vec<T> u, near_one;

  FENCHEL_INLINE Above(const Point<T>& s, Vec<T> fallen) {
    Vec<T> at = (s.high - fallen) + s.low;
    u = from_one ? at + T(1) : at;
    near_one = from_one ? at : at - T(1);
  }
};

// Σ u^(a+1), Σ u^a, Σ u^(a−1), Σ u^(a−2) over u = s − κΔ > 0.
struct PowerSums {
  double above, at, below, lower;
};

// u^a, u^(a−1) and u^(a−2)
template <class T>
struct Powers {
  Vec<T> at, below, lower;
};

// Those sums, with the powers from raise(u, u − 1, i), zero where u is not positive.
template <bool from_one, class T, class F>
FENCHEL_INLINE PowerSums power_sums_by(const Candidates<T>& candidates, double kappa, const Point<T>& s,
                                       F raise) {
  PowerSums total = {0, 0, 0, 0};
  const T fall = static_cast<T>(kappa);
  for (int64_t start = 0; start < candidates.count; start += kBlock<T>) {
    int64_t stop = candidates.count - start < kBlock<T> ? candidates.count : start + kBlock<T>;
    Vec<T> above = {}, at = {}, below = {}, lower = {};
    for (int64_t i = start; i < stop; i += kLanes<T>) {
      Above<from_one, T> entry(s, load<T>(candidates.distance.get() + i) * fall);
      Powers<T> p = raise(entry.u, entry.near_one, i);
      above += p.at * entry.u;
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
template <bool from_one, class T>
FENCHEL_INLINE PowerSums power_sums(const Candidates<T>& candidates, double kappa, const Point<T>& s, T a) {
  if (is_whole(a))
    return power_sums_by<from_one>(candidates, kappa, s, [n = static_cast<int>(a)](Vec<T> u, Vec<T>, int64_t) {
      u = max<T>(u, Vec<T>{});
      if (n == 1) return Powers<T>{u, whole_power<T>(u, 0), Vec<T>{}};
      Vec<T> lower = whole_power<T>(u, n - 2), below = lower * u;
      return Powers<T>{below * u, below, lower};
    });
  return power_sums_by<from_one>(candidates, kappa, s, [&](Vec<T> u, Vec<T> near_one, int64_t i) {
    Vec<T> inside = u > 0 ? u : splat<T>(1);
    Vec<T> over = T(1) / inside, e = power(inside, u > 0 ? near_one : Vec<T>{}, a);
    e = u > 0 ? e : Vec<T>{};
    store<T>(candidates.scratch + i, e);
    return Powers<T>{e, e * over, e * over * over};
  });
}

// What y is proportional to, summed, and Σ y Δ of it.
struct Masses {
  double total, moment;
};

// Fills the scratch with value(Δ, i).
template <class T, class F>
FENCHEL_INLINE Masses weigh(Candidates<T>& candidates, F value) {
  constexpr int64_t kPart = kBlock<T> / 4;  // short, since y is to sum to one
  Masses sums = {0, 0};
  for (int64_t start = 0; start < candidates.count; start += kPart) {
    int64_t stop = candidates.count - start < kPart ? candidates.count : start + kPart;
    Vec<T> mass = {}, first = {};
    for (int64_t i = start; i < stop; i += kLanes<T>) {
      Vec<T> delta = load<T>(candidates.distance.get() + i), e = value(delta, i);
      mass += e;
      first += e * delta;
      store<T>(candidates.scratch + i, e);
    }
    sums.total += sum<T>(mass);
    sums.moment += sum<T>(first);
  }
  if constexpr (sizeof(T) == 8) sums.total = compensated_sum(candidates.scratch, candidates.count);
  return sums;
}

// Writes the scratch, divided by its sum, over the distances; returns Σ y Δ.
template <class T>
FENCHEL_INLINE double normalize(Candidates<T>& candidates, const Masses& sums) {
  T share = static_cast<T>(1 / sums.total);
  for (int64_t i = 0; i < candidates.count; i += kLanes<T>)
    store<T>(candidates.distance.get() + i, load<T>(candidates.scratch + i) * share);
  return sums.moment / sums.total;
}

// u^a
template <bool from_one, class T>
FENCHEL_INLINE Masses weigh_powers(Candidates<T>& candidates, double kappa, const Point<T>& s, T a) {
  const T fall = static_cast<T>(kappa);
  if (is_whole(a))
    return weigh(candidates, [&](Vec<T> delta, int64_t) {
      Above<from_one, T> entry(s, delta * fall);
      if constexpr (from_one) return whole_power1p<T>(entry.near_one, static_cast<int>(a));
      return whole_power<T>(max<T>(entry.u, Vec<T>{}), static_cast<int>(a));
    });
  return weigh(candidates, [&](Vec<T> delta, int64_t) {
    Above<from_one, T> entry(s, delta * fall);
    Vec<T> inside = entry.u > 0 ? entry.u : splat<T>(1);
    return entry.u > 0 ? power(inside, entry.u > 0 ? entry.near_one : Vec<T>{}, a) : Vec<T>{};
  });
}

// Calls use(offset, Δ, (u + move)^r) for every vector with u^r in the scratch, by the first terms of the
// series. Where the move is not small against u, neither power matters, or the sum of all shows it.
template <bool from_one, class T, class F>
FENCHEL_INLINE void each_moved(const Candidates<T>& candidates, double kappa, const Point<T>& s, T r, T move,
                               F use) {
  const T fall = static_cast<T>(kappa);
  for (int64_t i = 0; i < candidates.count; i += kLanes<T>) {
    Vec<T> delta = load<T>(candidates.distance.get() + i), e = load<T>(candidates.scratch + i);
    Vec<T> u = Above<from_one, T>(s, delta * fall).u, part = move / (u > 0 ? u : splat<T>(1));
    part = part < 1 ? part : splat<T>(1);
    e += e * (part * r) * (T(1) + part * ((r - 1) / 2));
    use(i, delta, part > -1 ? max<T>(e, Vec<T>{}) : Vec<T>{});
  }
}

// 1 − x^(−1/r), by short series candidates x = 1, where the solver spends its time.
FENCHEL_INLINE double one_minus_root(double x, double r) {
  double w = (x - 1) / (x + 1), q = w * w;
  if (q > 0.01) return 1 - std::pow(x, -1 / r);
  double z = 2 * w * (1 + q * (1.0 / 3 + q * (1.0 / 5 + q * (1.0 / 7 + q / 9)))) / r;  // log x / r
  if (z * z > 0.01) return -std::expm1(-z);
  return z * (1 - z * (1.0 / 2 - z * (1.0 / 6 - z * (1.0 / 24 - z * (1.0 / 120 - z / 720)))));
}

// Tells when what is left of an equation is rounding: a few last places, or a step no longer halves it.
template <class T>
struct Residual {
  double least = kInf<double>;

  bool is_rounding(double excess) {
    excess = std::fabs(excess);
    bool halved = excess < least / 2;
    least = excess;
    return !halved || excess <= 4 * std::numeric_limits<T>::epsilon();
  }
};

// A sum as if in twice the precision.
template <class T>
struct ExactSum {
  Vec<T> total = {}, rounded = {};

  FENCHEL_INLINE void add(Vec<T> v) {
    Vec<T> term = v - rounded, next = total + term;
    rounded = (next - total) - term;
    total = next;
  }
  double value() const { return sum<T>(total) - sum<T>(rounded); }
};

// Any r ≥ 1, by Halley on the r-norm of u: exact in one step when all scores are equal, or r is
// infinite. The last step, below the cube root of the resolution, needs no new powers; it is the last
// if what it leaves sums to one, but for what the sums of powers rounded.
template <bool from_one, class T>
FENCHEL_INLINE Root power_root_from(Candidates<T>& candidates, double kappa, double r, double out_power,
                                    double s, double resolution) {
  const double power = r < out_power ? r : out_power;
  double shortest = (power < 3 ? std::pow(resolution, 1 / power) : std::cbrt(resolution)) / (2 * r);
  if (shortest < 1e-14) shortest = 1e-14;
  const T a = static_cast<T>(r);
  const bool by_series = out_power == r && !is_whole(a);
  double low = 0, high = 2 * s, rest = 0;
  Residual<T> residual;
  for (int i = 0; i < kMaxSteps; ++i) {
    const Point<T> at = point_of<from_one, T>(s, rest);
    PowerSums p = power_sums<from_one>(candidates, kappa, at, a);
    double t = one_minus_root(p.at, r);  // 1 − 1/‖u‖
    // The denominators of Newton's and of Halley's step.
    double newton = p.below * p.below, halley = newton - t * (r - 1) * (p.lower * p.at - newton) / 2;
    double step = t * p.at * (halley > 0.5 * newton && halley < 2 * newton ? p.below / halley : 1 / p.below);
    (t > 0 ? high : low) = s;
    double move = rest - step, next = s + move;
    const bool is_short = std::fabs(step) < shortest * s;
    if (is_short && by_series) {
      ExactSum<T> total;
      each_moved<from_one>(candidates, kappa, at, a, static_cast<T>(-step),
                           [&](int64_t, Vec<T>, Vec<T> e) FENCHEL_LAMBDA { total.add(e); });
      const double excess = total.value() - 1;
      if (residual.is_rounding(excess)) {
        step += excess / (r * p.below);
        Vec<T> moment = {};
        each_moved<from_one>(candidates, kappa, at, a, static_cast<T>(-step),
                             [&](int64_t j, Vec<T> delta, Vec<T> e) FENCHEL_LAMBDA {
                               moment += e * delta;
                               store<T>(candidates.distance.get() + j, e);
                             });
        return root_at(s, rest - step, sum<T>(moment));
      }
    } else if (is_short && residual.is_rounding(p.at - 1)) {
      rest = move;
      break;
    }
    if (!is_short && !(next > low && next < high)) {
      next = low + (high - low) / 2, rest = 0;
      if (next == low || next == high) break;
    } else {
      rest = move - (next - s);
    }
    s = next;
  }
  const Point<T> end = point_of<from_one, T>(s, rest);
  const Masses sums = weigh_powers<from_one>(candidates, kappa, end, static_cast<T>(out_power));
  return root_at(s, rest, normalize(candidates, sums));
}

template <class T>
FENCHEL_INLINE Root power_root(Candidates<T>& candidates, double kappa, double r, double out_power, double s,
                               double resolution) {
  return r > kSmallPower ? power_root_from<true>(candidates, kappa, r, out_power, s, resolution)
                         : power_root_from<false>(candidates, kappa, r, out_power, s, resolution);
}

// The same in double where a power of the answer below one would magnify what u and the distances round.
template <class T>
FENCHEL_INLINE Root precise_power_root(Candidates<T>& candidates, double kappa, double r, double out_power,
                                       double s = 1) {
  constexpr double resolution = std::numeric_limits<T>::epsilon();
  if (sizeof(T) == sizeof(double) || out_power >= 1)
    return power_root(candidates, kappa, r, out_power, s, resolution);
  Candidates<double> wide(candidates.count);
  wide.count = candidates.count;
  for (int64_t i = 0; i < candidates.count; ++i)
    wide.distance[i] = static_cast<double>(candidates.top) - candidates.row[candidates.index[i]];
  for (int64_t i = candidates.count; i < padded<T>(candidates.count); ++i) wide.distance[i] = candidates.distance[i];
  Root root = power_root(wide, kappa, r, out_power, s, resolution);
  for (int64_t i = 0; i < candidates.count; ++i) candidates.distance[i] = static_cast<T>(wide.distance[i]);
  return root;
}

}  // namespace fenchel
