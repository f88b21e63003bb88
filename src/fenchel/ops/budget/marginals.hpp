// Dynamic programming over counts: log-partition, marginals and their derivative of choices of at most, or
// exactly, k of d entries.
//
// α[i][j] is the log-sum over choices of j among the first i entries. Given j, the i-th is chosen with
// probability taken[i][j] = exp(α[i−1][j−1] + s_i − α[i][j]) and left with left[i][j] = exp(α[i−1][j] −
// α[i][j]). The marginals follow by multiplication, from the last entry to the first. Where sums of scores are
// large, α is found again with BigExp.
#pragma once

#include <vector>

#include "inference.hpp"
#include "math.hpp"
#include "big_exp.hpp"

namespace fenchel {

class BudgetMarginals {
 public:
  BudgetMarginals(int64_t d, int64_t, int64_t option)
      : d_(d), k_(option / 2), exact_(option % 2 != 0),
        stride_(padded<double>(k_ + 1) + 2 * kLanes<double>) {
    for (Workspace* w : {&alpha_, &slope_, &taken_, &left_}) {
      w->resize((d + 1) * stride_);
      w->fill((d + 1) * stride_, 0);  // what lies behind a row is multiplied by zero
    }
    for (Workspace* w : {&mu_, &mu_slope_, &next_, &next_slope_}) w->resize(stride_);
    score_.resize(padded<double>(d));
  }

  int64_t parts() const { return d_; }
  int64_t extras() const { return 0; }

  template <class T>
  double forward(const T* scores, const T*, const int64_t* lengths) {
    n_ = lengths ? *lengths : d_;
    bool solvable = true;
    double highest = kNone;
    for (int64_t i = 0; i < n_; ++i) {
      score_[i] = static_cast<double>(scores[i]);
      solvable &= score_[i] < kInf<double>;
      highest = std::fmax(highest, score_[i]);
    }
    for (int64_t j = 0; j < stride_; ++j) alpha_[j] = kNone;
    row(alpha_, 0)[0] = 0;
    for (int64_t i = 1; i <= n_; ++i) forward_step(i);
    double* last = row(mu_, 0);
    mu_.fill(stride_, kNone);
    for (int64_t j = exact_ ? k_ : 0; j <= k_; ++j) last[j] = row(alpha_, n_)[j];
    const double top = largest(mu_.data(), stride_);
    double mass = 0;
    for (int64_t j = 0; j <= k_; ++j) mass += std::exp(last[j] - top);
    const double value = top == kNone ? kNone : top + std::log(mass);
    for (int64_t j = 0; j < stride_; ++j) mu_[j] = mu_[j] == kNone ? 0 : std::exp(mu_[j] - value);
    if (!solvable) return std::numeric_limits<double>::quiet_NaN();
    return needs_exact_sums(highest, value) ? forward_big_exp() : value;
  }

  template <class T>
  void marginals(T* u, T*) {
    for (int64_t i = n_; i > 0; --i) u[i - 1] = static_cast<T>(backward_step<false>(i, 0).taken);
  }

  template <class T>
  void product(const T* of_u, const T*, T* u, T*) {
    slope_.fill(stride_, 0);
    for (int64_t i = 1; i <= n_; ++i) {
      const double change = static_cast<double>(of_u[i - 1]);
      const double *before = row(slope_, i - 1), *taken = row(taken_, i), *left = row(left_, i);
      double* to = row(slope_, i);
      to[-1] = 0;
      for (int64_t j = 0; j < width(); j += kLanes<double>)
        store<double>(to + j, load<double>(left + j) * load<double>(before + j) +
                                  load<double>(taken + j) * (load<double>(before + j - 1) + change));
    }
    double value_slope = 0;  // of the log-partition
    for (int64_t j = 0; j <= k_; ++j) value_slope += row(mu_, 0)[j] * row(slope_, n_)[j];
    mu_slope_.fill(stride_, 0);
    for (int64_t j = 0; j <= k_; ++j) row(mu_slope_, 0)[j] = row(mu_, 0)[j] * (row(slope_, n_)[j] - value_slope);
    for (int64_t i = n_; i > 0; --i)
      u[i - 1] = static_cast<T>(backward_step<true>(i, static_cast<double>(of_u[i - 1])).slope);
  }

