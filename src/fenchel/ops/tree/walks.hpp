// Walks from word to head: how likely they reach the root before a given word.
//
// The weights of a word's arcs are the rates at which a walk goes from it to its heads. ρ_d(h) is the
// probability that the walk from h reaches the root before d. Among the arcs into d, the marginal of h → d is
// proportional to w(h → d) ρ_d(h), since h must not descend from d. A word is eliminated, without a change to
// the walks, when the ways through it replace its arcs:
//
//   w(i → j) += w(i → k) w(k → j) / S_k,  S_k = Σ_i w(i → k).
//
// So one half of the words is eliminated, the other half is solved by recursion, and the first half follows:
//
//   ρ_d(k) = Σ_i w(i → k) ρ_d(i) / S_k.
//
// Then the halves change places. All of it is O(n³), and nothing is subtracted. S is a sum, as in the
// algorithm of Grassmann, Taksar and Heyman (1985), so each result has the relative precision of a few
// roundings, however different the weights are. For a single root, the rates to the root are infinitely
// small: S leaves them out, and ρ is the rate at which the walk meets the root.
//
// Num is a vector with one sentence per lane, or a number with a wider exponent. Where S is zero the results
// are NaN.
#pragma once

#include "simd.hpp"

namespace fenchel {

// A number, with its derivative in a direction if kSlopes.
template <class Num, bool kSlopes>
struct Number {
  Num x;
  FENCHEL_INLINE void add(Number a) { x = x + a.x; }
  FENCHEL_INLINE void add_product(Number a, Number b) { x = x + a.x * b.x; }
  FENCHEL_INLINE Number over(Number s, Num inverse) const {
    (void)s;
    return {x * inverse};
  }
};
template <class Num>
struct Number<Num, true> {
  Num x, slope;
  FENCHEL_INLINE void add(Number a) { x = x + a.x, slope = slope + a.slope; }
  FENCHEL_INLINE void add_product(Number a, Number b) {
    x = x + a.x * b.x;
    slope = slope + a.x * b.slope + a.slope * b.x;
  }
  // Divided by s, whose inverse is given.
  FENCHEL_INLINE Number over(Number s, Num inverse) const {
    const Num ratio = x * inverse;
    return {ratio, (slope - ratio * s.slope) * inverse};
  }
};

// The arcs of m words: row j holds the weights w(i → j) of all heads i of word j, and root[j] the root's.
template <class N>
struct Arcs {
  N *weight, *root;
  int64_t m, stride;
  N* row(int64_t j) const { return weight + j * stride; }
};

template <class Num, bool kSlopes>
class Walks {
 public:
  using N = Number<Num, kSlopes>;
  using Graph = Arcs<N>;

  explicit Walks(bool single_root) : single_root_(single_root) {}

  // How many numbers `solve` needs as memory: the arcs and ρ at every depth.
  static int64_t room(int64_t m) {
    int64_t all = 0;
    for (; m > 1; m = m - m / 2) all += (m + 1) * m + m * (m - m / 2);
    return all;
  }

  // Eliminates the last words, down to `kept` of them, and leaves the probabilities of their heads in their
  // rows. Calls f with the S of each.
  template <class F>
  void eliminate(const Graph& g, int64_t m, int64_t kept, F f) const {
    while (m - kept >= kPivots) eliminate_block<kPivots>(g, m, f), m -= kPivots;
    while (m > kept) eliminate_block<1>(g, m, f), m -= 1;
  }

  // rho[i * stride + d] for all words i and d of the graph.
  void solve(const Graph& g, N* rho, int64_t stride, N* memory) const {
    if (g.m == 1) {
      rho[0] = N{};
      return;
    }
    const int64_t half = g.m - g.m / 2;
    solve_half(g, 0, half, rho, stride, memory);
    solve_half(g, half, g.m - half, rho, stride, memory);
  }

 private:
  bool single_root_;
  // How many words are eliminated, or found again, and how many columns filled, at once: rows of several
  // sentences side by side are long, and should not go through the cache more often than needed.
  static constexpr int kPivots = kSlopes ? 3 : 4, kRows = 2, kColumns = kSlopes ? 2 : 4;

  static FENCHEL_INLINE Num one() { return Num{} + 1.0; }

