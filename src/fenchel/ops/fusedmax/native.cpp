// fusedmax: level sets, then the total-variation prox by dynamic programming, then the projection onto the
// simplex. y = [z − τ]₊ with z = argmin ½|z − x|² + λ Σ |z_{i+1} − z_i|, and τ such that y sums to one.
//
// The set {z > t} maximises Σ_{i∈E} (x_i − t) − λ ∂E over subsets E of the chain, ∂E the number of its borders,
// and shrinks as t grows. So τ = max over E of (Σ_E x − λ ∂E − 1) / |E|, and the support attains it. Every level
// set gives a lower bound of τ, and entries outside it are not in the support. A wall stands for each run of
// such entries, so the chain gets shorter with each level set.
#include <utility>

#include "prox.hpp"
#include "places.hpp"
#include "row.hpp"

namespace fenchel {
namespace {

// What is left of a row: entries in order, relative to the largest, and walls of −∞ in the gaps, each with the place of
// an entry there.
struct Chain {
  std::unique_ptr<double[]> value;
  std::unique_ptr<int32_t[]> place;
  int64_t length = 0;

  explicit Chain(int64_t d) : value(new double[padded<double>(d)]), place(new int32_t[d]) {}

  bool is_wall(int64_t i) const { return value[i] == -kInf<double>; }

  void put(int64_t i, double v, int32_t p) {
    value[i] = v;
    place[i] = p;
  }
};

// The chain of the entries above the cut. Entries of −∞ are deleted: alone they make no wall.
template <class T>
FENCHEL_INLINE void gather(const T* x, int64_t d, T top, T cut, int32_t* above, Chain& chain) {
  int64_t count = places_above(x, d, cut, above), length = 0, next = 0;
  auto wall_before = [&](int64_t stop) {
    while (next < stop && x[next] == -kInf<T>) ++next;
    if (next < stop) chain.put(length++, -kInf<double>, static_cast<int32_t>(next));
  };
  for (int64_t j = 0; j < count; ++j) {
    wall_before(above[j]);
    next = above[j] + 1;
    chain.put(length++, static_cast<double>(x[above[j]]) - static_cast<double>(top), above[j]);
  }
  wall_before(d);
  chain.length = length;
}

// Keeps the least maximiser of Σ_E (x − t) − λ ∂E. The gain is that of having entry i in E over not having it,
// given the entries before. A gain above λ puts it in, one of at most −λ leaves it out, whatever follows. In
// between it follows the next entry: it is written, but not yet decided.
FENCHEL_INLINE void level_set(const Chain& chain, double lam, double t, Chain& kept) {
  double gain = 0;
  int64_t decided = 0, length = 0;
  for (int64_t i = 0; i < chain.length; ++i) {
    double carried = gain < -lam ? -lam : gain;
    gain = (carried > lam ? lam : carried) + (chain.value[i] - t);
    bool out = gain <= -lam;
    length = out ? decided : length;
    kept.put(length, out ? -kInf<double> : chain.value[i], chain.place[i]);
    ++length;
    decided = gain > lam ? length : decided;
  }
  if (decided < length && gain <= 0) {
    kept.value[decided] = -kInf<double>;
    length = decided + 1;
  }
  kept.length = length;
}

struct Extent {
  double count, sum, borders;

  // What it says of τ.
  double bound(double lam) const { return (sum - lam * borders - 1) / count; }

