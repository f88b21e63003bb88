// Doubles with a wider exponent, for exponentials of scores up to a million.
#pragma once

#include <cmath>
#include <cstdint>

namespace fenchel {

// part · 2^(256 power), part = 0 or 2^−128 ≤ |part| < 2^128.
struct WideDouble {
  double part = 0;
  int64_t power = 0;

  static constexpr double kUp = 0x1p256, kDown = 0x1p-256, kHigh = 0x1p128, kLow = 0x1p-128;
  static constexpr double kLog = 177.445678223346;  // 256 ln 2, and in two parts, the first of which
  static constexpr double kLogHi = 0x1.62e42fee00000p+7, kLogLo = 0x1.a39ef35793c76p-25;  // is short
  static constexpr int64_t kRare = int64_t(1) << 48;

  WideDouble() = default;
  WideDouble(double value) : part(value) {
    for (int k = 0; k < 4; ++k) settle();
  }

  // e^x, zero where that never counts beside e^−kFar; the exponent is split off exactly enough for the
  // precision that x itself has.
  static WideDouble exp(double x) {
    WideDouble y;
    if (!(x >= -0x1p40)) return y;
    const double power = std::nearbyint(x / kLog);
    y.part = std::exp((x - power * kLogHi) - power * kLogLo);
    y.power = static_cast<int64_t>(power);
    y.settle();
    return y;
  }

  // The logarithm of a positive number, as if it were not rare.
  double log() const {
    const double whole = static_cast<double>(power + rarity() * kRare);
    return whole * kLogHi + (std::log(part) + whole * kLogLo);
  }

  // So small that two of them never count beside one.
  WideDouble rarely() const {
    WideDouble y = *this;
    if (part != 0) y.power -= kRare;
    return y;
  }
  // How many such there are in a product.
  int64_t rarity() const { return (kRare / 2 - power) >> 48; }

  void settle() {
    const double size = std::fabs(part);
    if (size >= kHigh)
      part *= kDown, ++power;
    else if (size < kLow)
      size > 0 ? (part *= kUp, --power) : power = 0;
  }
};

inline WideDouble operator*(WideDouble a, WideDouble b) {
  a.part *= b.part;
  a.power += b.power;
  a.settle();
  return a;
}
inline WideDouble operator/(WideDouble a, WideDouble b) {
  a.part /= b.part;
  a.power -= b.power;
  a.settle();
  return a;
}
inline WideDouble operator-(WideDouble a) {
  a.part = -a.part;
  return a;
}
inline WideDouble operator+(WideDouble a, WideDouble b) {
  if (a.part == 0) return b;
  if (b.part == 0) return a;
  if (a.power < b.power) return b + a;
  const int64_t apart = a.power - b.power;
  if (apart > 1) return a;
  a.part += apart ? b.part * WideDouble::kDown : b.part;
  a.settle();
  return a;
}
inline WideDouble operator-(WideDouble a, WideDouble b) { return a + -b; }

// As a double, zero or infinite where it has no room.
inline double narrow(WideDouble x) {
  if (x.power > 1) return x.part * INFINITY;
  return x.power == 0 ? x.part : x.power == 1 ? x.part * WideDouble::kUp : x.power == -1 ? x.part * WideDouble::kDown : 0;
}

}  // namespace fenchel
