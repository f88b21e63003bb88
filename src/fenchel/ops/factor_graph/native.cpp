// Consensus ADMM over the factors of a graph; structures/relaxation/_admm.py has the mathematics and the same rounds
// in Python, for factors that are not in the library.
#include "../matching/map.hpp"
#include "../projective_tree/map.hpp"
#include "../sequence/map.hpp"
#include "../tree/map.hpp"
#include "factor.hpp"

namespace fenchel {
namespace {

// Factors of one kind: `parts` variables and `extras` extra scores each, none if they were not given.
struct Group {
  Kind kind;
  int64_t count, parts, extras, n, m, option;

  std::unique_ptr<Factor> factor(const double* numbers) const {
    switch (kind) {
      case Kind::kSequence: return oracle_factor<SequenceMap>(n, m, option);
      case Kind::kTree: return oracle_factor<TreeMap>(n, m, option);
      case Kind::kProjectiveTree: return oracle_factor<ProjectiveTreeMap>(n, m, option);
      case Kind::kMatching: return oracle_factor<MatchingMap>(n, m, option);
      default: return std::make_unique<SmallFactor>(kind, parts, option, numbers);
    }
  }
};

struct Graph {
  const int64_t* groups;  // (num_groups, 7), as Group
  int64_t num_groups;
  const double* numbers;  // of the knapsacks
  const int64_t* index;   // (copies)
  const bool* negated;    // (copies)
  int64_t variables, copies, extras;

  Group group(int64_t g) const {
    const int64_t* row = groups + 7 * g;
    return {static_cast<Kind>(row[0]), row[1], row[2], row[3], row[4], row[5], row[6]};
  }
};

// How the rounds go; Python sets them all.
struct Settings {
  double curvature, tol, relaxation, balance, rounding;
  int64_t period, first, last;  // the rounds to run
};

// The tensors of a batch.
struct Tensors {
  const double *scores, *extra_scores;
  double *u, *multipliers, *step;             // (count, variables), (count, copies), (count): changed
  double *copies, *extras, *shifted;          // (count, copies), (count, extras), (count, copies): written
  double *primal, *dual;                      // (count): read before the first round, if it is not number 1
  int64_t* rounds;
  bool* converged;
};

class Rounds {
 public:
  Rounds(const Graph& graph, const Settings& settings) : graph_(graph), settings_(settings) {
    const double* numbers = graph.numbers;
    for (int64_t g = 0; g < graph.num_groups; ++g) {
      const Group group = graph.group(g);
      for (int64_t f = 0; f < group.count; ++f) factors_.push_back(group.factor(numbers));
      if (group.kind == Kind::kKnapsack) numbers += group.parts + 1;
    }
    degree_.assign(static_cast<size_t>(graph.variables), 0.0);
    for (int64_t e = 0; e < graph.copies; ++e) ++degree_[graph.index[e]];
    next_.resize(static_cast<size_t>(graph.variables));
    own_.resize(static_cast<size_t>(graph.copies));
    relaxed_.resize(static_cast<size_t>(graph.copies));
    scaled_.resize(static_cast<size_t>(graph.extras));
  }

  void solve(const Tensors& all, int64_t row) {
    const Tensors t = at(all, row);
    for (auto& factor : factors_) factor->forget();
    int64_t period = settings_.period, change = period;
    while (change < settings_.first - 1) change += period = period * 3 / 2;
    for (int64_t round = settings_.first;; ++round) {
      if (round - 1 == change) {
        balance(t);
        change += period = period * 3 / 2;
      }
      project(t);
      update(t);
      *t.rounds = round;
      *t.converged = *t.primal <= settings_.tol && *t.dual <= std::max(settings_.tol, settings_.rounding * *t.step);
      if (*t.converged || round == settings_.last) return;
    }
  }

 private:
  Tensors at(const Tensors& all, int64_t row) const {
    const int64_t n = row * graph_.variables, e = row * graph_.copies, m = row * graph_.extras;
    return {all.scores + n,  all.extra_scores + m, all.u + n,      all.multipliers + e, all.step + row,   all.copies + e,
            all.extras + m,  all.shifted + e,      all.primal + row, all.dual + row,    all.rounds + row,
            all.converged + row};
  }

  // A larger step where the primal residual is larger than the dual one, or a smaller one.
  void balance(const Tensors& t) const {
    const double ratio = std::min(std::max(std::sqrt(*t.primal / std::max(*t.dual, 1e-300)), 0.1), 10.0);
    const double limit = std::sqrt(settings_.balance);
    if (ratio <= limit && ratio >= 1 / limit) return;
    const double before = *t.step;
    *t.step = before * ratio;
    for (int64_t e = 0; e < graph_.copies; ++e) t.multipliers[e] *= before / *t.step;
  }

