// Many short problems at once, one row per lane. A row with few candidates is all latency: each step is a chain of
// sums, powers and divisions. Side by side the rows fill the vectors and share the chain.
#pragma once

#include "threshold.hpp"

namespace fenchel {

// Candidates of up to kLanes rows: entry j of the row in a lane stands at j · kLanes + lane.
template <class T>
struct Columns {
  // Longer rows fill the vectors by themselves.
  static constexpr int64_t kLongest = sizeof(T) == 4 ? 64 : 128;
  static constexpr int64_t kSize = kLongest * kLanes<T>;
  std::unique_ptr<T[]> distance, power;
  std::unique_ptr<int32_t[]> index;
  int64_t count[kLanes<T>], row[kLanes<T>];
  T start[kLanes<T>], top[kLanes<T>];
  double rise[kLanes<T>], rest[kLanes<T>], mean_distance[kLanes<T>];
  int filled = 0;
  int64_t longest = 0;

  Columns() : distance(new T[kSize]), power(new T[kSize]), index(new int32_t[kSize]) {}

  bool full() const { return filled == kLanes<T>; }

  void add(const Candidates<T>& candidates, int64_t at_row, double s) {
    for (int64_t j = 0; j < candidates.count; ++j) {
      distance[j * kLanes<T> + filled] = candidates.distance[j];
      index[filled * kLongest + j] = candidates.index[j];
    }
    count[filled] = candidates.count;
    row[filled] = at_row;
    top[filled] = candidates.top;
    start[filled] = static_cast<T>(s - 1);
    longest = candidates.count > longest ? candidates.count : longest;
    ++filled;
  }