 private:
  struct Share {
    double taken, slope;
  };
  int64_t d_, k_, n_ = 0;
  bool exact_;
  int64_t stride_;
  Workspace score_, alpha_, taken_, left_, slope_, mu_, mu_slope_, next_, next_slope_;

  int64_t width() const { return stride_ - 2 * kLanes<double>; }
  // Entry −1 of a row, and those behind it, may be read.
  double* row(Workspace& table, int64_t i) { return table.data() + i * stride_ + kLanes<double>; }

  double forward_big_exp() {
    std::vector<BigExp> alpha(k_ + 1);
    alpha[0] = BigExp(1.0);
    for (int64_t i = 1; i <= n_; ++i) {
      const BigExp weight = BigExp::exp(score_[i - 1]);
      double *taken = row(taken_, i), *left = row(left_, i);
      for (int64_t j = k_; j >= 0; --j) {
        const BigExp with = j > 0 ? alpha[j - 1] * weight : BigExp(), all = alpha[j] + with;
        taken[j] = ratio(with, all);
        left[j] = ratio(alpha[j], all);
        alpha[j] = all;
      }
    }
    BigExp total;
    for (int64_t j = exact_ ? k_ : 0; j <= k_; ++j) total = total + alpha[j];
    mu_.fill(stride_, 0);
    for (int64_t j = exact_ ? k_ : 0; j <= k_; ++j) row(mu_, 0)[j] = ratio(alpha[j], total);
    return total.significand > 0 ? total.log() : kNone;
  }

  void forward_step(int64_t i) {
    const double* before = row(alpha_, i - 1);
    double *to = row(alpha_, i), *taken = row(taken_, i), *left = row(left_, i);
    to[-1] = kNone;
    for (int64_t j = 0; j < width(); j += kLanes<double>) {
      Vec<double> without = load<double>(before + j), with = load<double>(before + j - 1) + score_[i - 1];
      Vec<double> top = max<double>(without, with), base = top > kNone ? top : Vec<double>{};
      Vec<double> a = exp<double>(with - base), b = exp<double>(without - base), mass = a + b;
      mass = mass > 0 ? mass : splat<double>(1);
      store<double>(taken + j, a / mass);
      store<double>(left + j, b / mass);
      store<double>(to + j, top + log<double>(mass, Vec<double>{}));
    }
  }

  // From the distribution of the count after i entries to that after i − 1: how likely the i-th is chosen.
  template <bool kSlopes>
  Share backward_step(int64_t i, double change) {
    const double *taken = row(taken_, i), *left = row(left_, i), *mu = row(mu_, 0), *mu_slope = row(mu_slope_, 0);
    const double* before = row(slope_, i - 1);
    double *next = row(next_, 0), *next_slope = row(next_slope_, 0);
    Vec<double> total = {}, slope = {};
    // How the flow from count j to j − 1, or to j, changes.
    auto flow = [&](int64_t j, Vec<double> share, Vec<double> sign) {
      Vec<double> pq = load<double>(taken + j) * load<double>(left + j);
      Vec<double> shift = pq * ((load<double>(before + j - 1) + change) - load<double>(before + j));
      return load<double>(mu_slope + j) * share + load<double>(mu + j) * shift * sign;
    };
    const Vec<double> plus = splat<double>(1);
    for (int64_t j = 0; j < width(); j += kLanes<double>) {
      Vec<double> p = load<double>(taken + j);
      total += load<double>(mu + j) * p;
      store<double>(next + j, load<double>(mu + j) * load<double>(left + j) +
                                  load<double>(mu + j + 1) * load<double>(taken + j + 1));
      if constexpr (kSlopes) {
        slope += flow(j, p, plus);
        store<double>(next_slope + j, flow(j, load<double>(left + j), -plus) +
                                         flow(j + 1, load<double>(taken + j + 1), plus));
      }
    }
    for (int64_t j = 0; j < width(); j += kLanes<double>) {
      store<double>(row(mu_, 0) + j, load<double>(next + j));
      if constexpr (kSlopes) store<double>(row(mu_slope_, 0) + j, load<double>(next_slope + j));
    }
    return {sum<double>(total), sum<double>(slope)};
  }
};

}  // namespace fenchel
