// A solved row in four numbers: y = share [1 + (rise + rest − (α−1)(top − x))]₊^(1/(α−1)), which is
// share exp(x − top) at α = 1. Above α = 2 they are the pivot, its entry, 0 and 1: see steep.hpp. In a
// row without a solver `top` is not finite, and its largest entries get the share.
#pragma once

#include <type_traits>

#include "heavy.hpp"
#include "steep.hpp"

namespace fenchel {

struct State {
  double top, rise, rest, share;
};

// Calls use(y / share, offset, count) on consecutive vectors of a row whose top is finite.
template <class T, class F>
FENCHEL_INLINE void each_weight(const T* x, int64_t d, double alpha, const State& at, F use) {
  const T fall = static_cast<T>(alpha - 1), top = static_cast<T>(at.top);
  const double r = 1 / (alpha - 1);
  const T a = static_cast<T>(r);
  auto by = [&](auto weight) FENCHEL_LAMBDA {
    each_vector<T>(x, d, -kInf<T>, [&](Vec<T> v, int64_t i, int64_t count) FENCHEL_LAMBDA {
      use(weight(v), i, count);
    });
  };
  const Point<T> s = point_at<false, T>(at.rise, at.rest), near = point_at<true, T>(at.rise, at.rest);
  auto small = [&](int n) FENCHEL_LAMBDA {
    return [&s, top, fall, n](Vec<T> v) FENCHEL_LAMBDA {
      return whole_power<T>(max<T>(Above<false, T>(s, (top - v) * fall).u, Vec<T>{}), n);
    };
  };
  auto raised = [&](const auto& point, auto from_one) FENCHEL_LAMBDA {
    by([&](Vec<T> v) FENCHEL_LAMBDA {
      Above<decltype(from_one)::value, T> entry(point, (top - v) * fall);
      if (!below<T>(Vec<T>{}, entry.u)) return Vec<T>{};
      Vec<T> inside = entry.u > 0 ? entry.u : splat<T>(1);
      return entry.u > 0 ? power(inside, entry.u > 0 ? entry.near_one : Vec<T>{}, a) : Vec<T>{};
    });
  };
  if (alpha == 1) {
    by([&](Vec<T> v) FENCHEL_LAMBDA { return exp<T>(v - top); });
  } else if (alpha == 2) {
    by(small(1));
  } else if (alpha == 1.5) {
    by(small(2));
  } else if (alpha > 2) {
    const T under = std::nextafter(top, -kInf<T>);
    const Pivot pivot = {at.top, at.rise, std::pow(at.rise, alpha - 1)};
    by([&](Vec<T> v) FENCHEL_LAMBDA {
      if (!below<T>(splat<T>(under), v)) return Vec<T>{};
      return in_double(v, [&](Vec<double> wide) FENCHEL_LAMBDA {
        return pivot.entries(wide, alpha);
      });
    });
  } else if (alpha < 1) {
    by([&](Vec<T> v) FENCHEL_LAMBDA {
      return in_double(v, [&](Vec<double> wide) FENCHEL_LAMBDA {
        return heavy_power(at.rise + (at.top - wide) * (1 - alpha), r);
      });
    });
  } else if (r < kSmallPower) {
    raised(s, std::false_type{});
  } else if (is_whole(a)) {
    by([&](Vec<T> v) FENCHEL_LAMBDA {
      return whole_power1p<T>(Above<true, T>(near, (top - v) * fall).near_one, static_cast<int>(a));
    });
  } else {
    raised(near, std::true_type{});
  }
}

// Σ y / share, to the last place, since y is to sum to one.
template <class T>
FENCHEL_INLINE double total_weight(const T* x, int64_t d, double alpha, const State& at) {
  ExactSum<T> total;
  each_weight(x, d, alpha, at, [&](Vec<T> w, int64_t, int64_t) FENCHEL_LAMBDA { total.add(w); });
  return total.value();
}

}  // namespace fenchel
