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
#pragma once

#include "structure.hpp"
#include "wide.hpp"

namespace fenchel {

// Numbers side by side, with their derivatives in a direction if kSlopes.
template <class Num, bool kSlopes>
struct Numbers {
  Num *x, *slope;
  Numbers operator+(int64_t k) const { return {x + k, kSlopes ? slope + k : slope}; }
};
template <class Num>
struct Number {
  Num x, slope;
};

template <class Num, bool kSlopes>
FENCHEL_INLINE Number<Num> at(Numbers<Num, kSlopes> v, int64_t k) {
  if constexpr (kSlopes) return {v.x[k], v.slope[k]};
  else return {v.x[k], Num()};
}
template <class Num, bool kSlopes>
FENCHEL_INLINE void put(Numbers<Num, kSlopes> v, int64_t k, Number<Num> a) {
  v.x[k] = a.x;
  if constexpr (kSlopes) v.slope[k] = a.slope;
}

// to += a · from, on n entries, a multiple of the lanes.
template <class Num, bool kSlopes>
FENCHEL_INLINE void add_multiple(Numbers<Num, kSlopes> to, Number<Num> a, Numbers<Num, kSlopes> from, int64_t n) {
  if constexpr (sizeof(Num) == sizeof(double)) {
    for (int64_t j = 0; j < n; j += kLanes<double>) {
      Vec<double> v = load<double>(from.x + j);
      store<double>(to.x + j, load<double>(to.x + j) + a.x * v);
      if constexpr (kSlopes)
        store<double>(to.slope + j,
                      load<double>(to.slope + j) + (a.x * load<double>(from.slope + j) + a.slope * v));
    }
  } else {
    if (is_zero(a.x)) return;
    for (int64_t j = 0; j < n; ++j) {
      to.x[j] += a.x * from.x[j];
      if constexpr (kSlopes) to.slope[j] += a.x * from.slope[j] + a.slope * from.x[j];
    }
  }
}

template <class Num, bool kSlopes>
FENCHEL_INLINE Number<Num> total(Numbers<Num, kSlopes> v, int64_t n) {
  Number<Num> out = {Num(0.0), Num(0.0)};
  if constexpr (sizeof(Num) == sizeof(double)) {
    Vec<double> x = {}, slope = {};
    for (int64_t j = 0; j < n; j += kLanes<double>) {
      x += load<double>(v.x + j);
      if constexpr (kSlopes) slope += load<double>(v.slope + j);
    }
    out.x = sum<double>(x);
    if constexpr (kSlopes) out.slope = sum<double>(slope);
  } else {
    for (int64_t j = 0; j < n; ++j) {
      out.x += v.x[j];
      if constexpr (kSlopes) out.slope += v.slope[j];
    }
  }
  return out;
}

// v /= s.
template <class Num, bool kSlopes>
FENCHEL_INLINE void divide(Numbers<Num, kSlopes> v, Number<Num> s, int64_t n) {
  const Num inverse = Num(1.0) / s.x, relative = s.slope * inverse;
  if constexpr (sizeof(Num) == sizeof(double)) {
    for (int64_t j = 0; j < n; j += kLanes<double>) {
      Vec<double> x = load<double>(v.x + j) * inverse;
      store<double>(v.x + j, x);
      if constexpr (kSlopes) store<double>(v.slope + j, load<double>(v.slope + j) * inverse - x * relative);
    }
  } else {
    for (int64_t j = 0; j < n; ++j) {
      v.x[j] *= inverse;
      if constexpr (kSlopes) v.slope[j] = v.slope[j] * inverse - v.x[j] * relative;
    }
  }
}

// The arcs of m words: row j holds the weights w(i → j) of all heads i of word j, and root[j] the root's.
template <class Num, bool kSlopes>
struct Arcs {
  Numbers<Num, kSlopes> weight, root;
  int64_t m, stride;
  Numbers<Num, kSlopes> row(int64_t j) const { return weight + j * stride; }
};

template <class Num, bool kSlopes>
class Escape {
  using Row = Numbers<Num, kSlopes>;
  using Graph = Arcs<Num, kSlopes>;

