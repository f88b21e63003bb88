// oscarmax: pool adjacent violators on the sorted candidates, then the projection onto the simplex. y = [z − τ]₊
// with z the non-increasing regression of c_i = x_i − λ (n − i) over the n entries in decreasing order, and τ
// such that y sums to one. A common shift of c only shifts τ, so c_i = x_i + λ i does as well.
//
// Two facts keep the sort small. With S_k the sum of the k largest, τ is the maximum over k of
// ψ(k) = (S_k − 1) / k + λ k / 2, at the size K of the support; ψ(K) ≥ ψ(K − 1) gives x_K ≥ ψ(K) − λ (K − ½).
// And m neighbours in the order whose range is at most λ m / 2 have one value: the means of their first k and
// of the others differ by at most the range, and c grows by λ m / 2 between those two.
#include <algorithm>

#include "prox.hpp"
#include "places.hpp"
#include "row.hpp"

namespace fenchel {
namespace {

struct Head {
  double count, sum, least;
};

// Count, sum and least of the distances x − top ≥ cut.
template <class T>
FENCHEL_INLINE Head head(const T* x, int64_t d, double top, double cut) {
  Vec<double> count = {}, total = {}, least = {};
  auto look = [&](const T* p) {
    Vec<double> v = wide_load(p) - top;
    auto in = v >= cut;
    v = in ? v : Vec<double>{};
    count += in ? splat<double>(1) : Vec<double>{};
    total += v;
    least = v < least ? v : least;
  };
  int64_t i = 0;
  for (; i + kLanes<double> <= d; i += kLanes<double>) look(x + i);
  T tail[kLanes<double>];
  for (int64_t k = 0; k < kLanes<double>; ++k) tail[k] = i + k < d ? x[i + k] : -kInf<T>;
  look(tail);
  auto smaller = [](auto a, auto b) { return a < b ? a : b; };
  return {sum<double>(count), sum<double>(total), reduce(least, smaller)};
}

struct Entry {
  double value;
  int32_t place;
};

// Entries of one value, from the first on, and the sum of their c.
struct Block {
  double sum, count;
  int64_t first;
};

// The regression of the largest entries of a row.
struct Regression {
  std::unique_ptr<Entry[]> entry;
  std::unique_ptr<Block[]> block;
  std::unique_ptr<int32_t[]> above, bucket, end;
  int64_t blocks = 0;

  explicit Regression(int64_t d)
      : entry(new Entry[d]),
        block(new Block[d]),
        above(new int32_t[d]),
        bucket(new int32_t[d]),
        end(new int32_t[d + 1]) {}

  // Sorts into at most m buckets by value, largest first. A bucket 2λ wide with four entries is one block.
  template <class T>
  void distribute(const T* x, double top, int64_t m, double lowest, double lam) {
    double last_bucket = static_cast<double>(m - 1), narrow = last_bucket / lowest, wide = -1 / (2 * lam);
    double scale = lowest < 0 ? (narrow > wide ? narrow : wide) : 0;
    std::memset(end.get(), 0, static_cast<size_t>(m + 1) * sizeof(int32_t));
    for (int64_t j = 0; j < m; ++j) {
      double depth = (static_cast<double>(x[above[j]]) - top) * scale;
      bucket[j] = static_cast<int32_t>(depth < last_bucket ? depth : last_bucket);
      ++end[bucket[j] + 1];
    }
    for (int64_t b = 0; b < m; ++b) end[b + 1] += end[b];
    for (int64_t j = 0; j < m; ++j)
      entry[end[bucket[j]]++] = {static_cast<double>(x[above[j]]) - top, above[j]};
  }

  // Appends a block, and pools it with those before it whose mean is lower.
  void append(int64_t first, double count, double values, double lam) {
    double ranks = count * (static_cast<double>(first) + (count + 1) / 2);
    Block next = {values + lam * ranks, count, first};
    for (; blocks > 0; --blocks) {
      const Block& last = block[blocks - 1];
      if (last.sum * next.count >= next.sum * last.count) break;
      next = {last.sum + next.sum, last.count + next.count, last.first};
    }
    block[blocks++] = next;
  }

  void pool(int64_t m, double lam) {
    blocks = 0;
    for (int64_t first = 0, last, b = 0; first < m; first = last, ++b) {
      last = end[b];
      if (last == first) continue;
      double count = static_cast<double>(last - first);
      double sum = 0, low = entry[first].value, high = low;
      for (int64_t i = first; i < last; ++i) {
        double v = entry[i].value;
        sum += v;
        low = v < low ? v : low;
        high = v > high ? v : high;
      }
      if (high - low <= lam * count / 2) {
        append(first, count, sum, lam);
        continue;
      }
      std::sort(entry.get() + first, entry.get() + last,
                [](const Entry& a, const Entry& b) { return a.value > b.value; });
      for (int64_t i = first; i < last; ++i) append(i, 1, entry[i].value, lam);
    }
  }

