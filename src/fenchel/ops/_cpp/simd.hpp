// Vectors of the register's width through the compiler's vector extension: one source for every
// instruction set.
#pragma once

#include <cmath>
#include <cstring>
#include <limits>

#include "abi.hpp"
#ifdef __AVX2__
#include <immintrin.h>
#endif

namespace fenchel {

#if defined(__AVX512F__)
constexpr int64_t kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr int64_t kVectorBytes = 32;
#else
constexpr int64_t kVectorBytes = 16;
#endif

template <class T>
struct Lanes;
template <>
struct Lanes<float> {
  typedef float Vec __attribute__((vector_size(kVectorBytes)));
  typedef int32_t Int __attribute__((vector_size(kVectorBytes)));
};
template <>
struct Lanes<double> {
  typedef double Vec __attribute__((vector_size(kVectorBytes)));
  typedef int64_t Int __attribute__((vector_size(kVectorBytes)));
};

template <class T>
using Vec = typename Lanes<T>::Vec;
template <class T>
using VecInt = typename Lanes<T>::Int;
template <class T>
constexpr int64_t kLanes = kVectorBytes / sizeof(T);

template <class T>
constexpr T kInf = std::numeric_limits<T>::infinity();

// The least multiple of the lane count that holds n entries.
template <class T>
constexpr int64_t padded(int64_t n) {
  return (n + kLanes<T> - 1) / kLanes<T> * kLanes<T>;
}

template <class T>
FENCHEL_INLINE Vec<T> splat(T a) {
  return a - Vec<T>{};
}

template <class T>
FENCHEL_INLINE Vec<T> load(const T* p) {
  Vec<T> v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

// The first n < kLanes entries at p, the rest filled.
template <class T>
FENCHEL_INLINE Vec<T> load_tail(const T* p, int64_t n, T fill) {
  Vec<T> v = splat<T>(fill);
  std::memcpy(&v, p, static_cast<size_t>(n) * sizeof(T));
  return v;
}

template <class T>
FENCHEL_INLINE Vec<T> load_some(const T* p, int64_t n) {
  return n == kLanes<T> ? load<T>(p) : load_tail<T>(p, n, T(0));
}

template <class T>
FENCHEL_INLINE void store(T* p, Vec<T> v) {
  std::memcpy(p, &v, sizeof v);
}

template <class T>
FENCHEL_INLINE Vec<T> magnitude(Vec<T> a) {
  return a > 0 ? a : -a;
}

template <class T>
FENCHEL_INLINE Vec<T> max(Vec<T> a, Vec<T> b) {
#if defined(__AVX512F__)  // the compiler does not see it in the comparison
  if constexpr (sizeof(T) == 4) return (Vec<T>)_mm512_maskz_max_ps(0xffff, (__m512)a, (__m512)b);
  if constexpr (sizeof(T) == 8) return (Vec<T>)_mm512_maskz_max_pd(0xff, (__m512d)a, (__m512d)b);
#elif defined(__AVX2__)
  if constexpr (sizeof(T) == 8) return (Vec<T>)_mm256_max_pd((__m256d)a, (__m256d)b);
#endif
  return a > b ? a : b;
}

// Halves the vector until one lane is left: a chain over the lanes would cost more than a short row.
template <class V, class F>
FENCHEL_INLINE auto reduce(V v, F f) {
  constexpr int n = sizeof(V) / sizeof(v[0]);
  if constexpr (n == 16)
    return reduce(f(__builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7),
                  __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15)), f);
  else if constexpr (n == 8)
    return reduce(f(__builtin_shufflevector(v, v, 0, 1, 2, 3),
                  __builtin_shufflevector(v, v, 4, 5, 6, 7)), f);
  else if constexpr (n == 4)
    return reduce(f(__builtin_shufflevector(v, v, 0, 1), __builtin_shufflevector(v, v, 2, 3)), f);
  else
    return f(v[0], v[1]);
}

template <class V>
FENCHEL_INLINE auto reduce_max(V v) {
  return reduce(v, [](auto a, auto b) { return a > b ? a : b; });
}
template <class V>
FENCHEL_INLINE auto reduce_or(V v) {
  return reduce(v, [](auto a, auto b) { return a | b; });
}

typedef float HalfVec __attribute__((vector_size(kVectorBytes / 2)));

FENCHEL_INLINE Vec<double> widen(HalfVec v) { return __builtin_convertvector(v, Vec<double>); }

// As many entries as a vector of doubles holds.
FENCHEL_INLINE Vec<double> wide_load(const float* p) {
  HalfVec v;
  std::memcpy(&v, p, sizeof v);
  return widen(v);
}
FENCHEL_INLINE Vec<double> wide_load(const double* p) { return load<double>(p); }

FENCHEL_INLINE void narrow_store(float* p, Vec<double> v) {
  HalfVec half = __builtin_convertvector(v, HalfVec);
  std::memcpy(p, &half, sizeof half);
}
FENCHEL_INLINE void narrow_store(double* p, Vec<double> v) { store<double>(p, v); }

// f in double precision on every lane.
template <class F>
FENCHEL_INLINE Vec<float> in_double(Vec<float> v, F f) {
  HalfVec half[2];
  std::memcpy(half, &v, sizeof v);
  for (HalfVec& part : half) part = __builtin_convertvector(f(widen(part)), HalfVec);
  std::memcpy(&v, half, sizeof v);
  return v;
}
template <class F>
FENCHEL_INLINE Vec<double> in_double(Vec<double> v, F f) {
  return f(v);
}