  // Eliminates the words m − 1, …, m − kCount.
  template <int kCount, class F>
  FENCHEL_INLINE void eliminate_block(const Graph& g, int64_t m, F f) const {
    for (int b = 0; b < kCount; ++b) {
      const int64_t k = m - 1 - b;
      N *row = g.row(k), s = {};
      for (int64_t i = 0; i < k; ++i) s.add(row[i]);
      if (!single_root_) s.add(g.root[k]);
      f(s.x);
      const Num inverse = one() / s.x;
      for (int64_t i = 0; i < k; ++i) row[i] = row[i].over(s, inverse);
      g.root[k] = g.root[k].over(s, inverse);
      for (int64_t j = m - kCount; j < k; ++j) go_through<1>(g, k, j, k);
    }
    for (int64_t j = 0; j < m - kCount; ++j) go_through<kCount>(g, m - 1, j, m - kCount);
  }

  // The arcs of word j along the words k, …, k − kCount + 1 from the heads of these among the first n.
  template <int kCount>
  FENCHEL_INLINE void go_through(const Graph& g, int64_t k, int64_t j, int64_t n) const {
    N along[kCount], *to = g.row(j);
    const N* row[kCount];
    for (int b = 0; b < kCount; ++b) {
      row[b] = g.row(k - b);
      along[b] = to[k - b];
      for (int before = 0; before < b; ++before) along[b].add_product(along[before], row[before][k - b]);
      g.root[j].add_product(along[b], g.root[k - b]);
    }
    for (int64_t i = 0; i < n; ++i) {
      N x = to[i];
      for (int b = 0; b < kCount; ++b) x.add_product(along[b], row[b][i]);
      to[i] = x;
    }
    to[j] = N{};
  }

  // The same as solve for the words d of first … first + kept; the others are eliminated.
  void solve_half(const Graph& g, int64_t first, int64_t kept, N* rho, int64_t stride, N* memory) const {
    const int64_t m = g.m;
    Graph small = {memory, memory + m * m, m, m};
    N *own = small.root + m, *rest = own + m * kept;
    auto place = [&](int64_t i) { return i + first < m ? i + first : i + first - m; };
    for (int64_t j = 0; j < m; ++j) {
      const N* from = g.row(place(j));
      N* to = small.row(j);
      for (int64_t i = 0; i < m; ++i) to[i] = from[place(i)];
      small.root[j] = g.root[place(j)];
    }
    eliminate(small, m, kept, [](Num) {});
    solve({small.weight, small.root, kept, m}, own, kept, rest);
    int64_t k = kept;
    for (; k + kRows <= m; k += kRows) find_rows<kRows>(small, k, kept, own);
    for (; k < m; ++k) find_rows<1>(small, k, kept, own);
    for (int64_t i = 0; i < m; ++i)
      for (int64_t d = 0; d < kept; ++d) rho[place(i) * stride + first + d] = own[i * kept + d];
  }

  // ρ_d for the words k, …, k + kCount − 1 and all words d that are kept.
  template <int kCount>
  FENCHEL_INLINE void find_rows(const Graph& g, int64_t k, int64_t kept, N* own) const {
    int64_t d = 0;
    for (; d + kColumns <= kept; d += kColumns) find<kCount, kColumns>(g, k, kept, own + d);
    for (; d < kept; ++d) find<kCount, 1>(g, k, kept, own + d);
  }
  template <int kCount, int kWide>
  FENCHEL_INLINE void find(const Graph& g, int64_t k, int64_t kept, N* own) const {
    N found[kCount][kWide];
    const N* row[kCount];
    for (int b = 0; b < kCount; ++b) {
      row[b] = g.row(k + b);
      for (int c = 0; c < kWide; ++c) found[b][c] = g.root[k + b];
    }
    for (int64_t i = 0; i < k; ++i)
      for (int c = 0; c < kWide; ++c) {
        const N known = own[i * kept + c];
        for (int b = 0; b < kCount; ++b) found[b][c].add_product(row[b][i], known);
      }
    for (int b = 0; b < kCount; ++b)
      for (int c = 0; c < kWide; ++c) {
        for (int before = 0; before < b; ++before)
          found[b][c].add_product(row[b][k + before], found[before][c]);
        own[(k + b) * kept + c] = found[b][c];
      }
  }
};

}  // namespace fenchel