  // Fills short columns up with that distance, and empty lanes with a solved problem.
  void pad(T padding) {
    for (; filled < kLanes<T>; ++filled) {
      distance[filled] = 0;
      count[filled] = 1;
      row[filled] = -1;
      top[filled] = start[filled] = 0;
    }
    for (int lane = 0; lane < kLanes<T>; ++lane)
      for (int64_t j = count[lane]; j < longest; ++j) distance[j * kLanes<T> + lane] = padding;
  }
};

// Calls use(offset, (u − step)^r) for every vector of entries with u^r in `power`, by the first terms of
// the series.
template <bool from_one, class T, class F>
FENCHEL_INLINE void each_moved(const Columns<T>& all, T kappa, T r, Vec<T> point, Vec<T> rest, Vec<T> step,
                               F use) {
  for (int64_t j = 0; j < all.longest * kLanes<T>; j += kLanes<T>) {
    Vec<T> u = (point - load<T>(all.distance.get() + j) * kappa) + rest, e = load<T>(all.power.get() + j);
    if (from_one) u += T(1);
    Vec<T> part = -step / (u > 0 ? u : splat<T>(1));
    part = part < 1 ? part : splat<T>(1);
    e += e * (part * r) * (T(1) + part * ((r - 1) / 2));
    use(j, part > -1 ? max<T>(e, Vec<T>{}) : Vec<T>{});
  }
}

// The root of every lane. Leaves y in `power`; raise(u, u − 1) gives the powers. See power_root for the
// steps: lanes go on together until what each has sums to one.
template <bool from_one, class T, class F>
FENCHEL_INLINE void column_roots_by(Columns<T>& all, T kappa, T r, F raise) {
  constexpr T resolution = std::numeric_limits<T>::epsilon(), one = from_one ? 0 : 1;
  const T shortest = (r < 3 ? std::pow(resolution, 1 / r) : std::cbrt(resolution)) / r;
  // s as point + rest, or s − 1.
  Vec<T> point = load<T>(all.start) + one, rest = {}, high = point + T(1e-3), low = splat<T>(one - 1);
  Vec<T> step = {}, least = splat<T>(kInf<T>);
  for (int i = 0; i < kMaxSteps; ++i) {
    Vec<T> at = {}, below = {}, lower = {};
    for (int64_t j = 0; j < all.longest; ++j) {
      Vec<T> base = (point - load<T>(all.distance.get() + j * kLanes<T>) * kappa) + rest;
      Vec<T> u = from_one ? base + T(1) : base, near_one = from_one ? base : base - T(1);
      Powers<T> p = raise(u > 0 ? u : splat<T>(1), u > 0 ? near_one : Vec<T>{});
      p.at = u > 0 ? p.at : Vec<T>{};
      store<T>(all.power.get() + j * kLanes<T>, p.at);
      at += p.at;
      below += u > 0 ? p.below : Vec<T>{};
      lower += u > 0 ? p.lower : Vec<T>{};
    }
    Vec<T> t = T(1) - (r == 1 ? T(1) / at : r == 2 ? T(1) / sqrt<T>(at) : power(at, at - T(1), -1 / r));
    if (from_one) {  // 1 − at^(−1/r) where that is a difference of like numbers
      Vec<T> z = log<T>(at, Vec<T>{}) / r;
      Vec<T> series = z * (T(1) - z / 2 * (T(1) - z / 3 * (T(1) - z / 4 * (T(1) - z / 5))));
      t = magnitude<T>(z) < T(0.03) ? series : t;
    }
    Vec<T> newton = below * below, halley = newton - t * (r - 1) * (lower * at - newton) / 2;
    halley = halley > T(0.5) * newton ? halley : newton;
    halley = halley < 2 * newton ? halley : newton;
    step = t * at * below / halley;
    high = t > 0 ? point : high;
    low = t > 0 ? low : point;
    Vec<T> move = rest - step, next = point + move, middle = (low + high) / 2;
    Vec<T> length = magnitude<T>(step) - max<T>(shortest * (point + (T(1) - one)), splat<T>(resolution));
    const bool is_last = i + 1 == kMaxSteps;
    if (is_last || reduce_max(length) <= 0) {
      ExactSum<T> sum;
      each_moved<from_one>(all, kappa, r, point, rest, step,
                           [&](int64_t, Vec<T> e) FENCHEL_LAMBDA { sum.add(e); });
      Vec<T> excess = (sum.total - T(1)) - sum.rounded, size = magnitude<T>(excess);
      Vec<T> worth = size < least / 2 ? size : Vec<T>{};
      least = size;
      if (is_last || reduce_max(worth) <= 64 * resolution) {
        step += excess / (r * below);  // what the sums above rounded
        break;
      }
    }
    Vec<T> safe = next > low ? next : middle;
    safe = safe < high ? safe : middle;
    Vec<T> chosen = length <= 0 ? next : safe;
    rest = chosen == next ? move - (next - point) : Vec<T>{};
    point = chosen;
  }
  Vec<T> moment = {};
  each_moved<from_one>(all, kappa, r, point, rest, step, [&](int64_t j, Vec<T> e) FENCHEL_LAMBDA {
    moment += e * load<T>(all.distance.get() + j);
    store<T>(all.power.get() + j, e);
  });
  for (int lane = 0; lane < kLanes<T>; ++lane) {
    all.rise[lane] = point[lane] - static_cast<double>(one);
    all.rest[lane] = static_cast<double>(rest[lane]) - step[lane];
    all.mean_distance[lane] = moment[lane];
  }
}

template <class T>
FENCHEL_INLINE void column_roots(Columns<T>& all, double kappa, double r) {
  const T a = static_cast<T>(r), scale = static_cast<T>(kappa);
  auto small = [&](int n) FENCHEL_LAMBDA {
    column_roots_by<false>(all, scale, a, [n](Vec<T> u, Vec<T>) FENCHEL_LAMBDA {
      Vec<T> lower = n < 2 ? Vec<T>{} : whole_power<T>(u, n - 2);
      Vec<T> below = n < 2 ? splat<T>(1) : lower * u;
      return Powers<T>{below * u, below, lower};
    });
  };
  if (a == 1) return small(1);
  if (a == 2) return small(2);
  if (is_whole(a) && a < kSmallPower) return small(static_cast<int>(a));
  if (is_whole(a))
    return column_roots_by<true>(all, scale, a, [n = static_cast<int>(a)](Vec<T> u, Vec<T> near_one) FENCHEL_LAMBDA {
      Vec<T> rest = near_one - (u - T(1));  // u + rest is exact
      Vec<T> lower = whole_power<T>(u, n - 2), below = lower * u;
      return Powers<T>{below * u + below * rest * T(n), below, lower};
    });
  auto raise = [&](Vec<T> u, Vec<T> near_one) FENCHEL_LAMBDA {
    Vec<T> over = T(1) / u, at = power(u, near_one, a);
    return Powers<T>{at, at * over, at * over * over};
  };
  return a < kSmallPower ? column_roots_by<false>(all, scale, a, raise)
                         : column_roots_by<true>(all, scale, a, raise);
}

}  // namespace fenchel
