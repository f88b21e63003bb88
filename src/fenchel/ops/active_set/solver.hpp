// SparseMAP of one instance by the active set method: the quadratic program
//   max over the weights y of ⟨scores, u⟩ + ⟨additional, v⟩ − ½‖u‖²,  u = My, v = Ny,
// whose columns, the structures, come from a MAP oracle one by one.
#pragma once

#include <cmath>

#include "support.hpp"

namespace fenchel {

struct Limits {
  double gap;
  int64_t iterations;
};

struct Outcome {
  double gap = 0;
  int64_t iterations = 0;
  bool converged = false;
};

// An oracle with the scores of one instance. If `regularize`, v counts in the norm as u does.
template <class Oracle>
class Instance {
 public:
  // Returns how many additional parts a structure may have.
  int64_t set(Oracle* oracle, const double* scores, const double* additional, bool regularize) {
    oracle_ = oracle, scores_ = scores, additional_ = additional, regularize_ = regularize;
    positions_ = oracle->positions();
    extras_ = oracle->extras() ? positions_ + 1 : 0;
    parts_ = oracle->parts();
    count_ = parts_ + (regularize ? oracle->extras() : 0);
    marginals_.resize(padded<double>(count_)), residual_.resize(count_);
    code_.resize(positions_), base_.resize(positions_ + extras_);
    support.start(positions_ + (regularize ? extras_ : 0), positions_ + (regularize ? 0 : extras_));
    magnitude_ = 0, told_ = false;
    return extras_;
  }

  // Makes the best structure for scores less marginals the next one of the support; returns its
  // value for them.
  double find_next() {
    const double* additional = regularize_ ? residual_.data() + parts_ : told_ ? nullptr : additional_;
    told_ = true;
    const double value = oracle_->argmax(residual_.data(), additional, code_.data());
    if (value > -kInf<double>) fill_next(code_.data());
    return value;
  }

  void fill_next(const int32_t* code) {
    int32_t *parts = support.next(), *others = support.next_others();
    std::copy_n(code, positions_, others);
    for (int64_t i = 0; i < positions_; ++i) parts[i] = oracle_->part(static_cast<int>(i), code[i]);
    if (!extras_) return;
    int32_t* extras = (regularize_ ? parts : others) + positions_;
    const int32_t shift = regularize_ ? static_cast<int32_t>(parts_) : 0;
    std::fill(extras, extras + extras_, -1);
    oracle_->for_each_extra(code, [&](int32_t index) { *extras++ = index + shift; });
  }

  void copy_extras(int64_t k, int32_t* to) const {
    const int32_t* extras = (regularize_ ? support.row(k) : support.others(k)) + positions_;
    const int32_t shift = regularize_ ? static_cast<int32_t>(parts_) : 0;
    for (int64_t i = 0; i < extras_; ++i) to[i] = extras[i] < 0 ? -1 : extras[i] - shift;
  }

  // The score of the next structure less that of the first, added up by position: what they share
  // cancels before it is rounded.
  double score_next(bool first) {
    const int32_t *parts = support.row(support.size()), *others = support.others(support.size());
    const int32_t* extras = (regularize_ ? parts : others) + positions_;
    const double* additional = extras_ && regularize_ ? additional_ - parts_ : additional_;
    if (first) {
      for (int64_t i = 0; i < positions_; ++i) base_[i] = at(scores_, parts[i]);
      for (int64_t i = 0; i < extras_; ++i) base_[positions_ + i] = at(additional, extras[i]);
      for (double value : base_) magnitude_ += std::abs(value);
    }
    return difference(scores_, parts, base_.data(), positions_) +
           difference(additional, extras, base_.data() + positions_, extras_);
  }

  // The sum of the marginals of structure k's parts; the next structure is number `size()`.
  double overlap(int64_t k) const {
    const int32_t* parts = support.row(k);
    const int64_t count = positions_ + (regularize_ ? extras_ : 0);
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < count; ++i) sum += at(marginals_.data(), parts[i]);
    return sum;
  }

  void update_marginals() {
    std::fill(marginals_.begin(), marginals_.end(), 0.0);
    support.add_marginals(marginals_.data());
    for (int64_t i = 0; i < parts_; ++i) residual_[i] = scores_[i] - marginals_[i];
    for (int64_t i = parts_; i < count_; ++i)
      residual_[i] = additional_[i - parts_] - marginals_[i];
  }

  // ⟨scores − marginals, marginals⟩, on the scale of `score_next`.
  double level() const { return support.mean_score() - squared_norm(); }

  double squared_norm() const {
    return dot(marginals_.data(), marginals_.data(), static_cast<int64_t>(marginals_.size()));
  }

  // What of a gap may be rounding: marginals add up as many weights as there are structures.
  double rounding() const {
    const double size = static_cast<double>(support.size());
    return 16 * std::numeric_limits<double>::epsilon() * (8 + size) * (positions_ + magnitude_);
  }

  const std::vector<double>& marginals() const { return marginals_; }

  Support support;

 private:
  static double at(const double* values, int32_t index) { return index < 0 ? 0 : values[index]; }

  static double difference(const double* values, const int32_t* index, const double* from, int64_t n) {
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; ++i) sum += at(values, index[i]) - from[i];
    return sum;
  }

  Oracle* oracle_ = nullptr;
  const double *scores_ = nullptr, *additional_ = nullptr;
  bool regularize_ = false, told_ = false;
  int64_t positions_ = 0, extras_ = 0, parts_ = 0, count_ = 0;
  double magnitude_ = 0;
  std::vector<double> marginals_, residual_, base_;
  std::vector<int32_t> code_;
};

// Each round adds the structure that violates optimality most and gives all their best weights. The
// objective grows in each, so none repeats and the rounds end. Near the end it grows by the square
// of a small gap, which rounding may hide for a while; if it does so for long, or the oracle has
// nothing new, one fresh factorization is tried.
template <class Oracle>
Outcome active_set(Instance<Oracle>& instance, Limits limits) {
  constexpr int kLong = 100;
  Support& support = instance.support;
  Outcome outcome;
  double best = -kInf<double>;
  int hidden = 0;
  bool fresh = false;
  for (;;) {
    const double tau = support.optimize();
    const double value = (support.mean_score() + tau) / 2;
    instance.update_marginals();
    instance.find_next();
    ++outcome.iterations;
    const double score = instance.score_next(false), overlap = instance.overlap(support.size());
    const double enough = std::max(limits.gap, instance.rounding());
    const bool known = support.meet_next() >= 0;
    const bool last = outcome.iterations == limits.iterations;
    hidden = value > best ? 0 : hidden + 1;
    best = std::max(best, value);
    if (score - overlap - tau > enough && !known && hidden < kLong && !last) {
      support.add_next(score, 0);
      fresh = false;
      continue;
    }
    outcome.gap = std::max(score - overlap - instance.level(), 0.0);
    outcome.converged = outcome.gap <= enough;
    if (outcome.converged || fresh || last) return outcome;
    support.refactor();
    fresh = true;
  }
}

}  // namespace fenchel
