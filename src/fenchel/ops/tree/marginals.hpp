// Log-partitions, marginals and their derivatives of a batch of sentences, by the matrix-tree theorem. Sentences
// of equal length are solved together, one per lane. Those whose weights do not fit into doubles are solved one
// by one, as WideDouble or BigExp.
#pragma once

#include <algorithm>
#include <numeric>
#include <vector>

#include "math.hpp"
#include "structure.hpp"
#include "big_exp.hpp"
#include "elimination.hpp"
#include "wide_double.hpp"

namespace fenchel {
namespace {

constexpr int64_t kSide = kLanes<double>;

struct Lane {
  Vec<double> v;
};
FENCHEL_INLINE Lane operator+(Lane a, Lane b) { return {a.v + b.v}; }
FENCHEL_INLINE Lane operator+(Lane a, double b) { return {a.v + b}; }
FENCHEL_INLINE Lane operator-(Lane a, Lane b) { return {a.v - b.v}; }
FENCHEL_INLINE Lane operator*(Lane a, Lane b) { return {a.v * b.v}; }
FENCHEL_INLINE Lane operator/(Lane a, Lane b) { return {a.v / b.v}; }

// Scores that differ by no more make weights that neither overflow nor underflow.
constexpr double kMaxSpread = 600;

template <class T>
struct Sentences {
  const T* scores;
  const int64_t* lengths;
  int64_t batch, n;
  bool single_root;
  const T* direction;  // for products, else null
  double* values;      // may be null
  T* shares;           // marginals or products; may be null
};

class TreeMarginals {
 public:
  // Answers up to kSide sentences of n words.
  template <class T>
  void answer(const Sentences<T>& all, const int64_t* rows, int64_t count, int64_t n) {
    n_ = n, single_root_ = all.single_root;
    lanes_.resize(n);
    if (room_ < n) {
      score_.reset(new Lane[n * n]);
      root_.reset(new Lane[n]);
      head_max_.reset(new Lane[n]);
      room_ = n;
    }
    read(all.scores, all.n, rows, count, score_.get());
    if (all.direction) read(all.direction, all.n, rows, count, lanes_.direction);
    rescale();
    Lane value = sum_lanes();
    if (all.shares) all.direction ? lanes_.product(single_root_) : lanes_.marginals(single_root_);
    if (all.shares) check_lanes();
    if (all.shares) write(all.shares, all.n, rows, count);
    for (int64_t lane = 0; lane < count; ++lane) {
      const int64_t row = rows[lane];
      if (fits_[lane] != 0) {
        if (all.values) all.values[row] = value.v[lane];
      } else if (failure_[lane] == 0) {
        if (high_[lane] > kLargeSum || !answer_alone(all, row, lane, wide_, -kLargeSum))
          if (!answer_alone(all, row, lane, big_, kNone)) write_failure(all, row, kNone);
      } else {
        write_failure(all, row, failure_[lane]);
      }
    }
  }

 private:
  int64_t n_ = 0, room_ = 0;
  bool single_root_ = true;
  TreeElimination<Lane> lanes_;
  TreeElimination<WideDouble> wide_;
  TreeElimination<BigExp> big_;
  std::unique_ptr<Lane[]> score_, root_;  // rescaled; −inf on the diagonal
  std::unique_ptr<Lane[]> head_max_;      // the largest score of each word's heads, which was subtracted
  Vec<double> base_, high_, failure_;     // high: the largest score; failure: 0, −inf for no tree, or NaN
  VecInt<double> fits_;                   // whether the weights have room in a double

