// Inside-outside: log-partition, marginals and their derivative of the projective trees of one sentence, by
// sums over spans (inside), and their gradient from the widest span down (outside). Where sums of scores are
// large, the sums over spans are BigExp instead of log-sums.
#pragma once

#include <vector>

#include "inference.hpp"
#include "math.hpp"
#include "big_exp.hpp"
#include "spans.hpp"

namespace fenchel {

class ProjectiveTreeMarginals {
 public:
  ProjectiveTreeMarginals(int64_t n, int64_t, int64_t single_root)
      : full_n_(n), single_root_(single_root != 0) {
    const int64_t nodes = n + !single_root_;
    for (Workspace* w : {&value_, &slope_, &share_, &share_slope_}) {
      w->resize(kTables * Spans::size(nodes));
      w->fill(kTables * Spans::size(nodes), kNone);
    }
    scores_.resize(padded<double>(n * n));
    direction_.resize(padded<double>(n * n));
    for (Workspace* w : {&root_share_, &root_slope_}) w->resize(padded<double>(n));
  }

  int64_t parts() const { return full_n_ * full_n_; }
  int64_t extras() const { return 0; }

  template <class T>
  double forward(const T* scores, const T*, const int64_t* lengths) {
    n_ = lengths ? *lengths : full_n_;
    nodes_ = n_ + !single_root_;
    stride_ = Spans::stride(nodes_);
    table_ = Spans::size(nodes_);
    read(scores, scores_.data());
    if (!is_solvable(scores_.data(), n_ * n_)) return std::numeric_limits<double>::quiet_NaN();
    sums_.clear();
    sweep<false>(scores_.data(), value_.data());
    const double value = single_root_ ? add_roots() : value_[at(kRight, nodes_ - 1, 0)];
    double highest = kNone;
    for (int64_t k = 0; k < n_ * n_; ++k) highest = std::fmax(highest, scores_[k]);
    return needs_exact_sums(highest, value) ? forward_big_exp() : value;
  }

  template <class T>
  void marginals(T* u, T*) {
    outside<false>();
    write(share_, root_share_, u);
  }

  template <class T>
  void product(const T* of_u, const T*, T* u, T*) {
    read(of_u, direction_.data());
    sweep<true>(direction_.data(), slope_.data());
    double value_slope = 0;  // of the log-partition
    for (int64_t r = 0; single_root_ && r < n_; ++r) {
      root_slope_[r] = slope_[at(kLeft, r, 0)] + slope_[at(kRight, n_ - 1 - r, r)] + direction_[r * n_ + r];
      if (root_share_[r] > 0) value_slope += root_share_[r] * root_slope_[r];
    }
    for (int64_t r = 0; single_root_ && r < n_; ++r)
      root_slope_[r] = root_share_[r] > 0 ? root_share_[r] * (root_slope_[r] - value_slope) : 0;
    outside<true>();
    write(share_slope_, root_slope_, u);
  }

 private:
  // Of each span: its words on its left end; on its right end; an arc from left to right, or back, with the
  // words between on either end; and the sum of ways to divide these.
  enum Table { kRight, kLeft, kRightArc, kLeftArc, kGap, kTables };

  int64_t full_n_, n_ = 0, nodes_ = 0, stride_ = 0, table_ = 0;
  bool single_root_;
  Workspace scores_, direction_;
  Workspace value_, slope_;  // log-sums, and their derivative in the direction
  Workspace share_, share_slope_;      // the gradient in the log-sums, and its derivative
  Workspace root_share_, root_slope_;  // of each word: the probability that it is the single root
  std::vector<BigExp> sums_;  // in place of the log-sums, where it is not empty

  int64_t at(Table table, int64_t w, int64_t i) const { return table * table_ + w * stride_ + i; }

  template <class T>
  void read(const T* from, double* to) const {
    for (int64_t h = 0; h < n_; ++h)
      for (int64_t d = 0; d < n_; ++d) to[h * n_ + d] = static_cast<double>(from[h * full_n_ + d]);
  }

  // The log-sum over the words that may be the single root, and their shares in it.
  double add_roots() {
    double top = kNone, mass = 0;
    for (int64_t r = 0; r < n_; ++r) {
      root_share_[r] = value_[at(kLeft, r, 0)] + value_[at(kRight, n_ - 1 - r, r)] + scores_[r * n_ + r];
      top = std::fmax(top, root_share_[r]);
    }
    if (top == kNone) return top;
    for (int64_t r = 0; r < n_; ++r) mass += root_share_[r] = std::exp(root_share_[r] - top);
    for (int64_t r = 0; r < n_; ++r) root_share_[r] /= mass;
    return top + std::log(mass);
  }

