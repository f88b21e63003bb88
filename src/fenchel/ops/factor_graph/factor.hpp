// A factor of a graph: SparseMAP of one structure, again and again for scores that change little.
#pragma once

#include "../sparsemap/batch.hpp"
#include "projections.hpp"

namespace fenchel {

class Factor {
 public:
  virtual ~Factor() = default;

  // The next scores are those of another instance.
  virtual void forget() {}

  // The marginals closest to the scores, which may be overwritten, and those of extra scores. Extra scores are null
  // if they were not given; then so are their marginals.
  virtual void project(double* scores, const double* extra_scores, double* marginals, double* extra) = 0;

  // Whether `multiply` knows the Jacobian of the last projection.
  virtual bool has_jacobian() const { return true; }

  // The Jacobian of marginals and extra marginals in their scores, which is symmetric, times (in, in_extra). Nulls are
  // zeros, or not wanted; of in_extra and out_extra one is null.
  virtual void multiply(const double* in, const double* in_extra, double* out, double* out_extra) = 0;
};

// A factor with an oracle keeps its structures and the factor of their Gram matrix for the next scores.
template <class Make>
class OracleFactor : public Factor {
 public:
  explicit OracleFactor(const Make& make) : make_(make), instance_(make_, false) {
    auto& oracle = instance_.oracle();
    oracle.resize(nullptr);
    scores_.resize(padded<double>(oracle.parts()));
    zeros_.assign(static_cast<size_t>(oracle.extras()), 0.0);
  }

  void forget() override { is_started_ = solve_at_once_first_ = false; }

  // Only the structures of an exact solution span its face.
  bool has_jacobian() const override { return !was_at_once_ && gap_ <= kExactGap; }

  void multiply(const double* in, const double* in_extra, double* out, double* out_extra) override {
    const auto& oracle = instance_.oracle();
    const Support& support = instance_.support;
    if (out) std::fill_n(out, oracle.parts(), 0.0);
    if (out_extra) std::fill_n(out_extra, oracle.extras(), 0.0);
    if (!is_started_) return;
    along_.assign(static_cast<size_t>(support.capacity()), 0.0);
    for (int64_t k = 0; k < support.size(); ++k) {
      if (in) for_each_part(k, [&](int32_t part) { along_[k] += in[part]; });
      if (in_extra) oracle.for_each_extra(support.others(k), [&](int32_t index) { along_[k] += in_extra[index]; });
    }
    support.factor().solve_along_plane(along_.data());
    for (int64_t k = 0; k < support.size(); ++k) {
      if (out) for_each_part(k, [&](int32_t part) { out[part] += along_[k]; });
      if (out_extra) oracle.for_each_extra(support.others(k), [&](int32_t index) { out_extra[index] += along_[k]; });
    }
  }

  void project(double* scores, const double* extra_scores, double* marginals, double* extra) override {
    auto& oracle = instance_.oracle();
    oracle.gather(scores, scores_.data());
    if (!extra_scores && oracle.extras()) extra_scores = zeros_.data();
    const bool warm = is_started_ && instance_.rescore(scores_.data(), extra_scores);
    Outcome outcome;
    if (warm) outcome = active_set(instance_, kLimits, instance_.patience());
    if (!warm || !outcome.converged) {
      oracle.resize(nullptr);
      instance_.set(scores_.data(), extra_scores, nullptr);
      if (!(is_started_ = start(instance_, nullptr, nullptr, 0, 0))) {
        std::fill_n(marginals, oracle.parts(), 0.0);
        if (extra) std::fill_n(extra, oracle.extras(), 0.0);
        gap_ = 0, was_at_once_ = false;
        return;
      }
      if (!(solve_at_once_first_ && solve_at_once(instance_, kLimits, kInf<double>, outcome)))
        outcome = active_set(instance_, kLimits, instance_.patience());
    }
    gap_ = outcome.gap;
    oracle.scatter(instance_.marginals().data(), marginals);
    if (extra) write_extra(extra);
    keep_structures();
  }

 private:
  static constexpr Limits kLimits{1e-11, 10000};
  static constexpr double kExactGap = 1e-12;

  template <class F>
  void for_each_part(int64_t k, F f) {
    const int32_t* parts = instance_.support.row(k);
    for (int64_t i = 0; i < instance_.oracle().positions(); ++i)
      if (parts[i] >= 0) f(parts[i]);
  }

