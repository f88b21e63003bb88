// Doubles with a wider exponent, for exponentials of scores up to a million.
#pragma once

#include <cmath>
#include <cstdint>

namespace fenchel {

// significand · 2^(256 power), the significand as in BigExp.
struct WideDouble {
  double significand = 0;
  int64_t power = 0;

  static constexpr double kUp = 0x1p256, kDown = 0x1p-256, kHigh = 0x1p128, kLow = 0x1p-128;
  static constexpr double kLog = 177.445678223346;  // 256 ln 2, and in two parts, the first of which
  static constexpr double kLogHi = 0x1.62e42fee00000p+7, kLogLo = 0x1.a39ef35793c76p-25;  // is short
  static constexpr int64_t kEpsilon = int64_t(1) << 48;

  WideDouble() = default;
  WideDouble(double value) : significand(value) {
    for (int k = 0; k < 4; ++k) rescale();
  }

  // e^x, zero where that never counts beside e^−kLargeSum; the exponent is split off exactly enough for the
  // precision that x itself has.
  static WideDouble exp(double x) {
    WideDouble y;
    if (!(x >= -0x1p40)) return y;
    const double power = std::nearbyint(x / kLog);
    y.significand = std::exp((x - power * kLogHi) - power * kLogLo);
    y.power = static_cast<int64_t>(power);
    y.rescale();
    return y;
  }

  // The logarithm of a positive number, without ε.
  double log() const {
    const double whole = static_cast<double>(power + epsilon_power() * kEpsilon);
    return whole * kLogHi + (std::log(significand) + whole * kLogLo);
  }

  // Times an ε so small that two of them never count beside one.
  WideDouble times_epsilon() const {
    WideDouble y = *this;
    if (significand != 0) y.power -= kEpsilon;
    return y;
  }
  // How many factors ε a product has.
  int64_t epsilon_power() const { return (kEpsilon / 2 - power) >> 48; }

  void rescale() {
    const double size = std::fabs(significand);
    if (size >= kHigh)
      significand *= kDown, ++power;
    else if (size < kLow)
      size > 0 ? (significand *= kUp, --power) : power = 0;
  }
};

inline WideDouble operator*(WideDouble a, WideDouble b) {
  a.significand *= b.significand;
  a.power += b.power;
  a.rescale();
  return a;
}
inline WideDouble operator/(WideDouble a, WideDouble b) {
  a.significand /= b.significand;
  a.power -= b.power;
  a.rescale();
  return a;
}
inline WideDouble operator-(WideDouble a) {
  a.significand = -a.significand;
  return a;
}
inline WideDouble operator+(WideDouble a, WideDouble b) {
  if (a.significand == 0) return b;
  if (b.significand == 0) return a;
  if (a.power < b.power) return b + a;
  const int64_t difference = a.power - b.power;
  if (difference > 1) return a;
  a.significand += difference ? b.significand * WideDouble::kDown : b.significand;
  a.rescale();
  return a;
}
inline WideDouble operator-(WideDouble a, WideDouble b) { return a + -b; }

// As a double, zero or infinite where it has no room.
inline double narrow(WideDouble x) {
  if (x.power > 1) return x.significand * INFINITY;
  if (x.power == 1) return x.significand * WideDouble::kUp;
  if (x.power == -1) return x.significand * WideDouble::kDown;
  return x.power == 0 ? x.significand : 0;
}

}  // namespace fenchel