  // Between matrices of sentences, of `stride` words, and lanes, a few entries of all sentences at a time.
  template <class T>
  void read(const T* from, int64_t stride, const int64_t* rows, int64_t count, Lane* to) const {
    for (int64_t h = 0; h < n_; ++h)
      for (int64_t d = 0; d < n_; d += kSide) {
        double* out = reinterpret_cast<double*>(to + h * n_ + d);
        const int64_t some = std::min(kSide, n_ - d);
        for (int64_t lane = 0; lane < kSide; ++lane) {
          const T* entry = from + (rows[lane < count ? lane : 0] * stride + h) * stride + d;
          for (int64_t e = 0; e < some; ++e) out[e * kSide + lane] = static_cast<double>(entry[e]);
        }
      }
  }
  template <class T>
  void write(T* to, int64_t stride, const int64_t* rows, int64_t count) const {
    if (n_ < stride)
      for (int64_t lane = 0; lane < count; ++lane) {
        T* all = to + rows[lane] * stride * stride;
        std::fill(all, all + stride * stride, T(0));
      }
    for (int64_t h = 0; h < n_; ++h)
      for (int64_t d = 0; d < n_; d += kSide) {
        const double* in = reinterpret_cast<const double*>(lanes_.shares + h * n_ + d);
        const int64_t some = std::min(kSide, n_ - d);
        for (int64_t lane = 0; lane < count; ++lane) {
          T* entry = to + (rows[lane] * stride + h) * stride + d;
          for (int64_t e = 0; e < some; ++e) entry[e] = static_cast<T>(in[e * kSide + lane]);
        }
      }
  }

  // Subtracts the largest score of each word's heads, and of a single root in all; base is their sum.
  void rescale() {
    const Vec<double> zero = {}, none = splat<double>(kNone);
    VecInt<double> bad = {}, orphan = {}, lost = {}, forbids = {};
    Vec<double> spread = {}, least = {}, top = single_root_ ? none : zero, low = zero;
    base_ = zero, high_ = none;
    for (int64_t d = 0; d < n_; ++d) {
      root_[d] = score_[d * n_ + d];
      head_max_[d].v = single_root_ ? none : root_[d].v;
    }
    for (int64_t h = 0; h < n_; ++h)
      for (int64_t d = 0; d < n_; ++d) {
        const Vec<double> s = score_[h * n_ + d].v;
        bad |= ~(s < kInf<double>);
        high_ = max<double>(high_, s);
        least = s > none && s < least ? s : least;
        if (h != d) head_max_[d].v = max<double>(head_max_[d].v, s);
      }
    for (int64_t d = 0; d < n_; ++d) {
      Vec<double> head_max = head_max_[d].v;
      orphan |= head_max == none;
      head_max = head_max == none ? root_[d].v : head_max;
      lost |= head_max == none;
      head_max_[d].v = head_max = head_max == none ? zero : head_max;
      base_ += head_max;
      root_[d].v -= head_max;
      top = single_root_ ? max<double>(top, root_[d].v) : top;
    }
    for (int64_t h = 0; h < n_; ++h)
      for (int64_t d = 0; d < n_; ++d) {
        const Vec<double> s = h == d ? none : score_[h * n_ + d].v - head_max_[d].v;
        score_[h * n_ + d].v = s;
        if (h == d) continue;
        forbids |= s == none;
        low = s > none && s < low ? s : low;
      }
    lost |= top == none;
    top = top == none ? zero : top;
    base_ += top;
    for (int64_t d = 0; d < n_; ++d) {
      root_[d].v -= top;
      forbids |= root_[d].v == none;
      low = root_[d].v > none && root_[d].v < low ? root_[d].v : low;
    }
    spread = -low;
    spread = forbids ? spread * static_cast<double>(n_) : spread;
    failure_ = bad ? splat<double>(std::numeric_limits<double>::quiet_NaN()) : lost ? none : zero;
    fits_ = ~orphan & (spread <= kMaxSpread) & (high_ <= kLargeSum) & (least >= -kLargeSum) & (failure_ == zero);
  }