  void write_extra(double* extra) {
    const auto& oracle = instance_.oracle();
    const auto add = [&](const int32_t* code, double weight) {
      oracle.for_each_extra(code, [&](int32_t index) { extra[index] += weight; });
    };
    std::fill_n(extra, oracle.extras(), 0.0);
    const Decomposition& found = instance_.decomposition;
    const Support& support = instance_.support;
    for (int64_t k = 0; k < found.size(); ++k)
      add(found.codes.data() + k * oracle.positions(), found.weights[k]);
    for (int64_t k = 0; found.empty() && k < support.size(); ++k) add(support.others(k), support.weight(k));
  }

  // Where the solution was found at once, its structures are the next support, unless they are very many.
  void keep_structures() {
    was_at_once_ = !instance_.decomposition.empty(), solve_at_once_first_ = false;
    if (!was_at_once_) return;
    solve_at_once_first_ = instance_.decomposition.size() > instance_.patience();
    if (solve_at_once_first_)
      is_started_ = false;
    else
      instance_.adopt_decomposition();
  }

  Make make_;
  Instance<Make> instance_;
  Workspace scores_;
  std::vector<double> zeros_, along_;
  double gap_ = 0;
  bool is_started_ = false, solve_at_once_first_ = false, was_at_once_ = false;
};

template <template <class> class Map>
std::unique_ptr<Factor> oracle_factor(int64_t n, int64_t m, int64_t option) {
  const auto make = oracle_maker<Map>(n, m, option);
  return std::make_unique<OracleFactor<std::decay_t<decltype(make)>>>(make);
}

enum class Kind : int64_t {
  kSequence, kTree, kProjectiveTree, kMatching, kBits, kBudget, kXor, kAtMostOne, kOr, kImply, kXorOut, kOrOut,
  kAndOut, kKnapsack, kPair
};

// A factor in closed form, of d bits. `option` is that of a budget; `numbers` are the costs of a knapsack and its
// budget.
class SmallFactor : public Factor {
 public:
  SmallFactor(Kind kind, int64_t d, int64_t option, const double* numbers)
      : kind_(kind), d_(d), option_(option), numbers_(numbers) {}

  void project(double* x, const double* extra_scores, double* y, double* extra) override {
    double both = 0;
    switch (kind_) {
      case Kind::kBits: own_.box(x, d_, y, false); break;
      case Kind::kBudget:
        if (option_ % 2)
          own_.subset(x, d_, option_ / 2, true, y);
        else
          own_.at_most(x, d_, option_ / 2, y, false);
        break;
      case Kind::kXor: own_.subset(x, d_, 1, false, y); break;
      case Kind::kAtMostOne: own_.at_most(x, d_, 1, y); break;
      case Kind::kOr: own_.at_least_one(x, d_, y); break;
      case Kind::kImply: negated(x, y, 0, d_ - 1, [&] { own_.at_least_one(x, d_, y); }); break;
      case Kind::kXorOut: negated(x, y, d_ - 1, d_, [&] { own_.subset(x, d_, 1, false, y); }); break;
      case Kind::kOrOut: own_.or_out(x, d_, y); break;
      case Kind::kAndOut: negated(x, y, 0, d_, [&] { own_.or_out(x, d_, y); }); break;
      case Kind::kKnapsack: own_.knapsack(x, d_, numbers_, numbers_[d_], y); break;
      default: both = own_.pair(x, extra_scores ? *extra_scores : 0, y, with_coupling_);
    }
    if (extra) *extra = both;
  }

  void multiply(const double* in, const double* in_extra, double* out, double* out_extra) override {
    if (out && in) own_.motion.apply(in, out);
    if (out && !in) std::fill_n(out, d_, 0.0);
    if (out && in_extra)
      for (int i = 0; i < 2; ++i) out[i] += *in_extra * with_coupling_[i];
    if (out_extra) *out_extra = in ? in[0] * with_coupling_[0] + in[1] * with_coupling_[1] : 0;
  }

 private:
  // The bits from `first` to `last` count as their negation.
  template <class Project>
  void negated(double* x, double* y, int64_t first, int64_t last, Project project) {
    negate(x, d_, finite_, [&](int64_t i) { return first <= i && i < last; });
    project();
    for (int64_t i = first; i < last; ++i) y[i] = 1 - y[i], own_.motion.negate(i);
  }

  Kind kind_;
  int64_t d_, option_;
  const double* numbers_;
  double with_coupling_[2] = {0, 0};
  Projection own_;
  std::vector<double> finite_;
};

}  // namespace fenchel
