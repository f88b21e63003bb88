// One instance of SparseMAP: its scores, the oracles for them, and the structures found so far.
#pragma once

#include <cmath>
#include <memory>
#include <type_traits>
#include <utility>

#include "decomposition.hpp"
#include "interrupts.hpp"
#include "structure.hpp"
#include "support.hpp"

namespace fenchel {

template <class Oracle, class = void>
struct CanDecompose : std::false_type {};
template <class Oracle>
struct CanDecompose<Oracle, std::void_t<decltype(std::declval<Oracle&>().decompose(
                                nullptr, nullptr, 0.0, std::declval<Decomposition&>()))>> : std::true_type {};

// The i-th of fixed numbers without a pattern, in [0, 1).
inline double scatter(int64_t i) {
  uint64_t x = (static_cast<uint64_t>(i) + 1) * 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return static_cast<double>((x ^ (x >> 31)) >> 11) * 0x1p-53;
}

// The scores of one instance, and the oracles for them, built by an oracle_maker. If `regularize`, v counts in
// the norm as u does.
//
// Where sums of scores are large, the oracle's scores, and those of structures less that of the best, are exact.
template <class Make>
class Instance {
 public:
  using Oracle = decltype(std::declval<Make>()(double()));
  using ExactOracle = decltype(std::declval<Make>()(Exact()));

  Instance(const Make& make, bool regularize, Interrupts* interrupts = nullptr)
      : make_(make), oracle_(make(double())), interrupts_(interrupts), regularize_(regularize) {}

  Oracle& oracle() { return oracle_; }

  // Returns how many extra parts a structure may have.
  int64_t set(const double* scores, const double* extra_scores, const int64_t* lengths) {
    scores_ = scores, extra_scores_ = extra_scores, lengths_ = lengths;
    positions_ = oracle_.positions();
    extras_ = oracle_.extras() ? positions_ + 1 : 0;
    parts_ = oracle_.parts();
    count_ = parts_ + (regularize_ ? oracle_.extras() : 0);
    marginals_.resize(padded<double>(count_));
    for (auto* values : {&residual_, &shifted_, &shift_}) values->resize(count_);
    while (static_cast<int64_t>(preference_.size()) < count_)
      preference_.push_back(scatter(static_cast<int64_t>(preference_.size())));
    code_.resize(positions_), base_.resize(positions_ + extras_);
    support.start(positions_ + (regularize_ ? extras_ : 0), positions_ + (regularize_ ? 0 : extras_));
    magnitude_ = 0, tie_ = kTie, oracle_has_extra_ = is_exact_ = false;
    decomposition.clear();
    return extras_;
  }

  // Makes the best structure for scores less marginals the next one of the support; returns its
  // value for them.
  double find_next() { return find_next(residual_.data(), nullptr); }

  // The same, but of structures that are as good but for rounding always the same one: parts get small scores of
  // their own. The structure may be worse than the best by the sum of these.
  double find_preferred() {
    return find_shifted([&](int64_t i) { return tie_ * preference_[i]; });
  }
  // The same for scores that are `shift(i)` larger.
  template <class F>
  double find_shifted(F shift) {
    for (int64_t i = 0; i < count_; ++i) shift_[i] = shift(i), shifted_[i] = residual_[i] + shift_[i];
    return find_next(shifted_.data(), shift_.data());
  }

  // The same before there are marginals; scores are compared with that of this structure.
  double find_best() {
    double value = find_preferred();
    if (value == -kInf<double>) return value;
    const double top = extra_scores_ ? largest_unpadded(extra_scores_, oracle_.extras()) : kNone;
    is_exact_ = needs_exact_sums(std::fmax(top, largest_unpadded(scores_, parts_)), value);
    if (is_exact_) {
      if (!exact_) exact_ = std::make_unique<ExactOracle>(make_(Exact()));
      exact_->resize(lengths_);
      oracle_has_extra_ = false;
      value = find_preferred();
    }
    set_base(support.size());
    if (!is_exact_)
      for (double score : base_) magnitude_ += std::abs(score);
    tie_ = kTie + rounding_of_scores();
    return value;
  }

