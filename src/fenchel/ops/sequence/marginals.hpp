// Forward-backward: log-partition, marginals and their derivative in a direction, of one sequence of tags.
//
// The forward pass keeps, for each pair of neighbours, the probability of the previous tag a given the next
// tag b and the scores so far, P[a][b] = exp(α[a] + T[a][b] − log Σ_a exp(α[a] + T[a][b])). The backward pass
// multiplies, μ'[a] = Σ_b P[a][b] μ[b]: it has no exponentials, and it never subtracts. Where sums of scores
// are large, the forward pass is done again with BigExp; the probabilities that it keeps are doubles.
#pragma once

#include <vector>

#include "inference.hpp"
#include "math.hpp"
#include "map.hpp"
#include "big_exp.hpp"

namespace fenchel {

// log Σ exp of n padded entries; −inf if all are. The exponentials, divided by their sum, go to p.
inline double softmax(const double* x, int64_t n, double* p) {
  const double top = largest(x, n);
  if (top == kNone) {
    for (int64_t i = 0; i < n; ++i) p[i] = 0;
    return kNone;
  }
  Vec<double> total = {};
  for (int64_t i = 0; i < n; i += kLanes<double>) {
    Vec<double> e = exp<double>(load<double>(x + i) - top);
    store<double>(p + i, e);
    total += e;
  }
  const double mass = sum<double>(total);
  for (int64_t i = 0; i < n; i += kLanes<double>) store<double>(p + i, load<double>(p + i) / mass);
  return top + std::log(mass);
}

class SequenceMarginals {
 public:
  SequenceMarginals(int64_t length, int64_t tags, int64_t option)
      : full_n_(length), m_(tags), width_(padded<double>(tags)), shared_(SequenceOptions(option).shared),
        ends_(SequenceOptions(option).bounded ? 2 * tags : 0) {
    const int64_t n = length, matrix = tags * width_;
    for (Workspace* w : {&score_, &alpha_, &slope_, &mean_}) w->resize(n * width_);
    for (Workspace* w : {&mu_, &mu_slope_, &next_mu_, &next_slope_, &start_, &end_}) w->resize(width_);
    start_.fill(width_, 0), end_.fill(width_, 0);
    given_.resize((n > 1 ? n - 1 : 1) * matrix);
    transition_.resize(matrix);
    transition_slope_.resize(matrix);
    pair_.resize(matrix);
    for (int64_t k = 0; k < kLanes<double>; ++k) lane_[k] = static_cast<double>(k);
  }

  int64_t parts() const { return full_n_ * m_; }
  int64_t extras() const { return ends_ + (shared_ ? 1 : full_n_ - 1) * m_ * m_; }

  template <class T>
  double forward(const T* scores, const T* extra_scores, const int64_t* lengths) {
    const int64_t n = n_ = lengths ? *lengths : full_n_;
    const T* transitions = extra_scores + ends_;
    largest_ = splat<double>(kNone);
    bool solvable = widen(scores, n, kNone, score_.data());
    if (ends_) solvable &= widen(extra_scores, 1, 0, start_.data()) & widen(extra_scores + m_, 1, 0, end_.data());
    for (int64_t i = 0; i + 1 < n; ++i) {
      if (i == 0 || !shared_) solvable &= widen(transitions + i * m_ * m_, m_, kNone, transition_.data());
      if (i == 0) add(score_.data(), start_.data(), alpha_.data());
      forward_step(alpha_.data() + i * width_, given_.data() + i * m_ * width_, alpha_.data() + (i + 1) * width_,
           score_.data() + (i + 1) * width_);
    }
    if (n == 1) add(score_.data(), start_.data(), alpha_.data());
    double* last = alpha_.data() + (n - 1) * width_;
    add(last, end_.data(), last);
    const double value = softmax(last, width_, mu_.data());
    if (!solvable) return std::numeric_limits<double>::quiet_NaN();
    return needs_exact_sums(largest(reinterpret_cast<const double*>(&largest_), kLanes<double>), value)
               ? forward_big_exp(transitions)
               : value;
  }

  template <class T>
  void marginals(T* tags, T* extra_scores) {
    T* transitions = extra_scores ? extra_scores + ends_ : nullptr;
    clear_pairs(shared_ ? m_ * width_ : 0);
    for (int64_t i = n_ - 1;; --i) {
      narrow(mu_.data(), tags + i * m_);
      if (extra_scores) narrow_ends(mu_.data(), i, extra_scores);
      if (i == 0) break;
      const double* given = given_.data() + (i - 1) * m_ * width_;
      for (int64_t a = 0; a < m_; ++a, given += width_) {
        Vec<double> total = {};
        double* pair = pair_.data() + a * width_;
        for (int64_t b = 0; b < width_; b += kLanes<double>) {
          Vec<double> joint = load<double>(given + b) * load<double>(mu_.data() + b);
          total += joint;
          if (transitions) store<double>(pair + b, shared_ ? load<double>(pair + b) + joint : joint);
        }
        next_mu_[a] = sum<double>(total);
      }
      if (transitions && !shared_) narrow_all(transitions + (i - 1) * m_ * m_);
      for (int64_t a = 0; a < m_; ++a) mu_[a] = next_mu_[a];
    }
    if (transitions && shared_) narrow_all(transitions);
  }

