// How likely a walk from word to head ends at the root before it meets a given word.
//
// Read the weights of a word's arcs as the rates at which a walk goes from it to its heads. With ρ_d(h) the
// probability that the walk from h reaches the root before d, the marginal of the arc h → d is proportional,
// among the arcs into d, to w(h → d) ρ_d(h): h must not hang on d. Walks are not changed by leaving words out
// if their arcs are replaced by the ways through them,
//
//   w(i → j) += w(i → k) w(k → j) / S_k,  S_k = Σ_i w(i → k),
//
// so half of the words are left out, the others solved by recursion, and the first half found from them:
//
//   ρ_d(k) = Σ_i w(i → k) ρ_d(i) / S_k.
//
// Then the same with the halves exchanged. All is O(n³), and nothing is subtracted: with S as a sum, as in
// the algorithm of Grassmann, Taksar and Heyman (1985), each result has the relative precision of a few
// roundings, however different the weights are. For a single root, the rates to the root are taken to
// be infinitely small: they are left out of S, and ρ is the rate at which the root would be met.
//
// Num is a vector with one sentence per lane, or a wide number. Where S is zero the results are NaN.
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
class Escape {
 public:
  using N = Number<Num, kSlopes>;
  using Graph = Arcs<N>;

  explicit Escape(bool single_root) : single_root_(single_root) {}

  // How many numbers `solve` needs as memory: the arcs and ρ at every depth.
  static int64_t room(int64_t m) {
    int64_t all = 0;
    for (; m > 1; m = m - m / 2) all += (m + 1) * m + m * (m - m / 2);
    return all;
  }

  // Takes word k, the last, out, leaving the probabilities of its heads in its row; returns S.
  N leave_out(const Graph& g, int64_t k) const {
    N *row = g.row(k), s = N{};
    for (int64_t i = 0; i < k; ++i) s.add(row[i]);
    if (!single_root_) s.add(g.root[k]);
    const Num inverse = one() / s.x;
    for (int64_t i = 0; i < k; ++i) row[i] = row[i].over(s, inverse);
    const N root = g.root[k] = g.root[k].over(s, inverse);
    int64_t j = 0;
    for (; j + kRows <= k; j += kRows) go_through<kRows>(g, k, j, root);
    for (; j < k; ++j) go_through<1>(g, k, j, root);
    return s;
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
  static constexpr int kRows = kSlopes ? 2 : 4, kColumns = kSlopes ? 2 : 4;

  static FENCHEL_INLINE Num one() { return Num{} + 1.0; }

  // The arcs of words j, … from the heads of k, along k.
  template <int kCount>
  FENCHEL_INLINE void go_through(const Graph& g, int64_t k, int64_t j, N root) const {
    N along[kCount], *to[kCount];
    for (int r = 0; r < kCount; ++r) {
      to[r] = g.row(j + r);
      along[r] = to[r][k];
      g.root[j + r].add_product(along[r], root);
    }
    const N* row = g.row(k);
    for (int64_t i = 0; i < k; ++i) {
      const N p = row[i];
      for (int r = 0; r < kCount; ++r) to[r][i].add_product(along[r], p);
    }
    for (int r = 0; r < kCount; ++r) to[r][j + r] = N{};
  }

  // The same as solve for the words d of first … first + kept; the others are left out.
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
    for (int64_t k = m - 1; k >= kept; --k) leave_out(small, k);
    solve({small.weight, small.root, kept, m}, own, kept, rest);
    for (int64_t k = kept; k < m; ++k) {
      int64_t d = 0;
      for (; d + kColumns <= kept; d += kColumns) find<kColumns>(small, k, kept, own, d);
      for (; d < kept; ++d) find<1>(small, k, kept, own, d);
    }
    for (int64_t i = 0; i < m; ++i)
      for (int64_t d = 0; d < kept; ++d) rho[place(i) * stride + first + d] = own[i * kept + d];
  }

  // ρ_d(k) for the words d, …
  template <int kCount>
  FENCHEL_INLINE void find(const Graph& g, int64_t k, int64_t kept, N* own, int64_t d) const {
    N found[kCount];
    for (int c = 0; c < kCount; ++c) found[c] = g.root[k];
    const N* row = g.row(k);
    for (int64_t i = 0; i < k; ++i) {
      const N p = row[i];
      for (int c = 0; c < kCount; ++c) found[c].add_product(p, own[i * kept + d + c]);
    }
    for (int c = 0; c < kCount; ++c) own[k * kept + d + c] = found[c];
  }
};

}  // namespace fenchel