  // More than that rounds.
  double rounding(double lam) const { return 1e-15 * (count + 4) * (1 + 4 * lam); }
};

// The set of entries above the cut, by itself; relative to the largest.
template <class T>
FENCHEL_INLINE Extent measure_above(const T* x, int64_t d, T top, T cut) {
  double sum = 0;
  int64_t count = 0, borders = 0;
  uint64_t before = 0;
  for (int64_t i = 0; i < d; i += 64) {
    uint64_t inside = 0;
    if (i + 64 <= d)
      inside = above(x + i, cut);
    else
      for (int64_t j = i; j < d; ++j) inside |= static_cast<uint64_t>(x[j] > cut) << (j - i);
    uint64_t changes = inside ^ (inside << 1 | before);
    if (i == 0) changes &= ~uint64_t{1};
    if (i + 64 > d) changes &= (uint64_t{1} << (d - i)) - 1;
    borders += __builtin_popcountll(changes);
    count += __builtin_popcountll(inside);
    before = inside >> 63;
    for (; inside; inside &= inside - 1)
      sum += static_cast<double>(x[i + __builtin_ctzll(inside)]) - static_cast<double>(top);
  }
  return {static_cast<double>(count), sum, static_cast<double>(borders)};
}

FENCHEL_INLINE Extent measure(const Chain& chain) {
  Vec<double> count = {}, total = {};
  each_vector<double>(chain.value.get(), chain.length, -kInf<double>,
                      [&](Vec<double> v, int64_t, int64_t) {
                        count += v > -kInf<double> ? splat<double>(1) : Vec<double>{};
                        total += v > -kInf<double> ? v : Vec<double>{};
                      });
  double entries = sum<double>(count), walls = static_cast<double>(chain.length) - entries;
  int ends = chain.is_wall(0) + chain.is_wall(chain.length - 1);
  return {entries, sum<double>(total), 2 * walls - ends};
}

// Right of the point `at` the derivative gains slope · z − offset.
struct Knot {
  double at, slope, offset;
};

// The proximal operator of λ Σ |z_{i+1} − z_i| by dynamic programming. The cost of the first k entries, as a
// function of z_k, has a piecewise linear derivative. The next entry sees it clamped to [−λ, λ]: that cuts knots
// off its two ends and adds one to each. Two knots per entry make it linear time.
struct Prox {
  std::unique_ptr<Knot[]> knots;
  std::unique_ptr<double[]> low, high;

  explicit Prox(int64_t d) : knots(new Knot[2 * d]), low(new double[d]), high(new double[d]) {}

  void operator()(double* x, int64_t n, double lam) {
    if (n == 1 || flat(x, n, lam)) return;
    Knot *first = knots.get() + n, *last = first;
    double z = 0;
    for (int64_t k = 0; k < n; ++k) {
      double edge = k > 0 ? lam : 0, target = k < n - 1 ? lam : 0;
      double slope = 1, offset = x[k] + edge;
      for (; first < last && slope * first->at - offset < -target; ++first) {
        slope += first->slope;
        offset += first->offset;
      }
      z = low[k] = (offset - target) / slope;
      Knot left = {low[k], slope, offset - target};
      slope = 1, offset = x[k] - edge;
      for (; first < last && slope * last[-1].at - offset > target; --last) {
        slope -= last[-1].slope;
        offset -= last[-1].offset;
      }
      high[k] = (offset + target) / slope;
      *--first = left;
      *last++ = {high[k], -slope, -offset - target};
    }
    x[n - 1] = z;
    for (int64_t k = n - 2; k >= 0; --k) {
      z = z < low[k] ? low[k] : z;
      x[k] = z = z > high[k] ? high[k] : z;
    }
  }

