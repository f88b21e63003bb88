// Sums of scores without rounding, for oracles whose scores are so large that doubles would lose the small ones.
// An exact number acts as a vector of one lane, so an oracle is written once for both.
#pragma once

#include <vector>

#include "simd.hpp"
#include "big_exp.hpp"

namespace fenchel {

// A multiple of 2^−64, or infinite.
class Exact {
 public:
  Exact(double x = 0) : infinite_(std::isinf(x) ? (x > 0 ? 1 : -1) : 0) {
    if (!infinite_) log_ = Log(x);
  }

  Exact& operator+=(const Exact& other) { return *this = *this + other; }
  friend Exact operator+(Exact a, const Exact& b) {
    if (a.infinite_ || b.infinite_) return a.infinite_ ? a : b;
    a.log_ += b.log_;
    return a;
  }
  friend Exact operator-(Exact a, const Exact& b) {
    if (a.infinite_) return a;
    if (b.infinite_) return Exact(b.infinite_ > 0 ? -INFINITY : INFINITY);
    a.log_ -= b.log_;
    return a;
  }
  friend bool operator<(const Exact& a, const Exact& b) {
    if (a.infinite_ || b.infinite_) return a.infinite_ < b.infinite_;
    return (a.log_ - b.log_).is_negative();
  }
  friend bool operator>(const Exact& a, const Exact& b) { return b < a; }
  friend bool operator>=(const Exact& a, const Exact& b) { return !(a < b); }
  friend bool operator==(const Exact& a, const Exact& b) { return !(a < b) && !(b < a); }

  double value() const { return infinite_ ? infinite_ * INFINITY : log_.value(); }

 private:
  int infinite_;
  Log log_;
};

inline double rounded(double x) { return x; }
inline double rounded(const Exact& x) { return x.value(); }

template <>
struct Lanes<Exact> {
  using Vec = Exact;
  using Int = int64_t;
};
template <>
constexpr int64_t kLanes<Exact> = 1;
template <>
inline Exact splat<Exact>(Exact a) { return a; }
template <>
inline Exact load<Exact>(const Exact* p) { return *p; }
template <>
inline void store<Exact>(Exact* p, Exact v) { *p = v; }
template <>
inline Exact max<Exact>(Exact a, Exact b) { return a < b ? b : a; }
inline Exact reduce_max(const Exact& v) { return v; }

inline Exact largest(const Exact* x, int64_t n) {
  Exact top = -INFINITY;
  for (int64_t i = 0; i < n; ++i) top = max<Exact>(top, x[i]);
  return top;
}
inline int first_equal(const Exact* x, int64_t n, const Exact& value) {
  for (int64_t i = 0; i < n; ++i)
    if (x[i] == value) return static_cast<int>(i);
  return -1;
}

}  // namespace fenchel