  // Keeps the structures for other scores, which are compared with that of the first of them. False if there is
  // none, or sums may be so large that a new start must decide how exact they are.
  bool rescore(const double* scores, const double* extra_scores) {
    scores_ = scores, extra_scores_ = extra_scores;
    oracle_has_extra_ = false;
    decomposition.clear();
    if (is_exact_ || !support.size()) return false;
    set_base(0);
    double value = magnitude_ = 0;
    for (double score : base_) value += score, magnitude_ += std::abs(score);
    tie_ = kTie + rounding_of_scores();
    const double top = extra_scores_ ? largest_unpadded(extra_scores_, oracle_.extras()) : kNone;
    if (needs_exact_sums(std::fmax(top, largest_unpadded(scores_, parts_)), value)) return false;
    support.rescore([&](int64_t k) { return add_differences<double>(k); });
    return true;
  }
  void fill_best() { fill_next(code_.data()); }

  void fill_next(const int32_t* code) {
    int32_t *parts = support.next(), *others = support.next_others();
    std::copy_n(code, positions_, others);
    for (int64_t i = 0; i < positions_; ++i) parts[i] = oracle_.part(static_cast<int>(i), code[i]);
    if (!extras_) return;
    int32_t* extras = (regularize_ ? parts : others) + positions_;
    const int32_t shift = regularize_ ? static_cast<int32_t>(parts_) : 0;
    std::fill(extras, extras + extras_, -1);
    oracle_.for_each_extra(code, [&](int32_t index) { *extras++ = index + shift; });
  }

  void copy_extras(int64_t k, int32_t* to) const {
    const int32_t* extras = extras_of(k);
    const int32_t shift = regularize_ ? static_cast<int32_t>(parts_) : 0;
    for (int64_t i = 0; i < extras_; ++i) to[i] = extras[i] < 0 ? -1 : extras[i] - shift;
  }

  // The score of the next structure less that of the best, added up by position: what they share
  // cancels before it is rounded.
  double score_next() const {
    return is_exact_ ? add_differences<Exact>(support.size()) : add_differences<double>(support.size());
  }

  // By how much at most marginals change the order of two scores: no marginal is above one.
  double reach() const { return static_cast<double>(positions_ + (regularize_ ? extras_ : 0)); }

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
    update_residual();
  }
  void update_residual() {
    for (int64_t i = 0; i < parts_; ++i) residual_[i] = scores_[i] - marginals_[i];
    for (int64_t i = parts_; i < count_; ++i)
      residual_[i] = extra_scores_[i - parts_] - marginals_[i];
  }

  // After how many rounds solving at once is likely to be faster; never, if it is impossible.
  int64_t patience() const {
    if constexpr (CanDecompose<Oracle>::value)
      if (!is_exact_ && !regularize_) return oracle_.patience();
    return kNever;
  }
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

  // Solves at once, instead of the support; `level` gets ⟨scores − marginals, marginals⟩.
  bool decompose(double tol, double* level) {
    if constexpr (CanDecompose<Oracle>::value) {
      decomposition.clear();
      if (!oracle_.decompose(scores_, extra_scores_, tol, decomposition) || decomposition.empty()) {
        decomposition.clear();
        return false;
      }
      decomposition.normalize();
      std::fill(marginals_.begin(), marginals_.end(), 0.0);
      double score = 0;
      for (int64_t k = 0; k < decomposition.size(); ++k) {
        const double weight = decomposition.weights[k];
        fill_next(decomposition.codes.data() + k * positions_);
        const int32_t* parts = support.row(support.size());
        for (int64_t i = 0; i < positions_; ++i)
          if (parts[i] >= 0) marginals_[parts[i]] += weight;
        score += weight * score_next();
      }
      update_residual();
      *level = score - squared_norm();
      return true;
    }
    return false;
  }

  // Makes the structures of the decomposition the support.
  void adopt_decomposition() {
    support.clear();
    for (int64_t k = 0; k < decomposition.size(); ++k) {
      fill_next(decomposition.codes.data() + k * positions_);
      if (support.compare_next() < 0) support.add_next(score_next(), decomposition.weights[k]);
    }
  }

  // ⟨scores − marginals, marginals⟩, on the scale of `score_next`.
  double level() const { return support.mean_score() - squared_norm(); }

  double squared_norm() const {
    return dot(marginals_.data(), marginals_.data(), static_cast<int64_t>(marginals_.size()));
  }