// The sum of the lanes, in double.
template <class T>
FENCHEL_INLINE double sum(Vec<T> v) {
  auto add = [](auto a, auto b) { return a + b; };
  if constexpr (sizeof(T) == 4) {
    HalfVec half[2];
    std::memcpy(half, &v, sizeof v);
    return reduce(widen(half[0]) + widen(half[1]), add);
  } else {
    return reduce(v, add);
  }
}

// The lanes with a < b, as bits.
template <class T>
FENCHEL_INLINE unsigned below(Vec<T> a, Vec<T> b) {
#if defined(__AVX512F__)
  if constexpr (sizeof(T) == 4)
    return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_LT_OQ);
  else
    return _mm512_cmp_pd_mask((__m512d)a, (__m512d)b, _CMP_LT_OQ);
#elif defined(__AVX2__)
  if constexpr (sizeof(T) == 4)
    return static_cast<unsigned>(_mm256_movemask_ps((__m256)(a < b)));
  else
    return static_cast<unsigned>(_mm256_movemask_pd((__m256d)(a < b)));
#else
  unsigned bits = 0;
  VecInt<T> less = a < b;
  for (int i = 0; i < kLanes<T>; ++i) bits |= static_cast<unsigned>(less[i] & 1) << i;
  return bits;
#endif
}

// Writes the lanes of v that `bits` names one after the other, and something behind them.
FENCHEL_INLINE void pack(float* p, Vec<float> v, unsigned bits) {
#if defined(__AVX512F__)
  _mm512_storeu_ps(p, _mm512_maskz_compress_ps(static_cast<__mmask16>(bits), (__m512)v));
#elif defined(__AVX2__)
  // One byte per lane, then the bytes of the named lanes moved to the front: a permutation.
  uint64_t bytes = _pdep_u64(bits, 0x0101010101010101) * 255;
  __m128i order = _mm_cvtsi64_si128(static_cast<long long>(_pext_u64(0x0706050403020100, bytes)));
  _mm256_storeu_ps(p, _mm256_permutevar8x32_ps((__m256)v, _mm256_cvtepu8_epi32(order)));
#else
  for (int i = 0, n = 0; i < kLanes<float>; n += bits >> i & 1, ++i) p[n] = v[i];
#endif
}
FENCHEL_INLINE void pack(double* p, Vec<double> v, unsigned bits) {
#if defined(__AVX512F__)
  _mm512_storeu_pd(p, _mm512_maskz_compress_pd(static_cast<__mmask8>(bits), (__m512d)v));
#else
  for (int i = 0, n = 0; i < kLanes<double>; n += bits >> i & 1, ++i) p[n] = v[i];
#endif
}

// The inverse: entries one after the other to the lanes that `bits` names, and zero to the others. It
// may read a whole vector.
FENCHEL_INLINE Vec<float> unpack(const float* p, unsigned bits) {
#if defined(__AVX512F__)
  return (Vec<float>)_mm512_maskz_expandloadu_ps(static_cast<__mmask16>(bits), p);
#elif defined(__AVX2__)
  uint64_t bytes = _pdep_u64(bits, 0x0101010101010101) * 255;
  __m128i order = _mm_cvtsi64_si128(static_cast<long long>(_pdep_u64(0x0706050403020100, bytes)));
  __m128i named = _mm_cvtsi64_si128(static_cast<long long>(bytes));
  __m256 lanes = _mm256_permutevar8x32_ps(_mm256_loadu_ps(p), _mm256_cvtepu8_epi32(order));
  return (Vec<float>)_mm256_and_ps(lanes, _mm256_castsi256_ps(_mm256_cvtepi8_epi32(named)));
#else
  Vec<float> v = {};
  for (int i = 0, n = 0; i < kLanes<float>; n += bits >> i & 1, ++i) v[i] = bits >> i & 1 ? p[n] : 0;
  return v;
#endif
}

// Calls f(vector, offset, count) on consecutive vectors of x; the last is filled up.
template <class T, class F>
FENCHEL_INLINE void each_vector(const T* x, int64_t n, T fill, F f) {
  int64_t i = 0;
  for (; i + kLanes<T> <= n; i += kLanes<T>) f(load<T>(x + i), i, kLanes<T>);
  if (i < n) f(load_tail<T>(x + i, n - i, fill), i, n - i);
}

template <class T>
FENCHEL_INLINE void store_some(T* p, Vec<T> v, int64_t n) {
  if (n == kLanes<T>)
    store<T>(p, v);
  else
    std::memcpy(p, &v, static_cast<size_t>(n) * sizeof(T));
}

// The sum of n entries as if in twice the precision: what each addition rounds is added up too.
inline double compensated_sum(const double* x, int64_t n) {
  Vec<double> total = {}, rounded = {};
  each_vector<double>(x, n, 0, [&](Vec<double> v, int64_t, int64_t) {
    Vec<double> next = total + v, part = next - total;
    rounded += (total - (next - part)) + (v - part);
    total = next;
  });
  return sum<double>(total) + sum<double>(rounded);
}

// Reductions over many floats add in T inside a block and in double across blocks, so that the
// error does not grow with the length of the row.
template <class T>
constexpr int64_t kBlock = 32 * kLanes<T>;

}  // namespace fenchel
