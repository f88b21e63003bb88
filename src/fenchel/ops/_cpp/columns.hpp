// Many short problems at once: one row per lane. A row with few candidates is all latency (a chain of
// sums, powers and divisions per step); side by side the rows fill the vectors and share the chain.
#pragma once

#include "threshold.hpp"

namespace fenchel {

// Candidates of up to kLanes rows: entry j of the row in a lane stands at j · kLanes + lane.
template <class T>
struct Columns {
  // Longer rows fill the vectors by themselves; in double they gain from the unknown s − 1 below.
  static constexpr int64_t kLongest = sizeof(T) == 4 ? 64 : 128;
  static constexpr int64_t kSize = kLongest * kLanes<T>;
  std::unique_ptr<T[]> distance, power;
  std::unique_ptr<int32_t[]> index;
  int64_t count[kLanes<T>], row[kLanes<T>];
  T rise[kLanes<T>], top[kLanes<T>];
  int filled = 0;
  int64_t longest = 0;

  Columns() : distance(new T[kSize]), power(new T[kSize]), index(new int32_t[kSize]) {}

  bool full() const { return filled == kLanes<T>; }

  // The scores may be of a narrower type; their distances are exact in the wider one.
  template <class S>
  void add(const Candidates<S>& near, int64_t at_row, double s) {
    for (int64_t j = 0; j < near.count; ++j) {
      T delta = sizeof(S) == sizeof(T) ? near.distance[j]
                                       : static_cast<T>(near.top) - near.row[near.index[j]];
      distance[j * kLanes<T> + filled] = delta;
      index[filled * kLongest + j] = near.index[j];
    }
    count[filled] = near.count;
    row[filled] = at_row;
    top[filled] = near.top;
    rise[filled] = static_cast<T>(s - 1);
    longest = near.count > longest ? near.count : longest;
    ++filled;
  }

