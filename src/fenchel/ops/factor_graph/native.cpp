// Consensus ADMM over the factors of a graph; structures/relaxation/_admm.py has the mathematics and the same rounds
// in Python, for factors that are not in the library.
#include "graph.hpp"

namespace fenchel {
namespace {

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
  Rounds(const Graph& graph, const Settings& settings) : graph_(graph), settings_(settings), factors_(graph) {
    degree_.assign(static_cast<size_t>(graph.variables), 0.0);
    for (int64_t e = 0; e < graph.copies; ++e) ++degree_[graph.index[e]];
    next_.resize(static_cast<size_t>(graph.variables));
    relaxed_.resize(static_cast<size_t>(graph.copies));
    scaled_.resize(static_cast<size_t>(graph.extras));
  }

  void solve(const Tensors& all, int64_t row) {
    const Tensors t = at(all, row);
    factors_.forget();
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
    for (int64_t k = 0; k < graph_.extras; ++k) scaled_[k] = t.extra_scores[k] / *t.step;
    factors_.project(t.shifted, scaled_.data(), t.copies, t.extras);
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
  Factors factors_;
  std::vector<double> degree_, next_, relaxed_, scaled_;
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
  return fenchel::parallel_instances(
      count, threads, [&] { return fenchel::Rounds(graph, settings); },
      [&](fenchel::Rounds& solver, int64_t row) { solver.solve(tensors, row); });
}
FENCHEL_SIGNATURE(factor_graph_rounds,
                  "scores, extra_scores, count, groups, num_groups, numbers, index, negated, variables, num_copies, "
                  "num_extras, curvature, tol, relaxation, balance, rounding, period, first, last, u, multipliers, "
                  "step, copies, extras, shifted, primal, dual, rounds, converged, threads")