  // The log-partitions. A lane whose weights have no room gets weights of one.
  Lane sum_lanes() {
    const Vec<double> one = splat<double>(1);
    for (int64_t h = 0; h < n_; ++h)
      for (int64_t d = 0; d < n_; ++d)
        lanes_.arcs[h * n_ + d].v = h == d ? Vec<double>{} : fits_ ? exp<double>(score_[h * n_ + d].v) : one;
    for (int64_t d = 0; d < n_; ++d) lanes_.root[d].v = fits_ ? exp<double>(root_[d].v) : one;
    Vec<double> value = base_ + failure_;
    VecInt<double> fits = fits_;
    lanes_.eliminate(single_root_, [&](Lane s) {
      const VecInt<double> sound = (s.v > 0) & (s.v < kInf<double>);
      fits &= sound;
      value += log<double>(sound ? s.v : one, Vec<double>{});
    });
    fits_ = fits;
    return {value};
  }

  void check_lanes() {
    for (int64_t k = 0; k < n_ * n_; ++k) fits_ &= lanes_.shares[k].v == lanes_.shares[k].v;
  }

  // Writes −inf and zeros where there is no tree, NaN where scores are NaN or +inf.
  template <class T>
  static void write_failure(const Sentences<T>& all, int64_t row, double value) {
    if (all.values) all.values[row] = value;
    if (!all.shares) return;
    T* to = all.shares + row * all.n * all.n;
    std::fill(to, to + all.n * all.n, value == value ? T(0) : std::numeric_limits<T>::quiet_NaN());
  }

  // One sentence in numbers with a wider exponent; false if it has no tree, or a log-partition below the least.
  // The weights of a single root are times ε: a tree then has one of them.
  template <class T, class Num>
  bool answer_alone(const Sentences<T>& all, int64_t row, int64_t lane, TreeElimination<Num>& sums, double least) {
    const int64_t n = n_, stride = all.n;
    const T* scores = all.scores + row * stride * stride;
    sums.resize(n);
    for (int64_t h = 0; h < n; ++h)
      for (int64_t d = 0; d < n; ++d) {
        const Num weight = Num::exp(static_cast<double>(scores[h * stride + d]));
        sums.arcs[h * n + d] = h == d ? Num() : weight;
        if (h == d) sums.root[d] = single_root_ ? weight.times_epsilon() : weight;
        if (all.direction) sums.direction[h * n + d] = Num(lanes_.direction[h * n + d].v[lane]);
      }
    Num total(1.0);
    sums.eliminate(false, [&](const Num& s) { total = total * s; });
    if (!(total.significand > 0) || (single_root_ && total.epsilon_power() > 1) || !(total.log() >= least)) return false;
    if (all.values) all.values[row] = total.log();
    if (!all.shares) return true;
    all.direction ? sums.product(false) : sums.marginals(false);
    T* to = all.shares + row * stride * stride;
    std::fill(to, to + stride * stride, T(0));
    for (int64_t h = 0; h < n; ++h)
      for (int64_t d = 0; d < n; ++d) to[h * stride + d] = static_cast<T>(narrow(sums.shares[h * n + d]));
    return true;
  }
};

template <class T>
int infer_trees(const Sentences<T>& all, int threads) {
  std::vector<int64_t> rows(all.batch), starts;
  std::iota(rows.begin(), rows.end(), int64_t(0));
  auto length = [&](int64_t row) { return all.lengths ? all.lengths[row] : all.n; };
  if (all.lengths)
    std::stable_sort(rows.begin(), rows.end(), [&](int64_t a, int64_t b) { return length(a) < length(b); });
  for (int64_t i = 0; i < all.batch; ++i)
    if (i == 0 || length(rows[i]) != length(rows[starts.back()]) || i - starts.back() == kSide) starts.push_back(i);
  const int64_t groups = static_cast<int64_t>(starts.size());
  starts.push_back(all.batch);
  return parallel_rows(groups, 16 * all.n * all.n * all.n, threads, [&](int64_t first, int64_t last) {
    TreeMarginals model;
    for (int64_t g = first; g < last; ++g)
      model.answer(all, rows.data() + starts[g], starts[g + 1] - starts[g], length(rows[starts[g]]));
  });
}

}  // namespace
}  // namespace fenchel