  // Fills short columns up with entries out of reach, and empty lanes with a solved problem.
  void seal(T far) {
    for (; filled < kLanes<T>; ++filled) {
      distance[filled] = 0;
      count[filled] = 1;
      row[filled] = -1;
      top[filled] = rise[filled] = 0;
    }
    for (int lane = 0; lane < kLanes<T>; ++lane)
      for (int64_t j = count[lane]; j < longest; ++j) distance[j * kLanes<T> + lane] = far;
  }
};

// The root of every lane in the unknown s − 1, which is exact where s is near one. Returns the
// sums Σ y Δ and leaves y in `power`; raise(u − 1) gives the powers. See power_root for the steps.
template <class T, class F>
FENCHEL_INLINE Vec<T> column_roots_by(Columns<T>& all, T kappa, T r, F raise) {
  constexpr T resolution = std::numeric_limits<T>::epsilon();
  // No step is worth taking that rounding could have made; powers below one add to that.
  const T noise = r < 1 ? 50 * resolution : resolution;
  const T shortest = (r < 3 ? std::pow(resolution, 1 / r) : std::cbrt(resolution)) / r;
  const Wary<T> wary(r);
  Vec<T> rise = load<T>(all.rise), high = rise + T(1e-3), at_rise;
  Vec<T> low = splat<T>(resolution - 1);  // u > 0 at the largest score, or nothing would be left
  Vec<T> last = splat<T>(2);
  for (int step_number = 0; step_number < 100; ++step_number) {
    Vec<T> at = {}, below = {}, lower = {};
    for (int64_t j = 0; j < all.longest; ++j) {
      Vec<T> near_one = rise - load<T>(all.distance.get() + j * kLanes<T>) * kappa;
      Vec<T> u = near_one + T(1);
      Powers<T> p = raise(u > 0 ? near_one : Vec<T>{});
      p.at = u > 0 ? p.at : Vec<T>{};
      store<T>(all.power.get() + j * kLanes<T>, p.at);
      at += p.at;
      below += u > 0 ? p.below : Vec<T>{};
      lower += u > 0 ? p.lower : Vec<T>{};
    }
    Vec<T> t = T(1) - (r == 1 ? T(1) / at : r == 2 ? T(1) / sqrt<T>(at) : power(at, at - T(1), -1 / r));
    Vec<T> steep = below * below, bend = steep - t * (r - 1) * (lower * at - steep) / 2;
    bend = bend > T(0.5) * steep ? bend : steep;
    bend = bend < 2 * steep ? bend : steep;
    Vec<T> step = t * at * below / bend;
    high = t > 0 ? rise : high;
    low = t > 0 ? low : rise;
    at_rise = rise;
    Vec<T> length = magnitude<T>(step) - max<T>(shortest * (rise + T(1)), splat<T>(noise));
    Vec<T> next = rise - step, middle = (low + high) / 2, safe = next > low ? next : middle;
    safe = safe < high ? safe : middle;
    if (wary.of_steps) {
      safe = 2 * magnitude<T>(step) > last ? middle : safe;
      safe = length <= 0 ? middle : safe;
      Vec<T> apart = magnitude<T>(t) - wary.slack, width = high - low - 4 * noise;
      length = max<T>(length, apart < width ? apart : width);
    }
    next = length <= 0 ? max<T>(next, low) : safe;
    last = magnitude<T>(next - rise);
    rise = next;
    if (fold(length, [](auto a, auto b) { return a > b ? a : b; }) <= 0) break;
  }
  store<T>(all.rise, rise);
  Vec<T> move = rise - at_rise, total = {}, rounded = {}, moment = {};
  for (int64_t j = 0; j < all.longest; ++j) {
    Vec<T> delta = load<T>(all.distance.get() + j * kLanes<T>);
    Vec<T> e = load<T>(all.power.get() + j * kLanes<T>), u = (at_rise - delta * kappa) + T(1);
    if (wary.of_steps) {
      Vec<T> near_one = rise - delta * kappa, above = near_one + T(1);
      e = above > 0 ? raise(above > 0 ? near_one : Vec<T>{}).at : Vec<T>{};
    } else {
      Vec<T> tau = move / (u > 0 ? u : splat<T>(1));
      tau = tau < 1 ? tau : splat<T>(1);
      e += e * (tau * r) * (T(1) + tau * ((r - 1) / 2));
      e = tau > -1 ? max<T>(e, Vec<T>{}) : Vec<T>{};
    }
    Vec<T> term = e - rounded, next = total + term;  // the sum as if in twice the precision
    rounded = (next - total) - term;
    total = next;
    moment += e * delta;
    store<T>(all.power.get() + j * kLanes<T>, e);
  }
  Vec<T> share = T(1) / total;
  for (int64_t j = 0; j < all.longest; ++j)
    store<T>(all.power.get() + j * kLanes<T>, load<T>(all.power.get() + j * kLanes<T>) * share);
  return moment * share;
}

template <class T>
FENCHEL_INLINE Vec<T> column_roots(Columns<T>& all, double kappa, double r) {
  const T a = static_cast<T>(r), scale = static_cast<T>(kappa);
  auto whole = [&](int n) FENCHEL_LAMBDA {
    return column_roots_by(all, scale, a, [n](Vec<T> near_one) FENCHEL_LAMBDA {
      Vec<T> u = near_one + T(1), rest = near_one - (u - T(1));  // u + rest is exact
      Vec<T> lower = n < 2 ? Vec<T>{} : whole_power<T>(u, n - 2);
      Vec<T> below = n < 2 ? splat<T>(1) : lower * u;
      return Powers<T>{below * u + below * rest * T(n), below, lower};
    });
  };
  if (a == 1) return whole(1);
  if (a == 2) return whole(2);
  if (is_whole(a)) return whole(static_cast<int>(a));
  return column_roots_by(all, scale, a, [&](Vec<T> near_one) FENCHEL_LAMBDA {
    Vec<T> u = near_one + T(1), over = T(1) / u, at = power(u, near_one, a);
    return Powers<T>{at, at * over, at * over * over};
  });
}

}  // namespace fenchel