  double forward_big_exp() {
    const Sentence sentence(scores_.data(), static_cast<int>(n_), single_root_);
    sums_.assign(kTables * table_, BigExp());
    for (int64_t i = 0; i < nodes_; ++i) sums_[at(kRight, 0, i)] = sums_[at(kLeft, 0, i)] = BigExp(1.0);
    for (int64_t w = 1; w < nodes_; ++w)
      for (int64_t i = 0; i < nodes_ - w; ++i) {
        const int first = static_cast<int>(i), last = static_cast<int>(i + w);
        const BigExp gap = sums_[at(kGap, w, i)] = ways<kGap>(w, i);
        sums_[at(kRightArc, w, i)] = gap * BigExp::exp(sentence.score(first, last));
        sums_[at(kLeftArc, w, i)] = gap * BigExp::exp(sentence.score(last, first));
        sums_[at(kRight, w, i)] = ways<kRight>(w, i);
        sums_[at(kLeft, w, i)] = ways<kLeft>(w, i);
      }
    BigExp total = single_root_ ? BigExp() : sums_[at(kRight, nodes_ - 1, 0)];
    std::vector<BigExp> roots(single_root_ ? n_ : 0);
    for (int64_t r = 0; single_root_ && r < n_; ++r) {
      roots[r] = sums_[at(kLeft, r, 0)] * sums_[at(kRight, n_ - 1 - r, r)] * BigExp::exp(scores_[r * n_ + r]);
      total = total + roots[r];
    }
    for (int64_t r = 0; single_root_ && r < n_; ++r) root_share_[r] = ratio(roots[r], total);
    return total.significand > 0 ? total.log() : kNone;
  }
  template <Table kTable>
  BigExp ways(int64_t w, int64_t i) const {
    BigExp total;
    each_way<kTable>(w, i, [&](int64_t a, int64_t b) FENCHEL_LAMBDA { total = total + sums_[a] * sums_[b]; });
    return total;
  }

  // Calls f(x, y) with the places of the two halves of each way to build span i … i + w.
  template <Table kTable, class F>
  FENCHEL_INLINE void each_way(int64_t w, int64_t i, F f) const {
    for (int64_t t = 0; t < w; ++t) {
      if constexpr (kTable == kGap) f(at(kRight, t, i), at(kLeft, w - 1 - t, i + t + 1));
      if constexpr (kTable == kRight) f(at(kRightArc, t + 1, i), at(kRight, w - 1 - t, i + t + 1));
      if constexpr (kTable == kLeft) f(at(kLeft, t, i), at(kLeftArc, w - t, i + t));
    }
  }

  // log Σ exp over the ways of spans i, …
  template <Table kTable>
  FENCHEL_INLINE void add_up(int64_t w, int64_t i) {
    double* x = value_.data();
    Vec<double> top = splat<double>(kNone), mass = {};
    each_way<kTable>(w, i, [&](int64_t a, int64_t b) FENCHEL_LAMBDA {
      top = max<double>(top, load<double>(x + a) + load<double>(x + b));
    });
    const Vec<double> base = top > kNone ? top : Vec<double>{};
    each_way<kTable>(w, i, [&](int64_t a, int64_t b) FENCHEL_LAMBDA {
      mass += exp<double>((load<double>(x + a) + load<double>(x + b)) - base);
    });
    mass = mass > 0 ? mass : splat<double>(1);
    store<double>(x + at(kTable, w, i), top + log<double>(mass, Vec<double>{}));
  }

  // The probability of one way among those of its span, whose log-sum is given.
  FENCHEL_INLINE Vec<double> probability(int64_t a, int64_t b, int64_t own, Vec<double> all) const {
    if (!sums_.empty()) return probability_big_exp(a, b, own);
    const double* x = value_.data();
    return exp<double>((load<double>(x + a) + load<double>(x + b)) - (all > kNone ? all : Vec<double>{}));
  }
  Vec<double> probability_big_exp(int64_t a, int64_t b, int64_t own) const {
    Vec<double> p;
    for (int64_t k = 0; k < kLanes<double>; ++k) p[k] = ratio(sums_[a + k] * sums_[b + k], sums_[own + k]);
    return p;
  }

  template <Table kTable>
  FENCHEL_INLINE void add_slopes(int64_t w, int64_t i) {
    double* x = slope_.data();
    const int64_t own = at(kTable, w, i);
    const Vec<double> all = load<double>(value_.data() + own);
    Vec<double> total = {};
    each_way<kTable>(w, i, [&](int64_t a, int64_t b) FENCHEL_LAMBDA {
      total += probability(a, b, own, all) * (load<double>(x + a) + load<double>(x + b));
    });
    store<double>(x + own, total);
  }

