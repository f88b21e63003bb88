// SparseMAP for an oracle outside of the library, in rounds: each instance says for which scores it wants the
// best structure (`ask`), and is given it (`tell`). Between the two the oracle can answer for a whole batch.
#pragma once

#include <memory>

#include "conditional_gradient.hpp"
#include "dense.hpp"

namespace fenchel {

// What all instances of a batch have in common, and their scores.
struct Query {
  const double *scores, *extra_scores;  // (count, parts), (count, extras)
  int64_t count, parts, extras;
  bool regularize;  // whether marginals of extra parts count in the norm
  Method method;
  Limits limits;

  int64_t features() const { return parts + (regularize ? extras : 0); }
};

// One structure, or scores: its parts and its extra parts.
template <class T>
struct PairOf {
  T *parts, *extras;
};
using Vectors = PairOf<const double>;

class RoundSolver {
 public:
  // `best` is the best structure for the scores alone; values are compared with its.
  RoundSolver(const Query& query, int64_t row, Vectors best)
      : query_(query), scores_{query.scores + row * query.parts, query.extra_scores + row * query.extras},
        best_parts_(best.parts, best.parts + query.parts), best_extras_(best.extras, best.extras + query.extras),
        support_(query.features(), query.regularize ? 0 : query.extras) {
    marginals_.resize(static_cast<size_t>(support_.width()));
    const auto size = [&](const std::vector<double>& x, const double* scores) {
      for (size_t i = 0; i < x.size(); ++i)
        if (x[i] != 0) magnitude_ += std::abs(x[i]) * std::abs(scores[i]);
    };
    size(best_parts_, scores_.parts), size(best_extras_, scores_.extras);
    for (double x : best_parts_) magnitude_ += std::abs(x);
  }

  const Outcome& outcome() const { return outcome_; }
  const DenseSupport& support() const { return support_; }

  // Adds a structure to start from, unless it is here already, or no solution can give it weight: it is forbidden,
  // or further below the best than marginals, whose norm is at most that of the best, can lift it.
  void start_from(Vectors structure, double weight) {
    if (!(weight > 0)) return;
    const double* row = fill_next(structure);
    double norm = 0, distance = 0;
    for (int64_t i = 0; i < query_.features(); ++i) {
      const double best = i < query_.parts ? best_parts_[i] : best_extras_[i - query_.parts];
      norm += best * best, distance += (row[i] - best) * (row[i] - best);
    }
    const double value = value_of(structure);
    if (value >= -std::sqrt(norm * distance) && support_.find_next() < 0) support_.add_next(value, weight);
  }

  void start() {
    if (!support_.size()) {
      fill_next({best_parts_.data(), best_extras_.data()});
      support_.add_next(0, 1);
    }
    support_.scale_weights(1 / support_.total_weight());
  }

  // Writes the scores for which the best structure is wanted next.
  void ask(PairOf<double> to) {
    if (query_.method == Method::kActiveSet) support_.optimize();
    support_.marginals(marginals_.data());
    const double *u = marginals_.data(), *v = u + query_.parts;
    for (int64_t i = 0; i < query_.parts; ++i) to.parts[i] = scores_.parts[i] - u[i];
    for (int64_t i = 0; i < query_.extras; ++i) to.extras[i] = scores_.extras[i] - (query_.regularize ? v[i] : 0);
  }

  // Takes that structure, and says whether to go on. `shortfall` gets by how much its value is too low to be that
  // of the best structure, or 0.
  bool tell(Vectors structure, double& shortfall) {
    const double* row = fill_next(structure);
    const double score = value_of(structure), slope = score - overlap(row);
    const double level = support_.mean_value() - overlap(marginals_.data());
    const double rounding = 16 * std::numeric_limits<double>::epsilon() * magnitude_ * (8 + support_.size());
    ++outcome_.iterations;
    outcome_.gap = std::max(slope - level, 0.0);
    outcome_.converged = outcome_.gap <= std::max(query_.limits.gap, rounding);
    shortfall = level - slope > std::max(query_.limits.gap, 8 * rounding) ? level - slope : 0;
    if (outcome_.converged || outcome_.iterations >= query_.limits.iterations) return false;
    if (query_.method != Method::kActiveSet) {
      step(row, score, slope, level);
      return true;
    }
    const double value = support_.mean_value() + level;
    stalled_ = value > best_value_ ? 0 : stalled_ + 1;
    best_value_ = std::max(best_value_, value);
    if (support_.find_next() < 0 && stalled_ < kMaxStalled) {
      support_.add_next(score, 0);
      is_fresh_ = false;
      return true;
    }
    if (is_fresh_) return false;
    support_.keep_independent();  // factorizes anew what updates have made inexact
    return is_fresh_ = true;
  }

  void finish() {
    if (query_.method != Method::kActiveSet) support_.keep_independent();
  }

 private:
  static constexpr int kMaxStalled = 100;

  const double* fill_next(Vectors structure) {
    double* row = support_.next();
    std::copy_n(structure.parts, query_.parts, row);
    std::copy_n(structure.extras, query_.extras, row + (query_.regularize ? query_.parts : support_.width()));
    return row;
  }

  // The score of a structure less that of the best: what they share cancels.
  double value_of(Vectors structure) const {
    const auto sum = [](const double* x, const std::vector<double>& best, const double* scores) {
      double total = 0;
#pragma omp simd reduction(+ : total)
      for (size_t i = 0; i < best.size(); ++i) {
        const double difference = x[i] - best[i];
        total += difference == 0 ? 0 : difference * scores[i];
      }
      return total;
    };
    return sum(structure.parts, best_parts_, scores_.parts) + sum(structure.extras, best_extras_, scores_.extras);
  }

  double overlap(const double* row) const { return inner(row, marginals_.data(), support_.width()); }

  // Conditional gradient: moves towards the structure, away from the worst one here, or from this to that.
  void step(const double* row, double score, double slope, double level) {
    int64_t worst = 0;
    double least = kInf<double>;
    for (int64_t k = 0; k < support_.size(); ++k) {
      const double other = support_.value(k) - overlap(support_.row(k));
      if (other < least) least = other, worst = k;
    }
    const double* u = marginals_.data();
    const double weight = support_.weight(worst);
    if (query_.method == Method::kAway && slope - level < level - least) {
      const double max_step = weight / (1 - weight);
      const double step = line_search(level - least, distance(u, support_.row(worst)), max_step);
      support_.scale_weights(1 + step);
      support_.shift_weight(worst, step == max_step ? -support_.weight(worst) : -step);
    } else {
      const bool pairwise = query_.method == Method::kPairwise;
      const double* from = pairwise ? support_.row(worst) : u;
      const double max_step = pairwise ? weight : 1;
      const double step = line_search(slope - (pairwise ? least : level), distance(row, from), max_step);
      if (pairwise)
        support_.shift_weight(worst, step == max_step ? -weight : -step);
      else
        support_.scale_weights(1 - step);
      const int64_t known = support_.find_next();
      if (known >= 0)
        support_.shift_weight(known, step);
      else
        support_.append_next(score, step);
    }
    support_.remove_zeros();
  }

  double distance(const double* a, const double* b) const {
    double sum = 0;
    for (int64_t i = 0; i < query_.features(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
    return sum;
  }

  Query query_;
  Vectors scores_;
  std::vector<double> best_parts_, best_extras_, marginals_;
  DenseSupport support_;
  Outcome outcome_;
  double magnitude_ = 1, best_value_ = -kInf<double>;
  int stalled_ = 0;
  bool is_fresh_ = false;
};

}  // namespace fenchel
