// The places of the entries of a row that are above a cut.
#pragma once

#include "simd.hpp"

namespace fenchel {

// Which of 64 entries are above the cut, or NaN.
template <class T>
FENCHEL_INLINE uint64_t above(const T* x, T cut) {
  unsigned char is_above[64];
  for (int i = 0; i < 64; ++i) is_above[i] = !(x[i] <= cut);
  uint64_t bits = 0;
  for (int i = 0; i < 64; i += 8) {
    uint64_t bytes;
    std::memcpy(&bytes, is_above + i, sizeof bytes);
    bits |= (bytes * 0x0102040810204080 >> 56) << i;  // the low bits of the bytes, side by side
  }
  return bits;
}
#if defined(__AVX512F__)
FENCHEL_INLINE uint64_t above(const float* x, float cut) {
  uint64_t bits = 0;
  for (int i = 0; i < 64; i += 16)
    bits |= static_cast<uint64_t>(_mm512_cmp_ps_mask(_mm512_loadu_ps(x + i), _mm512_set1_ps(cut),
                                                     _CMP_NLE_UQ)) << i;
  return bits;
}
#endif

// Writes the places where x > cut or x is NaN; returns how many.
template <class T>
FENCHEL_INLINE int64_t places_above(const T* x, int64_t d, T cut, int32_t* place) {
  int64_t n = 0, i = 0;
  for (; i + 64 <= d; i += 64)
    for (uint64_t bits = above(x + i, cut); bits; bits &= bits - 1)
      place[n++] = static_cast<int32_t>(i + __builtin_ctzll(bits));
  for (; i < d; ++i) {
    place[n] = static_cast<int32_t>(i);
    n += !(x[i] <= cut);
  }
  return n;
}

}  // namespace fenchel
