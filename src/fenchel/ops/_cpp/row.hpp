// What every row kernel does first and last: find the largest entry, collect the candidates for the
// support, and scatter the answer. `top` is the largest entry of a row.
#pragma once

#include <memory>

#include "simd.hpp"

namespace fenchel {

// The largest entry of a row, NaN if any entry is NaN, and the largest of each of its strided slices.
template <class T>
struct Peaks {
  static constexpr int kWays = 4;
  T top;
  Vec<T> slice[kWays];
};

template <class T>
FENCHEL_INLINE Peaks<T> peaks(const T* x, int64_t n) {
  using Bits = VecInt<T>;
  constexpr decltype(Bits{}[0]) kMagnitude = std::numeric_limits<decltype(Bits{}[0] + 0)>::max();
  constexpr int kWays = Peaks<T>::kWays;
  Peaks<T> peak;
  Bits largest[kWays] = {};
  for (auto& slice : peak.slice) slice = splat<T>(-kInf<T>);
  auto look = [&](Vec<T> v, int way) {
    peak.slice[way] = max<T>(v, peak.slice[way]);
    Bits bits = (Bits)v & kMagnitude;
    largest[way] = bits > largest[way] ? bits : largest[way];
  };
  int64_t i = 0;
  for (; i + kWays * kLanes<T> <= n; i += kWays * kLanes<T>)
    for (int way = 0; way < kWays; ++way) look(load<T>(x + i + way * kLanes<T>), way);
  for (; i + kLanes<T> <= n; i += kLanes<T>) look(load<T>(x + i), 0);
  if (i < n) look(load_tail<T>(x + i, n - i, -kInf<T>), 0);
  auto larger = [](auto a, auto b) { return a > b ? a : b; };
  auto over_slices = [&](const auto* p) {
    return reduce(larger(larger(p[0], p[1]), larger(p[2], p[3])), larger);
  };
  // NaN is the one magnitude above infinity's.
  bool nan = over_slices(largest) > ((Bits)splat<T>(kInf<T>))[0];
  peak.top = nan ? std::numeric_limits<T>::quiet_NaN() : over_slices(peak.slice);
  return peak;
}

template <class T>
FENCHEL_INLINE T maximum(const T* x, int64_t n) {
  return peaks(x, n).top;
}

// Entries of a row that lie within `width` of its largest: their distance below it, and their place.
template <class T>
struct Candidates {
  std::unique_ptr<T[]> distance;
  std::unique_ptr<int32_t[]> index;
  T* scratch;
  int64_t count = 0;
  const T* row;
  int64_t d;
  T top, width;

  // Distances and scratch are half a page apart, modulo pages. Otherwise a load of one would seem to the CPU
  // to depend on the last stores to the other.
  explicit Candidates(int64_t d) : index(new int32_t[padded<T>(d) + kLanes<T>]) {
    constexpr int64_t kPage = 4096 / sizeof(T);
    int64_t offset = (d + 2 * kLanes<T> + kPage / 2) / kPage * kPage + kPage / 2;
    distance.reset(new T[2 * offset]);
    scratch = distance.get() + offset;
  }

  void take(const T* x, int64_t length, T largest, T within);

  // Writes the k-th value to the place of the k-th candidate, and zero elsewhere.
  void scatter(const T* values, T* y) const;

  // The entries of v at the places of the candidates.
  void gather(const T* v, T* values) const;

 private:
  // Finding them again, a vector at a time, beats going from place to place where they are many.
  bool are_many() const { return sizeof(T) == 4 && 8 * count > d; }

