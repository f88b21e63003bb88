// Exponentials of scores of any size: numbers with the precision of a double and no limit to their exponent.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

namespace fenchel {

// Larger sums of scores are rounded by more than their exponentials should be.
constexpr double kLargeSum = 0x1p20;
// Whether there were such sums, from the largest score and the log-partition. Where no score is above
// kLargeSum, and some structure's sum is not below −kLargeSum, the sums of other structures do not matter. So a
// large negative score can forbid a part at no cost.
inline bool needs_exact_sums(double largest, double value) {
  return largest > kLargeSum || (value < -kLargeSum && value > -std::numeric_limits<double>::infinity());
}

// A logarithm in fixed point, a multiple of 2^−64 in two's complement. Sums of scores are exact: structures
// that share a large score differ by their small ones, and equal sums are equal.
class Log {
 public:
  Log() = default;
  explicit Log(double x) {
    int exponent;
    const double fraction = std::frexp(std::fabs(x), &exponent);
    uint64_t digits = static_cast<uint64_t>(std::ldexp(fraction, 53));
    int place = exponent - 53 + 64;
    if (place < 0) digits = place > -64 ? digits >> -place : 0, place = 0;
    const int limb = place / 64, shift = place % 64;
    limb_[limb] = digits << shift;
    if (shift > 0 && limb + 1 < kLimbs) limb_[limb + 1] = digits >> (64 - shift);
    if (x < 0) *this = Log() - *this;
  }
  // whole + fraction · 2^−64.
  Log(uint64_t whole, uint64_t fraction) : limb_{fraction, whole} {}

  Log& operator+=(const Log& other) {
    unsigned __int128 total = 0;
    for (int i = 0; i < kLimbs; ++i) {
      total += limb_[i];
      total += other.limb_[i];
      limb_[i] = static_cast<uint64_t>(total);
      total >>= 64;
    }
    return *this;
  }
  Log& operator-=(const Log& other) {
    unsigned __int128 total = 1;
    for (int i = 0; i < kLimbs; ++i) {
      total += limb_[i];
      total += ~other.limb_[i];
      limb_[i] = static_cast<uint64_t>(total);
      total >>= 64;
    }
    return *this;
  }
  friend Log operator-(Log a, const Log& b) { return a -= b; }

  bool is_negative() const { return limb_[kLimbs - 1] >> 63; }

  // As a double, infinite beyond 2^63.
  double value_or_infinity() const {
    const uint64_t sign = static_cast<uint64_t>(static_cast<int64_t>(limb_[1]) >> 63);
    uint64_t rest = 0;
    for (int i = 2; i < kLimbs; ++i) rest |= limb_[i] ^ sign;
    if (rest) return is_negative() ? -INFINITY : INFINITY;
    return static_cast<double>(static_cast<int64_t>(limb_[1])) + static_cast<double>(limb_[0]) * 0x1p-64;
  }
  // The same without limit.
  double value() const {
    if (is_negative()) return -(Log() - *this).value();
    double total = 0;
    for (int i = 0; i < kLimbs; ++i) total += std::ldexp(static_cast<double>(limb_[i]), 64 * (i - 1));
    return total;
  }

 private:
  // For the sum of 2^60 scores of any size that a double has.
  static constexpr int kLimbs = 18;
  uint64_t limb_[kLimbs] = {};
};

// significand · e^exponent · ε^epsilons for an infinitely small ε; the significand is 0, or its magnitude at
// least 2^−128 and below 2^128.
struct BigExp {
  double significand = 0;
  int64_t epsilons = 0;
  Log exponent;

  BigExp() = default;
  BigExp(double value) : significand(value) { rescale(); }

  // e^x, zero for −inf.
  static BigExp exp(double x) {
    BigExp y;
    if (!(x > -INFINITY)) return y;
    y.significand = 1;
    y.exponent = Log(x);
    return y;
  }
  // The logarithm of a positive number, without ε.
  double log() const { return exponent.value() + std::log(significand); }

  // Times ε, so that it counts only where nothing else does.
  BigExp times_epsilon() const {
    BigExp y = *this;
    ++y.epsilons;
    return y;
  }
  int64_t epsilon_power() const { return epsilons; }

  void rescale() {
    static constexpr uint64_t kWhole = 177, kFraction = 0x7217f7d1cf79abca;  // 256 ln 2
    while (std::fabs(significand) >= 0x1p128 && std::isfinite(significand)) {
      significand *= 0x1p-256;
      exponent += Log(kWhole, kFraction);
    }
    while (std::fabs(significand) < 0x1p-128 && significand != 0) {
      significand *= 0x1p256;
      exponent -= Log(kWhole, kFraction);
    }
  }
};

inline BigExp operator*(BigExp a, const BigExp& b) {
  a.significand *= b.significand;
  if (a.significand == 0) return {};
  a.epsilons += b.epsilons;
  a.exponent += b.exponent;
  a.rescale();
  return a;
}
inline BigExp operator/(BigExp a, const BigExp& b) {
  a.significand /= b.significand;
  if (a.significand == 0) return {};
  a.epsilons -= b.epsilons;
  a.exponent -= b.exponent;
  a.rescale();
  return a;
}
inline BigExp operator-(BigExp a) {
  a.significand = -a.significand;
  return a;
}
inline BigExp operator+(const BigExp& a, const BigExp& b) {
  if (a.significand == 0 || b.significand == 0) return a.significand == 0 ? b : a;
  if (a.epsilons != b.epsilons) return a.epsilons < b.epsilons ? a : b;
  const double difference = (b.exponent - a.exponent).value_or_infinity();
  BigExp sum = difference > 0 ? b : a;
  if (std::fabs(difference) > 250) return sum;  // 256 ln 2 of the significands, 53 ln 2 of a double
  const double other = difference > 0 ? a.significand : b.significand;
  sum.significand += difference == 0 ? other : other * std::exp(-std::fabs(difference));
  sum.rescale();
  return sum;
}
inline BigExp operator+(const BigExp& a, double b) {
  return a + BigExp(b);
}
inline BigExp operator-(const BigExp& a, const BigExp& b) {
  return a + -b;
}

// As a double, zero or infinite where it has no room; zero if it has an ε.
inline double narrow(const BigExp& x) {
  return x.significand == 0 || x.epsilons > 0 ? 0 : x.significand * std::exp(x.exponent.value_or_infinity());
}
// a / b as a double, zero where both are.
inline double ratio(const BigExp& a, const BigExp& b) {
  return a.significand == 0 ? 0 : narrow(a / b);
}

}  // namespace fenchel