  // One group, if no partial sum of the deviations from the mean leaves [−λ, λ].
  static bool flat(double* x, int64_t n, double lam) {
    double mean = 0, partial_sum = 0;
    for (int64_t k = 0; k < n; ++k) mean += x[k];
    mean /= static_cast<double>(n);
    for (int64_t k = 0; k < n - 1; ++k) {
      partial_sum += x[k] - mean;
      if (!(partial_sum <= lam && partial_sum >= -lam)) return false;
    }
    for (int64_t k = 0; k < n; ++k) x[k] = mean;
    return true;
  }
};

// A stretch between walls stands alone; next to a wall, λ |z − wall| is λ z and a constant.
FENCHEL_INLINE void prox_between_walls(Chain& chain, double lam, Prox& prox) {
  double* x = chain.value.get();
  for (int64_t first = 0, last; first < chain.length; first = last + 1) {
    for (last = first; last < chain.length && !chain.is_wall(last);) ++last;
    if (first == last) continue;
    if (first > 0) x[first] -= lam;
    if (last < chain.length) x[last - 1] -= lam;
    prox(x + first, last - first, lam);
  }
}

// z → [z − τ]₊ by Newton's method from a lower bound of τ; walls become zeros. z has room for whole vectors.
FENCHEL_INLINE void project_simplex(double* z, int64_t n, double low) {
  constexpr int64_t kStep = kLanes<double>;
  const Vec<double> zero = {}, one = splat<double>(1);
  for (int64_t i = n; i < padded<double>(n); ++i) z[i] = -kInf<double>;
  Vec<double> largest = load<double>(z);
  for (int64_t i = kStep; i < n; i += kStep) largest = max<double>(largest, load<double>(z + i));
  const double peak = reduce_max(largest);
  double tau = low - peak > -1 ? low - peak : -1;
  for (double support = kInf<double>;;) {
    Vec<double> count = {}, total = {};
    for (int64_t i = 0; i < n; i += kStep) {
      Vec<double> v = load<double>(z + i) - peak;
      count += v > tau ? one : zero;
      total += v > tau ? v : zero;
    }
    double inside = sum<double>(count);
    if (inside >= support) break;  // it can grow again when entries at τ round
    support = inside;
    tau = (sum<double>(total) - 1) / inside;
  }
  Vec<double> count = {};
  for (int64_t i = 0; i < n; i += kStep) {
    Vec<double> v = load<double>(z + i) - peak;
    v = v > tau ? v - tau : zero;
    count += v > 0 ? one : zero;
    store<double>(z + i, v);
  }
  const double excess = (compensated_sum(z, padded<double>(n)) - 1) / sum<double>(count);  // what τ rounded
  for (int64_t i = 0; i < n; i += kStep) {
    Vec<double> v = load<double>(z + i), less = max<double>(v - excess, zero);
    store<double>(z + i, v > 0 ? less : zero);
  }
}

constexpr int kMaxBounds = 2;
constexpr int64_t kShortChain = 32;  // which level sets would not make so much shorter

template <class T>
FENCHEL_INLINE void fusedmax_rows(const T* scores, double lam, int64_t first, int64_t last, int64_t d,
                                  T* out) {
  std::unique_ptr<int32_t[]> above(new int32_t[d]);
  Chain chain(d), kept(d);
  Prox prox(d);
  each_finite_row(scores, first, last, d, out, [&](const T* x, T top, T* y) FENCHEL_LAMBDA {
    // |z − x| ≤ 2λ, so max z ≥ top − 2λ, τ ≥ max z − 1, and the support has x > τ − 2λ. An entry alone raises the
    // bound of τ if x > τ + 2λ.
    double tau = -1 - 2 * lam;
    for (int i = 0; i < kMaxBounds; ++i) {
      Extent set = measure_above(x, d, top, static_cast<T>(top + (tau + 2 * lam)));
      double next = set.bound(lam) - set.rounding(lam);
      if (!(next > tau)) break;
      tau = next;
    }
    T cut = std::nextafter(static_cast<T>(top + (tau - 2 * lam)), -kInf<T>);
    gather(x, d, top, cut, above.get(), chain);
    double low = tau;
    for (double count = 0; chain.length > kShortChain;) {
      level_set(chain, lam, tau, kept);
      Extent level = measure(kept);
      if (level.count == 0) break;  // τ rounded to max z
      std::swap(chain, kept);
      if (level.count == count) break;
      count = level.count;
      tau = level.bound(lam);
      low = tau - level.rounding(lam);
    }
    prox_between_walls(chain, lam, prox);
    project_simplex(chain.value.get(), chain.length, low);
    std::memset(y, 0, static_cast<size_t>(d) * sizeof(T));
    for (int64_t i = 0; i < chain.length; ++i) y[chain.place[i]] = static_cast<T>(chain.value[i]);
  });
}

// out = mean of v over the entry's group − mean of v over the support. A group is a run of equal
// nonzero y; zeros do not end it, since they may be deleted entries.
template <class T>
FENCHEL_INLINE void jvp_rows(const T* ys, const T* vs, int64_t first, int64_t last, int64_t d,
                             T* outs) {
  std::unique_ptr<int32_t[]> support(new int32_t[d]);
  for (int64_t row = first; row < last; ++row) {
    const T *y = ys + row * d, *v = vs + row * d;
    T* out = outs + row * d;
    int64_t count = places_above(y, d, T(0), support.get());
    std::memset(out, 0, static_cast<size_t>(d) * sizeof(T));
    double total = 0;
    for (int64_t i = 0; i < count; ++i) total += static_cast<double>(v[support[i]]);
    double mean = total / static_cast<double>(count);
    for (int64_t i = 0, stop; i < count; i = stop) {
      T level = y[support[i]];
      double sum = 0;
      for (stop = i; stop == i || (stop < count && y[support[stop]] == level); ++stop)
        sum += static_cast<double>(v[support[stop]]);
      T value = static_cast<T>(sum / static_cast<double>(stop - i) - mean);
      value += level - level;  // a row of NaN has that derivative
      for (; i < stop; ++i) out[support[i]] = value;
    }
  }
}

}  // namespace
}  // namespace fenchel

FENCHEL_PROX(fusedmax)