  // Calls vector(bits of the candidates, offset, number before) and, for the last few, entry(...).
  template <class V, class E>
  void find_again(V vector, E entry) const {
    int64_t n = 0, i = 0;
    for (; i + kLanes<T> <= d; i += kLanes<T>) {
      unsigned bits = below<T>(top - load<T>(row + i), splat<T>(width));
      vector(bits, i, n);
      n += __builtin_popcount(bits);
    }
    for (; i < d; ++i) {
      bool is_candidate = top - row[i] < width;
      entry(is_candidate, i, n);
      n += is_candidate;
    }
  }
};

// Writes the distance and index of every entry with top − x < width; returns how many.
template <class T>
FENCHEL_INLINE int64_t collect(const T* x, int64_t d, T top, T width, T* distance, int32_t* index) {
  int64_t n = 0, i = 0;
  if constexpr (sizeof(T) == 4) {
    VecInt<float> lane;
    for (int k = 0; k < kLanes<float>; ++k) lane[k] = k;
    constexpr int kGroup = 4;
    for (; i + kGroup * kLanes<T> <= d; i += kGroup * kLanes<T>) {
      Vec<T> delta[kGroup];
      unsigned bits[kGroup], any = 0;
      for (int k = 0; k < kGroup; ++k) {
        delta[k] = top - load<T>(x + i + k * kLanes<T>);
        any |= bits[k] = below<T>(delta[k], splat<T>(width));
      }
      if (!any) continue;
      for (int k = 0; k < kGroup; ++k) {
        pack(distance + n, delta[k], bits[k]);
        pack(reinterpret_cast<float*>(index + n),
             (Vec<float>)(lane + static_cast<int32_t>(i + k * kLanes<T>)), bits[k]);
        n += __builtin_popcount(bits[k]);
      }
    }
  }
  for (; i < d; ++i) {
    T delta = top - x[i];
    distance[n] = delta;
    index[n] = static_cast<int32_t>(i);
    n += delta < width;
  }
  return n;
}

template <class T>
inline void Candidates<T>::take(const T* x, int64_t length, T largest, T within) {
  row = x, d = length, top = largest, width = within;
  count = collect(x, d, top, width, distance.get(), index.get());
  for (int64_t i = count; i < padded<T>(count); ++i) distance[i] = 4 * width;  // out of reach
}

template <class T>
inline void Candidates<T>::scatter(const T* values, T* y) const {
  if (count == d) {  // nothing was left out, so the order is the row's own
    std::memcpy(y, values, static_cast<size_t>(d) * sizeof(T));
    return;
  }
  if constexpr (sizeof(T) == 4) {
    if (are_many())
      return find_again(
          [&](unsigned bits, int64_t i, int64_t n) { store<T>(y + i, unpack(values + n, bits)); },
          [&](bool is_candidate, int64_t i, int64_t n) { y[i] = is_candidate ? values[n] : T(0); });
  }
  std::memset(y, 0, static_cast<size_t>(d) * sizeof(T));
  for (int64_t i = 0; i < count; ++i) y[index[i]] = values[i];
}

template <class T>
inline void Candidates<T>::gather(const T* v, T* values) const {
  if constexpr (sizeof(T) == 4) {
    if (are_many())
      return find_again(
          [&](unsigned bits, int64_t i, int64_t n) { pack(values + n, load<T>(v + i), bits); },
          [&](bool, int64_t i, int64_t n) { values[n] = v[i]; });
  }
  for (int64_t i = 0; i < count; ++i) values[i] = v[index[i]];
}

// Rows whose largest entry is not finite need no solver: NaN anywhere gives NaN; nothing but −inf gives
// zeros; +inf entries share the mass.
template <class T>
FENCHEL_INLINE bool is_nonfinite(T top) {
  return !(top > -kInf<T> && top < kInf<T>);
}

// What each of the largest entries of such a row gets.
template <class T>
FENCHEL_INLINE T nonfinite_share(const T* x, int64_t d, T top) {
  if (top != kInf<T>) return top == top ? T(0) : top;
  int64_t count = 0;
  for (int64_t i = 0; i < d; ++i) count += x[i] == top;
  return T(1) / static_cast<T>(count);
}

// Writes `share` where x is the largest, else zero, or NaN if that is the share.
template <class T>
FENCHEL_INLINE void write_nonfinite(const T* x, int64_t d, T top, T share, T* y) {
  for (int64_t i = 0; i < d; ++i) y[i] = x[i] == top ? share : share * T(0);
}

// Answers a row whose largest entry is not finite. Returns whether it was one.
template <class T>
FENCHEL_INLINE bool handle_nonfinite(const T* x, T* y, int64_t d, T top) {
  if (!is_nonfinite(top)) return false;
  write_nonfinite(x, d, top, nonfinite_share(x, d, top), y);
  return true;
}

// Calls solve(x, largest, y) for the rows of a range that need a solver, and answers the others.
template <class T, class F>
FENCHEL_INLINE void each_finite_row(const T* scores, int64_t first, int64_t last, int64_t d, T* out,
                                    F solve) {
  for (int64_t row = first; row < last; ++row) {
    const T* x = scores + row * d;
    T *y = out + row * d, top = maximum(x, d);
    if (!handle_nonfinite(x, y, d, top)) solve(x, top, y);
  }
}

}  // namespace fenchel
