// exp and powers without branches, so that they run a vector at a time.
#pragma once

#include "simd.hpp"

namespace fenchel {

template <class T>
struct Constants;
template <>
struct Constants<float> {
  static constexpr int kMantissa = 23, kBias = 127;
  static constexpr float kRound = 12582912.0f;  // 1.5 · 2^23: adding it rounds to an integer
  static constexpr float kLn2Hi = 0.693359375f, kLn2Lo = -2.12194440e-4f;
  static constexpr float kSmallest = -87.0f, kLargest = 88.0f;
  // Minimax fits: (e^r − 1 − r)/r² on |r| ≤ ln2/2, 2^r on |r| ≤ ½, and on [√½−1, √2−1]
  // (log(1+f) − f + f²/2)/f³ and log₂(1+f)/f.
  static constexpr float kExp[] = {0.5000000095691809f, 0.16666518302749567f, 0.04166620417931241f,
                                   0.008368953816010915f, 0.0013950599322567249f};
  static constexpr float kLog[] = {0.333333165660815f,   -0.25000816093121153f,
                                   0.2000230249358218f,  -0.16624346915578422f,
                                   0.14180704575227093f, -0.13130469606709386f,
                                   0.12885828556512435f, -0.07859863947471538f};
  static constexpr float kExp2[] = {1.0000000005541663f,   0.6931472057372526f,
                                    0.24022646890639573f,  0.055503287769976636f,
                                    0.009618488956522791f, 0.001339993120947414f,
                                    0.00015345812158740183f};
  static constexpr float kLog2[] = {1.4426950036525477f,  -0.7213473468034032f, 0.4809106429176262f,
                                    -0.36070368275273645f, 0.2879162488217083f, -0.2389448234364125f,
                                    0.21571560236941845f, -0.20726973056130868f, 0.1258370079617392f};
};
template <>
struct Constants<double> {
  static constexpr int kMantissa = 52, kBias = 1023;
  static constexpr double kRound = 6755399441055744.0;  // 1.5 · 2^52
  static constexpr double kLn2Hi = 6.93147180369123816490e-01, kLn2Lo = 1.90821492927058770002e-10;
  static constexpr double kSmallest = -708.0, kLargest = 709.0;
  static constexpr double kExp[] = {1.0 / 2,       1.0 / 6,        1.0 / 24,        1.0 / 120,
                                    1.0 / 720,     1.0 / 5040,     1.0 / 40320,     1.0 / 362880,
                                    1.0 / 3628800, 1.0 / 39916800, 1.0 / 479001600, 1.0 / 6227020800};
};

// Σ c_k x^k, from pairs of terms upwards: the shorter chain keeps the pipelines full.
template <class T, int N>
FENCHEL_INLINE Vec<T> polynomial(Vec<T> x, const T (&c)[N]) {
  Vec<T> term[(N + 1) / 2];
  for (int k = 0; k < N / 2; ++k) term[k] = c[2 * k + 1] * x + c[2 * k];
  if (N % 2) term[N / 2] = splat<T>(c[N - 1]);
  for (int n = (N + 1) / 2; n > 1; n = (n + 1) / 2) {
    x *= x;
    for (int k = 0; k < n / 2; ++k) term[k] = term[2 * k + 1] * x + term[2 * k];
    if (n % 2) term[n / 2] = term[n - 1];
  }
  return term[0];
}

// e^t; zero below the smallest normal number.
template <class T>
FENCHEL_INLINE Vec<T> exp(Vec<T> t) {
  using C = Constants<T>;
  Vec<T> clamped = max<T>(t, splat<T>(C::kSmallest));
  clamped = clamped < C::kLargest ? clamped : splat<T>(C::kLargest);
  Vec<T> shifted = clamped * T(1.4426950408889634) + C::kRound;
  Vec<T> n = shifted - C::kRound;
  Vec<T> r = (clamped - n * C::kLn2Hi) - n * C::kLn2Lo;
  Vec<T> p = (r * r) * polynomial<T>(r, C::kExp) + r + T(1);
  // 2^n: the integer sits in the low bits of `shifted`.
  VecInt<T> scale = ((VecInt<T>)shifted + C::kBias) << C::kMantissa;
  return t < C::kSmallest ? Vec<T>{} : p * (Vec<T>)scale;
}

// log(u + rest) for a normal u > 0 and a rest below its last place.
template <class T>
FENCHEL_INLINE Vec<T> log(Vec<T> u, Vec<T> rest) {
  using C = Constants<T>;
  using Bits = VecInt<T>;
  // m = u / 2^e in [√½, √2)
  constexpr decltype(Bits{}[0]) kHalf = sizeof(T) == 4 ? 0x3f3504f3 : 0x3fe6a09e667f3bcd;
  Bits offset = (Bits)u - kHalf;
  Bits e = offset >> C::kMantissa;
  Vec<T> m = (Vec<T>)((Bits)u - (e << C::kMantissa));
  Vec<T> scale = (Vec<T>)((C::kBias - e) << C::kMantissa);
  Vec<T> f = (m - T(1)) + rest * scale;
  Vec<T> exponent = __builtin_convertvector(e, Vec<T>);
  if constexpr (sizeof(T) == 4) {
    Vec<T> q = f * f;
    Vec<T> p = q * f * polynomial<T>(f, C::kLog) + exponent * C::kLn2Lo - T(0.5) * q;
    return p + f + exponent * C::kLn2Hi;
  } else {
    Vec<T> s = f / (f + T(2));  // log(1+f) = 2 atanh(s)
    Vec<T> q = s * s, p = splat<T>(T(1) / T(23));
    for (int k = 21; k >= 3; k -= 2) p = p * q + T(1) / T(k);
    return (T(2) * s * q * p + exponent * C::kLn2Lo) + T(2) * s + exponent * C::kLn2Hi;
  }
}

// 2^t; zero below the smallest normal number.
FENCHEL_INLINE Vec<float> exp2(Vec<float> t) {
  using C = Constants<float>;
  Vec<float> clamped = max<float>(t, splat<float>(-126));
  clamped = clamped < 127.0f ? clamped : splat<float>(127);
  Vec<float> shifted = clamped + C::kRound;
  Vec<float> p = polynomial<float>(clamped - (shifted - C::kRound), C::kExp2);
  VecInt<float> scaled = (VecInt<float>)p + ((VecInt<float>)shifted << C::kMantissa);
  return t > -126.0f ? (Vec<float>)scaled : Vec<float>{};
}

// u^a for a normal u > 0; near_one = u − 1, which says more than u once u is near one.
FENCHEL_INLINE Vec<float> power(Vec<float> u, Vec<float> near_one, float a) {
  using C = Constants<float>;
  using Bits = VecInt<float>;
  Bits e = ((Bits)u - 0x3f3504f3) >> C::kMantissa;  // u / 2^e in [√½, √2)
  Vec<float> f = e == 0 ? near_one : (Vec<float>)((Bits)u - (e << C::kMantissa)) - 1.0f;
  return exp2(a * (f * polynomial<float>(f, C::kLog2) + __builtin_convertvector(e, Vec<float>)));
}
FENCHEL_INLINE Vec<double> power(Vec<double> u, Vec<double> near_one, double a) {
  return exp<double>(a * log<double>(u, near_one - (u - 1)));
}

// y^a where y > 0, else zero.
template <class T>
FENCHEL_INLINE Vec<T> power(Vec<T> y, T a) {
  Vec<T> u = y > 0 ? y : splat<T>(1);
  return y > 0 ? power(u, u - T(1), a) : Vec<T>{};
}

// (1 − x)^a where x < 1, else zero; exact to the last places for small x too.
template <class T>
FENCHEL_INLINE Vec<T> power1m(Vec<T> x, T a) {
  Vec<T> inside = x < 1 ? x : Vec<T>{};
  return x < 1 ? power(T(1) - inside, -inside, a) : Vec<T>{};
}

// Whether a is a small whole number, and needs no logarithms.
template <class T>
FENCHEL_INLINE bool is_whole(T a) {
  return a <= 16 && a == std::floor(a);
}

// u^n by repeated squaring, u ≥ 0; zero where u is, even for n = 0.
template <class T>
FENCHEL_INLINE Vec<T> whole_power(Vec<T> u, int n) {
  Vec<T> power = u > 0 ? splat<T>(1) : Vec<T>{};
  for (; n; n >>= 1, u *= u)
    if (n & 1) power *= u;
  return power;
}

// (1 + x)^n where x > −1, else zero; n ≥ 1, and exact to the last places for small x too.
template <class T>
FENCHEL_INLINE Vec<T> whole_power1p(Vec<T> x, int n) {
  Vec<T> u = max<T>(x + T(1), Vec<T>{}), rest = x - (u - T(1));  // u + rest is exact
  return u > 0 ? whole_power<T>(u, n - 1) * (u + rest * T(n)) : Vec<T>{};
}

template <class T>
FENCHEL_INLINE Vec<T> sqrt(Vec<T> x) {
  Vec<T> root;
  for (int i = 0; i < kLanes<T>; ++i) root[i] = std::sqrt(x[i]);
  return root;
}

}  // namespace fenchel