  template <class T>
  void product(const T* of_tags, const T* of_extra, T* tags, T* extra_scores) {
    const T* of_transitions = of_extra ? of_extra + ends_ : nullptr;
    T* transitions = extra_scores ? extra_scores + ends_ : nullptr;
    clear_pairs(m_ * width_);
    if (!of_transitions)
      for (int64_t k = 0; k < m_ * width_; ++k) transition_slope_[k] = 0;
    widen(of_tags, n_, 0, slope_.data());
    for (int64_t b = 0; of_extra && b < ends_ / 2; ++b) {
      slope_[b] += static_cast<double>(of_extra[b]);
      slope_[(n_ - 1) * width_ + b] += static_cast<double>(of_extra[m_ + b]);
    }
    slopes(of_transitions);
    const int64_t end = (n_ - 1) * width_;
    double value_slope = 0;  // of the log-partition
    for (int64_t b = 0; b < m_; ++b) value_slope += mu_[b] * slope_[end + b];
    for (int64_t b = 0; b < width_; ++b) mu_slope_[b] = b < m_ ? mu_[b] * (slope_[end + b] - value_slope) : 0;
    for (int64_t i = n_ - 1;; --i) {
      narrow(mu_slope_.data(), tags + i * m_);
      if (extra_scores) narrow_ends(mu_slope_.data(), i, extra_scores);
      if (i == 0) break;
      if (of_transitions && !shared_) widen(of_transitions + (i - 1) * m_ * m_, m_, 0, transition_slope_.data());
      backward_step(i, transitions != nullptr);
      if (transitions && !shared_) narrow_all(transitions + (i - 1) * m_ * m_);
    }
    if (transitions && shared_) narrow_all(transitions);
  }

 private:
  int64_t full_n_, m_, width_, n_ = 0;
  bool shared_;
  int64_t ends_;  // how many scores of first and last tags there are
  Vec<double> lane_, largest_;
  Workspace score_, alpha_, given_, transition_, mu_, pair_;  // pair: marginals of transitions
  Workspace slope_, mean_, transition_slope_, mu_slope_;      // the direction's share in α, and in T
  Workspace next_mu_, next_slope_, start_, end_;

  // The same in numbers of any size, from scores that have been read.
  template <class T>
  double forward_big_exp(const T* transitions) {
    std::vector<BigExp> alpha(m_), next(m_), ways(m_);
    for (int64_t b = 0; b < m_; ++b) alpha[b] = BigExp::exp(score_[b]) * BigExp::exp(start_[b]);
    for (int64_t i = 0; i + 1 < n_; ++i) {
      if (!shared_) widen(transitions + i * m_ * m_, m_, kNone, transition_.data());
      for (int64_t b = 0; b < m_; ++b) {
        BigExp total;
        double* given = given_.data() + i * m_ * width_ + b;
        for (int64_t a = 0; a < m_; ++a) {
          ways[a] = alpha[a] * BigExp::exp(transition_[a * width_ + b]);
          total = total + ways[a];
        }
        for (int64_t a = 0; a < m_; ++a) given[a * width_] = ratio(ways[a], total);
        next[b] = total * BigExp::exp(score_[(i + 1) * width_ + b]);
      }
      alpha.swap(next);
    }
    BigExp total;
    for (int64_t b = 0; b < m_; ++b) alpha[b] = alpha[b] * BigExp::exp(end_[b]), total = total + alpha[b];
    for (int64_t b = 0; b < m_; ++b) mu_[b] = ratio(alpha[b], total);
    return total.significand > 0 ? total.log() : kNone;
  }