  void project(const Tensors& t) {
    for (int64_t e = 0; e < graph_.copies; ++e) {
      const int64_t i = graph_.index[e];
      t.shifted[e] = t.scores[i] == kNone ? kNone : t.u[i] - t.multipliers[e];
    }
    std::copy_n(t.shifted, graph_.copies, own_.begin());
    for (int64_t k = 0; k < graph_.extras; ++k) scaled_[k] = t.extra_scores[k] / *t.step;
    int64_t factor = 0, e = 0, k = 0;
    for (int64_t g = 0; g < graph_.num_groups; ++g) {
      const Group group = graph_.group(g);
      for (int64_t f = 0; f < group.count; ++f, e += group.parts, k += group.extras) {
        const bool* negated = graph_.negated + e;
        const bool any = std::find(negated, negated + group.parts, true) != negated + group.parts;
        if (any) negate(own_.data() + e, group.parts, finite_, [&](int64_t i) { return negated[i]; });
        const bool given = group.extras > 0;
        factors_[factor++]->project(own_.data() + e, given ? scaled_.data() + k : nullptr, t.copies + e,
                                    given ? t.extras + k : nullptr);
        for (int64_t i = 0; any && i < group.parts; ++i)
          if (negated[i]) t.copies[e + i] = 1 - t.copies[e + i];
      }
    }
  }

  // The variables and multipliers after the factors' subproblems, and both residuals.
  void update(const Tensors& t) {
    const double kappa = settings_.curvature, step = *t.step, share = settings_.relaxation;
    std::fill(next_.begin(), next_.end(), 0.0);
    for (int64_t e = 0; e < graph_.copies; ++e) {
      relaxed_[e] = share * t.copies[e] + (1 - share) * t.u[graph_.index[e]];
      next_[graph_.index[e]] += relaxed_[e] + t.multipliers[e];
    }
    for (int64_t i = 0; i < graph_.variables; ++i) {
      const double theta = t.scores[i];
      if (theta == kNone)
        next_[i] = 0;
      else if (degree_[i] > 0)
        next_[i] = (theta + step * next_[i]) / std::max(kappa + step * degree_[i], 1e-300);
      else
        next_[i] = kappa > 0 ? std::min(std::max(theta, 0.0), 1.0) : theta > 0;
    }
    *t.primal = *t.dual = 0;
    for (int64_t e = 0; e < graph_.copies; ++e) {
      const int64_t i = graph_.index[e];
      t.multipliers[e] += relaxed_[e] - next_[i];
      *t.primal = std::max(*t.primal, std::fabs(t.copies[e] - next_[i]));
      *t.dual = std::max(*t.dual, step * std::fabs(next_[i] - t.u[i]));
    }
    std::copy(next_.begin(), next_.end(), t.u);
  }

  const Graph& graph_;
  const Settings& settings_;
  std::vector<std::unique_ptr<Factor>> factors_;
  std::vector<double> degree_, next_, own_, relaxed_, scaled_, finite_;
};

}  // namespace
}  // namespace fenchel

// Rounds `first` to `last` of `count` instances, each until it has converged.
FENCHEL_API int fenchel_factor_graph_rounds(
    const double* scores, const double* extra_scores, int64_t count, const int64_t* groups, int64_t num_groups,
    const double* numbers, const int64_t* index, const bool* negated, int64_t variables, int64_t num_copies,
    int64_t num_extras, double curvature, double tol, double relaxation, double balance, double rounding,
    int64_t period, int64_t first, int64_t last, double* u, double* multipliers, double* step, double* copies,
    double* extras, double* shifted, double* primal, double* dual, int64_t* rounds, bool* converged, int threads) {
  const fenchel::Graph graph{groups, num_groups, numbers, index, negated, variables, num_copies, num_extras};
  const fenchel::Settings settings{curvature, tol, relaxation, balance, rounding, period, first, last};
  const fenchel::Tensors tensors{scores,  extra_scores, u,    multipliers, step,   copies,
                                 extras,  shifted,      primal, dual,      rounds, converged};
  threads = static_cast<int>(std::max<int64_t>(1, std::min<int64_t>(threads, count)));
  int status = fenchel::kOk;
  std::atomic<int64_t> next{0};  // instances differ in how many rounds they need, so each takes one when it is free
#pragma omp parallel for num_threads(threads) schedule(static, 1) if (threads > 1)
  for (int t = 0; t < threads; ++t) {
    try {
      fenchel::Rounds solver(graph, settings);
      for (int64_t row; (row = next++) < count;) solver.solve(tensors, row);
    } catch (const std::exception&) {  // only an allocation can fail
#pragma omp atomic write
      status = fenchel::kOutOfMemory;
    }
  }
  return status;
}
FENCHEL_SIGNATURE(factor_graph_rounds,
                  "scores, extra_scores, count, groups, num_groups, numbers, index, negated, variables, num_copies, "
                  "num_extras, curvature, tol, relaxation, balance, rounding, period, first, last, u, multipliers, "
                  "step, copies, extras, shifted, primal, dual, rounds, converged, threads")