  // y = [z − τ]₊, τ the largest of (Σ z − 1) / count over the first blocks.
  template <class T>
  void write(T* y) const {
    double peak = block[0].sum / block[0].count, sum = 0, count = 0, tau = -1;
    auto drop = [&](int64_t b) { return block[b].sum / block[b].count - peak; };
    for (int64_t b = 0; b < blocks; ++b) {
      sum += block[b].count * drop(b);
      count += block[b].count;
      tau = std::max(tau, (sum - 1) / count);
    }
    double total = 0, support = 0;
    for (int64_t b = 0; b < blocks && drop(b) > tau; ++b) {
      total += block[b].count * (drop(b) - tau);
      support += block[b].count;
    }
    double excess = (total - 1) / support;  // what τ rounded
    for (int64_t b = 0; b < blocks && drop(b) - tau > excess; ++b) {
      const Entry* first = entry.get() + block[b].first;
      T value = static_cast<T>((drop(b) - tau) - excess);
      for (int64_t i = 0; i < static_cast<int64_t>(block[b].count); ++i) y[first[i].place] = value;
    }
  }
};

template <class T>
FENCHEL_INLINE void oscarmax_rows(const T* scores, double lam, int64_t first, int64_t last, int64_t d,
                                  T* out) {
  Regression regression(d);
  each_finite_row(scores, first, last, d, out, [&](const T* x, T top, T* y) FENCHEL_LAMBDA {
    double highest = static_cast<double>(top);
    Head kept = head(x, d, highest, std::numeric_limits<double>::lowest());
    if (-kept.least <= lam * kept.count / 2) {
      T share = static_cast<T>(1 / kept.count);
      for (int64_t i = 0; i < d; ++i) y[i] = x[i] > -kInf<T> ? share : T(0);
      return;
    }
    double best = -1 + lam / 2, cut;
    for (double before = 2 * kept.count;;) {
      double psi = (kept.sum - 1) / kept.count + lam * kept.count / 2;
      best = psi > best ? psi : best;
      cut = best - lam * (kept.count - 0.5);
      if (before - kept.count < 32 + before / 64) break;  // a pass costs as much as these
      before = kept.count;
      kept = head(x, d, highest, cut);
    }
    std::memset(y, 0, static_cast<size_t>(d) * sizeof(T));
    T rounded = static_cast<T>(highest + cut);
    int64_t m = places_above(x, d, std::nextafter(rounded, -kInf<T>), regression.above.get());
    regression.distribute(x, highest, m, kept.least, lam);
    regression.pool(m, lam);
    regression.write(y);
  });
}

// Sum and count of v over the entries of one value.
template <class T>
struct Group {
  T level;
  double sum, count;
};

// out = mean of v over the entry's group − mean of v over the support. A group is all entries of one
// nonzero value; a hash table finds it.
template <class T>
FENCHEL_INLINE void jvp_rows(const T* ys, const T* vs, int64_t first, int64_t last, int64_t d,
                             T* outs) {
  std::unique_ptr<int32_t[]> support(new int32_t[d]), home(new int32_t[d]);
  std::unique_ptr<Group<T>[]> table(new Group<T>[4 * d]);
  for (int64_t row = first; row < last; ++row) {
    const T *y = ys + row * d, *v = vs + row * d;
    T* out = outs + row * d;
    T top = maximum(y, d);
    int64_t others = 0;
    for (int64_t i = 0; i < d; ++i) {
      out[i] = top - top;  // zero, or NaN in a row of NaN
      others += y[i] > 0 && y[i] < top;
    }
    if (others == 0) continue;  // one group: its mean is that of the support
    int64_t count = places_above(y, d, T(0), support.get());
    int bits = 65 - __builtin_clzll(static_cast<uint64_t>(count));  // at least twice the count
    int64_t size = int64_t(1) << bits;
    for (int64_t s = 0; s < size; ++s) table[s] = {0, 0, 0};
    double total = 0;
    for (int64_t j = 0; j < count; ++j) {
      T level = y[support[j]];
      uint64_t key = 0;
      std::memcpy(&key, &level, sizeof level);
      int64_t s = static_cast<int64_t>(key * 0x9e3779b97f4a7c15 >> (64 - bits));
      while (table[s].level != 0 && table[s].level != level) s = (s + 1) & (size - 1);
      home[j] = static_cast<int32_t>(s);
      double w = static_cast<double>(v[support[j]]);
      table[s] = {level, table[s].sum + w, table[s].count + 1};
      total += w;
    }
    double mean = total / static_cast<double>(count);
    for (int64_t j = 0; j < count; ++j) {
      const Group<T>& group = table[home[j]];
      out[support[j]] = static_cast<T>(group.sum / group.count - mean);
    }
  }
}

}  // namespace
}  // namespace fenchel

FENCHEL_PROX(oscarmax)