  // What of a gap may be rounding: marginals add up as many weights as there are structures.
  double rounding() const { return rounding(support.size()); }
  double rounding(int64_t structures) const {
    const double size = static_cast<double>(structures);
    return 16 * std::numeric_limits<double>::epsilon() * (8 + size) * (positions_ + magnitude_);
  }

  // What of a difference of scores may be.
  double rounding_of_scores() const { return 64 * std::numeric_limits<double>::epsilon() * magnitude_; }

  const std::vector<double>& marginals() const { return marginals_; }
  int64_t count() const { return count_; }

  Support support;
  Decomposition decomposition;  // empty unless it is the solution

 private:
  const int32_t* extras_of(int64_t k) const {
    return (regularize_ ? support.row(k) : support.others(k)) + positions_;
  }
  const double* extra_scores() const {
    return extras_ && regularize_ ? extra_scores_ - parts_ : extra_scores_;
  }

  static double at(const double* values, int32_t index) { return index < 0 ? 0 : values[index]; }

  void set_base(int64_t k) {
    const int32_t *parts = support.row(k), *extras = extras_of(k);
    for (int64_t i = 0; i < positions_; ++i) base_[i] = at(scores_, parts[i]);
    for (int64_t i = 0; i < extras_; ++i) base_[positions_ + i] = at(extra_scores(), extras[i]);
  }

  template <class Num>
  double add_differences(int64_t k) const {
    return rounded(difference<Num>(scores_, support.row(k), base_.data(), positions_) +
                   difference<Num>(extra_scores(), extras_of(k), base_.data() + positions_, extras_));
  }
  template <class Num>
  static Num difference(const double* values, const int32_t* index, const double* from, int64_t n) {
    Num sum = 0;
    if constexpr (std::is_same_v<Num, double>) {
#pragma omp simd reduction(+ : sum)
      for (int64_t i = 0; i < n; ++i) sum += at(values, index[i]) - from[i];
    } else {
      for (int64_t i = 0; i < n; ++i) sum += Num(at(values, index[i])) - Num(from[i]);
    }
    return sum;
  }

  // `scores` are those of parts, and of extra parts if these are regularized, less the marginals, plus `shift`.
  double find_next(const double* scores, const double* shift) {
    if (interrupts_) interrupts_->check();
    const bool again = oracle_has_extra_ && !regularize_;
    oracle_has_extra_ = true;
    double value;
    if (is_exact_) {
      value = exact_->argmax(less_marginals(shift), again ? nullptr : extra_less_marginals(shift), code_.data());
    } else {
      const double* extra_scores = regularize_ ? scores + parts_ : extra_scores_;
      value = oracle_.argmax(scores, again ? nullptr : extra_scores, code_.data());
    }
    if (value > -kInf<double>) fill_next(code_.data());
    return value;
  }

  const Exact* less_marginals(const double* shift) {
    exact_scores_.resize(parts_);
    for (int64_t i = 0; i < parts_; ++i)
      exact_scores_[i] = Exact(scores_[i]) - Exact(marginals_[i]) + Exact(shift ? shift[i] : 0);
    return exact_scores_.data();
  }
  const Exact* extra_less_marginals(const double* shift) {
    if (!extra_scores_) return nullptr;
    exact_extras_.assign(extra_scores_, extra_scores_ + oracle_.extras());
    for (int64_t i = parts_; i < count_; ++i) {
      Exact& score = exact_extras_[i - parts_];
      score = score - Exact(marginals_[i]) + Exact(shift ? shift[i] : 0);
    }
    return exact_extras_.data();
  }

  static constexpr double kTie = 1e-9;

  const Make& make_;
  Oracle oracle_;
  std::unique_ptr<ExactOracle> exact_;
  Interrupts* interrupts_;
  bool regularize_, oracle_has_extra_ = false, is_exact_ = false;
  const double *scores_ = nullptr, *extra_scores_ = nullptr;
  const int64_t* lengths_ = nullptr;
  int64_t positions_ = 0, extras_ = 0, parts_ = 0, count_ = 0;
  double magnitude_ = 0, tie_ = kTie;
  std::vector<double> marginals_, residual_, shifted_, shift_, preference_, base_;
  std::vector<Exact> exact_scores_, exact_extras_;
  std::vector<int32_t> code_;
};

}  // namespace fenchel