  // All spans, narrow ones first: log-sums, or after them slopes.
  template <bool kSlopes>
  void sweep(const double* arcs, double* x) {
    if constexpr (kSlopes) slope_.fill(kTables * table_, 0);
    const Sentence sentence(arcs, static_cast<int>(n_), single_root_);
    for (int64_t i = 0; i < nodes_; ++i) x[at(kRight, 0, i)] = x[at(kLeft, 0, i)] = 0;
    for (int64_t w = 1; w < nodes_; ++w) {
      for (int64_t i = 0; i < nodes_ - w; i += kLanes<double>)
        kSlopes ? add_slopes<kGap>(w, i) : add_up<kGap>(w, i);
      for (int64_t i = 0; i < nodes_ - w; ++i) {
        const int first = static_cast<int>(i), last = static_cast<int>(i + w);
        const bool rooted = sentence.arc(last, first) < 0;
        x[at(kRightArc, w, i)] = x[at(kGap, w, i)] + sentence.score(first, last);
        x[at(kLeftArc, w, i)] = x[at(kGap, w, i)] + (kSlopes && rooted ? 0 : sentence.score(last, first));
      }
      for (int64_t i = 0; i < nodes_ - w; i += kLanes<double>) {
        kSlopes ? add_slopes<kRight>(w, i) : add_up<kRight>(w, i);
        kSlopes ? add_slopes<kLeft>(w, i) : add_up<kLeft>(w, i);
      }
    }
  }

  // Passes the gradient of spans i, … on to the halves of their ways.
  template <Table kTable, bool kSlopes>
  FENCHEL_INLINE void pass_on(int64_t w, int64_t i) {
    const int64_t own = at(kTable, w, i), count = nodes_ - w - i;
    const Vec<double> all = load<double>(value_.data() + own), own_slope = load<double>(slope_.data() + own);
    Vec<double> share = load<double>(share_.data() + own), share_slope = {};
    if constexpr (kSlopes) share_slope = load<double>(share_slope_.data() + own);
    for (int64_t k = count; k < kLanes<double>; ++k) share[k] = share_slope[k] = 0;  // behind the last span
    each_way<kTable>(w, i, [&](int64_t a, int64_t b) FENCHEL_LAMBDA {
      const Vec<double> p = probability(a, b, own, all);
      const Vec<double> part = share > 0 ? p * share : Vec<double>{};
      add(share_, a, part);
      add(share_, b, part);
      if constexpr (kSlopes) {
        const Vec<double> change = (load<double>(slope_.data() + a) + load<double>(slope_.data() + b)) - own_slope;
        const Vec<double> part_slope = share > 0 ? p * share_slope + part * change : Vec<double>{};
        add(share_slope_, a, part_slope);
        add(share_slope_, b, part_slope);
      }
    });
  }
  FENCHEL_INLINE static void add(Workspace& table, int64_t place, Vec<double> v) {
    store<double>(table.data() + place, load<double>(table.data() + place) + v);
  }

  template <bool kSlopes>
  void outside() {
    share_.fill(kTables * table_, 0);
    if constexpr (kSlopes) share_slope_.fill(kTables * table_, 0);
    if (!single_root_) share_[at(kRight, nodes_ - 1, 0)] = 1;
    for (int64_t r = 0; single_root_ && r < n_; ++r) {
      share_[at(kLeft, r, 0)] += root_share_[r];
      share_[at(kRight, n_ - 1 - r, r)] += root_share_[r];
      if constexpr (kSlopes) {
        share_slope_[at(kLeft, r, 0)] += root_slope_[r];
        share_slope_[at(kRight, n_ - 1 - r, r)] += root_slope_[r];
      }
    }
    for (int64_t w = nodes_ - 1; w > 0; --w) {
      for (int64_t i = 0; i < nodes_ - w; i += kLanes<double>) {
        pass_on<kRight, kSlopes>(w, i);
        pass_on<kLeft, kSlopes>(w, i);
      }
      for (int64_t i = 0; i < nodes_ - w; ++i) {
        share_[at(kGap, w, i)] = share_[at(kRightArc, w, i)] + share_[at(kLeftArc, w, i)];
        if constexpr (kSlopes)
          share_slope_[at(kGap, w, i)] = share_slope_[at(kRightArc, w, i)] + share_slope_[at(kLeftArc, w, i)];
      }
      for (int64_t i = 0; i < nodes_ - w; i += kLanes<double>) pass_on<kGap, kSlopes>(w, i);
    }
  }

  // What belongs to each arc.
  template <class T>
  void write(const Workspace& from, const Workspace& root_share, T* u) const {
    const Sentence sentence(nullptr, static_cast<int>(n_), single_root_);
    auto put = [&](int64_t index, double x) {
      if (index >= 0) u[index / n_ * full_n_ + index % n_] = static_cast<T>(x);
    };
    for (int64_t w = 1; w < nodes_; ++w)
      for (int64_t i = 0; i < nodes_ - w; ++i) {
        const int first = static_cast<int>(i), last = static_cast<int>(i + w);
        put(sentence.arc(first, last), from[at(kRightArc, w, i)]);
        put(sentence.arc(last, first), from[at(kLeftArc, w, i)]);
      }
    for (int64_t r = 0; single_root_ && r < n_; ++r) put(r * n_ + r, root_share[r]);
  }
};

}  // namespace fenchel