 public:
  // How much memory words need in all, for a copy of the arcs and ρ at every depth.
  static int64_t room(int64_t m) {
    int64_t all = 0;
    for (;; m = m - m / 2) {
      all += 2 * (m + 1) * padded<double>(m);
      if (m <= 2) return all;
    }
  }

  Escape(bool single_root) : single_root_(single_root) {}

  // Takes the last word out, leaving its head's probabilities in its row; returns S, zero if it has no head.
  Number<Num> leave_out(Graph& g, int64_t k) const {
    const int64_t n = padded<double>(k);
    Row row = g.row(k);
    Number<Num> s = total(row, n);
    if (!single_root_) s = {s.x + g.root.x[k], kSlopes ? s.slope + at(g.root, k).slope : s.slope};
    if (is_zero(s.x)) return s;
    divide(row, s, n);
    const Num inverse = Num(1.0) / s.x, r = g.root.x[k] * inverse;
    put(g.root, k, {r, kSlopes ? at(g.root, k).slope * inverse - r * s.slope * inverse : Num(0.0)});
    for (int64_t j = 0; j < k; ++j) {
      Row other = g.row(j);
      const Number<Num> through = at(other, k);
      put(other, k, {Num(0.0), Num(0.0)});
      add_multiple(other, through, row, n);
      put(other, j, {Num(0.0), Num(0.0)});
      const Number<Num> root = at(g.root, k), own = at(g.root, j);
      put(g.root, j, {own.x + through.x * root.x,
                      kSlopes ? own.slope + (through.x * root.slope + through.slope * root.x) : Num(0.0)});
    }
    return s;
  }

  // rho[i][d] for all words i and d of the graph, with its stride; false if some S is zero.
  bool solve(const Graph& g, Row rho, int64_t stride, Row memory) const {
    if (g.m == 1) {
      put(rho, 0, {Num(0.0), Num(0.0)});
      return true;
    }
    const int64_t half = g.m - g.m / 2;
    return solve_half(g, 0, half, rho, stride, memory) && solve_half(g, half, g.m - half, rho, stride, memory);
  }

 private:
  bool single_root_;

  // The same for the words d of first … first + kept, of which the others are left out.
  bool solve_half(const Graph& g, int64_t first, int64_t kept, Row rho, int64_t stride, Row memory) const {
    const int64_t m = g.m, width = padded<double>(m), own_stride = padded<double>(kept);
    Graph small = {memory, memory + m * width, m, width};
    Row own = memory + (m + 1) * width, rest = own + (m + 1) * own_stride;
    auto place = [&](int64_t i) { return i + first < m ? i + first : i + first - m; };
    for (int64_t j = 0; j < m; ++j) {
      const Row from = g.row(place(j)), to = small.row(j);
      copy(from + first, to, m - first);
      copy(from, to + (m - first), first);
      for (int64_t i = m; i < width; ++i) put(to, i, {Num(0.0), Num(0.0)});
      put(small.root, j, at(g.root, place(j)));
    }
    for (int64_t k = m - 1; k >= kept; --k)
      if (is_zero(leave_out(small, k).x)) return false;
    small.m = kept;
    if (!solve(small, own, own_stride, rest)) return false;
    for (int64_t i = 0; i < kept; ++i)
      for (int64_t d = kept; d < own_stride; ++d) put(own, i * own_stride + d, {Num(0.0), Num(0.0)});
    for (int64_t k = kept; k < m; ++k) {
      const Row row = own + k * own_stride, head = small.row(k);
      const Number<Num> root = at(small.root, k);
      for (int64_t d = 0; d < own_stride; ++d) put(row, d, root);
      for (int64_t i = 0; i < k; ++i) add_multiple(row, at(head, i), own + i * own_stride, own_stride);
    }
    for (int64_t i = 0; i < m; ++i) copy(own + i * own_stride, rho + place(i) * stride + first, kept);
    return true;
  }

  static void copy(Row from, Row to, int64_t n) {
    for (int64_t i = 0; i < n; ++i) put(to, i, at(from, i));
  }
};

}  // namespace fenchel