  // Rows of m entries as padded rows of doubles; whether none is NaN or +inf. Whole vectors are read, of
  // which the end may belong to the next row.
  template <class T>
  bool widen(const T* from, int64_t rows, double fill, double* to) {
    const T* end = from + rows * m_;
    VecInt<double> bad = {};
    for (int64_t i = 0; i < rows; ++i, from += m_, to += width_)
      for (int64_t b = 0; b < width_; b += kLanes<double>) {
        Vec<double> v = splat<double>(fill);
        if (end - from >= b + kLanes<double>)
          v = wide_load(from + b);
        else
          for (int64_t k = 0; k < m_ - b; ++k) v[k] = static_cast<double>(from[b + k]);
        if (b + kLanes<double> > m_) v = lane_ < static_cast<double>(m_ - b) ? v : splat<double>(fill);
        bad |= ~(v < kInf<double>);
        largest_ = max<double>(largest_, v);
        store<double>(to + b, v);
      }
    return reduce_or(bad) == 0;
  }
  template <class T>
  void narrow(const double* from, T* to) const {
    for (int64_t b = 0; b < m_; ++b) to[b] = static_cast<T>(from[b]);
  }
  // Whole vectors are written, of which the end may belong to the next row, which is written after.
  template <class T>
  void narrow_all(T* to) const {
    const T* end = to + m_ * m_;
    for (int64_t a = 0; a < m_; ++a, to += m_) {
      const double* from = pair_.data() + a * width_;
      for (int64_t b = 0; b < width_; b += kLanes<double>) {
        if (end - to >= b + kLanes<double>)
          narrow_store(to + b, load<double>(from + b));
        else
          for (int64_t k = b; k < m_ && k < b + kLanes<double>; ++k) to[k] = static_cast<T>(from[k]);
      }
    }
  }
  void add(const double* a, const double* b, double* to) const {
    for (int64_t k = 0; k < width_; ++k) to[k] = a[k] + b[k];
  }
  // What the scores of the first and of the last tag get, from what the tags at position i get.
  template <class T>
  void narrow_ends(const double* from, int64_t i, T* to) const {
    for (int64_t b = 0; i == 0 && b < ends_ / 2; ++b) to[b] = static_cast<T>(from[b]);
    for (int64_t b = 0; i == n_ - 1 && b < ends_ / 2; ++b) to[m_ + b] = static_cast<T>(from[b]);
  }
  void clear_pairs(int64_t n) {
    for (int64_t k = 0; k < n; ++k) pair_[k] = 0;
  }

  // next[b] = unary[b] + log Σ_a exp(last[a] + T[a][b]), and the terms over their sum.
  void forward_step(const double* last, double* given, double* next, const double* unary) const {
    for (int64_t b = 0; b < width_; b += kLanes<double>) {
      const double* transition = transition_.data() + b;
      Vec<double> top = splat<double>(kNone), total = {};
      for (int64_t a = 0; a < m_; ++a) top = max<double>(top, last[a] + load<double>(transition + a * width_));
      Vec<double> base = top > kNone ? top : Vec<double>{};
      for (int64_t a = 0; a < m_; ++a) {
        Vec<double> e = exp<double>((last[a] + load<double>(transition + a * width_)) - base);
        store<double>(given + a * width_ + b, e);
        total += e;
      }
      Vec<double> mass = total > 0 ? total : splat<double>(1), share = 1.0 / mass;
      for (int64_t a = 0; a < m_; ++a) {
        double* p = given + a * width_ + b;
        store<double>(p, load<double>(p) * share);
      }
      store<double>(next + b, (top + log<double>(mass, Vec<double>{})) + load<double>(unary + b));
    }
  }

  // slope[i][b] = dα[i][b], of which mean[i][b] comes from the positions before.
  template <class T>
  void slopes(const T* of_transitions) {
    for (int64_t i = 0; i + 1 < n_; ++i) {
      if (of_transitions && (i == 0 || !shared_)) widen(of_transitions + i * m_ * m_, m_, 0, transition_slope_.data());
      const double *given = given_.data() + i * m_ * width_, *last = slope_.data() + i * width_;
      double *mean = mean_.data() + (i + 1) * width_, *next = slope_.data() + (i + 1) * width_;
      for (int64_t b = 0; b < width_; b += kLanes<double>) {
        Vec<double> total = {};
        for (int64_t a = 0; a < m_; ++a)
          total += load<double>(given + a * width_ + b) *
                   (last[a] + load<double>(transition_slope_.data() + a * width_ + b));
        store<double>(mean + b, total);
        store<double>(next + b, load<double>(next + b) + total);
      }
    }
  }

  // From the marginals of position i and their slopes to those of position i − 1.
  void backward_step(int64_t i, bool keeps_pairs) {
    const double *given = given_.data() + (i - 1) * m_ * width_, *slope = slope_.data() + (i - 1) * width_;
    const double* mean = mean_.data() + i * width_;
    for (int64_t a = 0; a < m_; ++a, given += width_) {
      Vec<double> total = {}, total_slope = {};
      double* pair = pair_.data() + a * width_;
      const double* transition_slope = transition_slope_.data() + a * width_;
      for (int64_t b = 0; b < width_; b += kLanes<double>) {
        Vec<double> p = load<double>(given + b), mu = load<double>(mu_.data() + b);
        Vec<double> change = (slope[a] + load<double>(transition_slope + b)) - load<double>(mean + b);
        Vec<double> joint = p * (mu * change + load<double>(mu_slope_.data() + b));
        total += p * mu;
        total_slope += joint;
        if (keeps_pairs) store<double>(pair + b, shared_ ? load<double>(pair + b) + joint : joint);
      }
      next_mu_[a] = sum<double>(total);
      next_slope_[a] = sum<double>(total_slope);
    }
    for (int64_t a = 0; a < m_; ++a) mu_[a] = next_mu_[a], mu_slope_[a] = next_slope_[a];
  }
};

}  // namespace fenchel
