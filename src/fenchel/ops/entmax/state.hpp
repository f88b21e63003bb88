// A solved row in three numbers: y = share [1 + (rise − (α−1)(top − x))]₊^(1/(α−1)), which is
// share exp(x − top) at α = 1. In a settled row `top` is not finite, and its entries get the share.
#pragma once

#include "math.hpp"
#include "row.hpp"

namespace fenchel {

template <class T>
struct State {
  T top, rise, share;
};

// u^r where u > 0, else zero; u = 1 + near_one.
template <class T>
FENCHEL_INLINE Vec<T> positive_power(Vec<T> near_one, T r) {
  Vec<T> u = near_one + T(1);
  if (!below<T>(Vec<T>{}, u)) return Vec<T>{};
  near_one = u > 0 ? near_one : Vec<T>{};
  return u > 0 ? power(near_one + T(1), near_one, r) : Vec<T>{};
}

// Calls use(y / share, offset, count) on consecutive vectors of a row that is not settled.
template <class T, class F>
FENCHEL_INLINE void each_weight(const T* x, int64_t d, double alpha, const State<T>& at, F use) {
  const T fall = static_cast<T>(alpha - 1);
  const double r = 1 / (alpha - 1);
  auto by = [&](auto weight) FENCHEL_LAMBDA {
    each_vector<T>(x, d, -kInf<T>, [&](Vec<T> v, int64_t i, int64_t count) FENCHEL_LAMBDA {
      use(weight(v), i, count);
    });
  };
  auto whole = [&](int n) FENCHEL_LAMBDA {
    return [&at, fall, n](Vec<T> v) FENCHEL_LAMBDA {
      return whole_power1p<T>(at.rise - (at.top - v) * fall, n);
    };
  };
  if (alpha == 1) {
    by([&](Vec<T> v) FENCHEL_LAMBDA { return exp<T>(v - at.top); });
  } else if (alpha == 2) {
    by([&](Vec<T> v) FENCHEL_LAMBDA {
      return max<T>((at.rise - (at.top - v)) + T(1), Vec<T>{});
    });
  } else if (alpha == 1.5) {
    by(whole(2));
  } else if (alpha < 2 && is_whole(static_cast<T>(r))) {
    by(whole(static_cast<int>(static_cast<T>(r))));
  } else if (alpha < 2) {
    by([&](Vec<T> v) FENCHEL_LAMBDA {
      return positive_power<T>(at.rise - (at.top - v) * fall, static_cast<T>(r));
    });
  } else {  // an exponent below one magnifies what u rounds
    const T reach = static_cast<T>((1 + at.rise) * r * (1 + 1e-6));
    by([&](Vec<T> v) FENCHEL_LAMBDA {
      if (!below<T>(at.top - v, splat<T>(reach))) return Vec<T>{};
      return in_double(v, [&](Vec<double> wide) FENCHEL_LAMBDA {
        return positive_power<double>(at.rise - (at.top - wide) * (alpha - 1), r);
      });
    });
  }
}

// Σ y / share, by blocks as in every sum over a row.
template <class T>
FENCHEL_INLINE double total_weight(const T* x, int64_t d, double alpha, const State<T>& at) {
  double total = 0;
  for (int64_t start = 0; start < d; start += kBlock<T>) {
    Vec<T> mass = {};
    int64_t n = d - start < kBlock<T> ? d - start : kBlock<T>;
    each_weight(x + start, n, alpha, at, [&](Vec<T> w, int64_t, int64_t) FENCHEL_LAMBDA {
      mass += w;
    });
    total += sum<T>(mass);
  }
  return total;
}

}  // namespace fenchel
