// The matrix-tree theorem by elimination: the sum over all trees of a weighted graph, and its arcs' marginals.
#pragma once

#include <memory>

#include "walks.hpp"

namespace fenchel {

template <class Num>
class TreeElimination {
 public:
  Num *arcs, *root;  // by head and modifier, zero on the diagonal; and the root's
  Num *direction;    // of the logarithms of both, the root's on the diagonal
  Num *shares;       // the results: marginals, or their slopes

  void resize(int64_t n) {
    n_ = n;
    if (n <= room_) return;
    room_ = n;
    numbers_.reset(new Num[3 * n * n + n]);
    arcs = numbers_.get();
    direction = arcs + n * n;
    shares = direction + n * n;
    root = shares + n * n;
    plain_.reset();
    sloped_.reset();
  }

  // Calls f with the numbers S whose product is the sum.
  template <class F>
  void eliminate(bool single_root, F f) {
    const Walks<Num, false> walks(single_root);
    const auto g = graph<false>(plain_);
    walks.eliminate(g, n_, 1, f);
    f(g.root[0].x);
  }

  void marginals(bool single_root) { share<false>(single_root, plain_); }
  void product(bool single_root) { share<true>(single_root, sloped_); }

 private:
  int64_t n_ = 0, room_ = 0;
  std::unique_ptr<Num[]> numbers_;
  std::unique_ptr<Number<Num, false>[]> plain_;
  std::unique_ptr<Number<Num, true>[]> sloped_;

  // The graph by modifier and head, at the start of the memory.
  template <bool kSlopes>
  Arcs<Number<Num, kSlopes>> graph(std::unique_ptr<Number<Num, kSlopes>[]>& memory) {
    using N = Number<Num, kSlopes>;
    if (!memory) memory.reset(new N[2 * (room_ + 1) * room_ + Walks<Num, kSlopes>::room(room_)]);
    const Arcs<N> g = {memory.get(), memory.get() + n_ * n_, n_, n_};
    for (int64_t d = 0; d < n_; ++d) {
      for (int64_t h = 0; h < n_; ++h) g.row(d)[h] = number<kSlopes>(arcs[h * n_ + d], h * n_ + d);
      g.root[d] = number<kSlopes>(root[d], d * n_ + d);
    }
    return g;
  }
  template <bool kSlopes>
  FENCHEL_INLINE Number<Num, kSlopes> number(Num x, int64_t place) const {
    if constexpr (kSlopes)
      return {x, x * direction[place]};
    else
      return {x};
  }

  template <bool kSlopes>
  void share(bool single_root, std::unique_ptr<Number<Num, kSlopes>[]>& memory) {
    using N = Number<Num, kSlopes>;
    const auto g = graph<kSlopes>(memory);
    N *all = g.root, *rho = all + n_;  // the root's share is the first term of each sum
    Walks<Num, kSlopes>(single_root).solve(g, rho, n_, rho + n_ * n_);
    for (int64_t h = 0; h < n_; ++h)
      for (int64_t d = 0; d < n_; ++d) {
        N x = {};
        if (h != d) {
          x.add_product(number<kSlopes>(arcs[h * n_ + d], h * n_ + d), rho[h * n_ + d]);
          all[d].add(x);
        }
        rho[h * n_ + d] = x;
      }
    for (int64_t d = 0; d < n_; ++d) {
      const Num inverse = (Num{} + 1.0) / all[d].x;
      rho[d * n_ + d] = number<kSlopes>(root[d], d * n_ + d);
      for (int64_t h = 0; h < n_; ++h) {
        const N ratio = rho[h * n_ + d].over(all[d], inverse);
        if constexpr (kSlopes)
          shares[h * n_ + d] = ratio.slope;
        else
          shares[h * n_ + d] = ratio.x;
      }
    }
  }
};

}  // namespace fenchel
