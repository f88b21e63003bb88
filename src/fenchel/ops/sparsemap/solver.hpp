// SparseMAP of one instance by the active set method: the quadratic program
//   max over the weights y of ⟨scores, u⟩ + ⟨extra_scores, v⟩ − ½‖u‖²,  u = My, v = Ny,
// whose columns, the structures, come from a MAP oracle one by one.
#pragma once

#include "instance.hpp"

namespace fenchel {

struct Limits {
  double gap;
  int64_t iterations;
  double rounding = 1;  // the share of `Instance::rounding`, which no gap may exceed, that is asked for
};

struct Outcome {
  double gap = 0;
  int64_t iterations = 0;
  bool converged = false;
};

// Solves at once; false if that is impossible or not exact enough. If it is better than the support, whose gap is
// given, its structures become the support.
template <class Make>
bool solve_at_once(Instance<Make>& instance, Limits limits, double gap, Outcome& outcome) {
  constexpr int64_t kMaxAdopted = 1000;
  double level;
  if (!instance.decompose(limits.gap, &level)) return false;
  instance.find_next();
  ++outcome.iterations;
  const double value = instance.score_next() - instance.overlap(instance.support.size());
  const int64_t size = instance.decomposition.size();
  outcome.gap = std::max(value - level, 0.0);
  outcome.converged = outcome.gap <= std::max(limits.gap, instance.rounding(size));
  if (outcome.converged) return true;
  if (outcome.gap < gap && size <= kMaxAdopted) instance.adopt_decomposition();
  instance.decomposition.clear();
  return false;
}

// The active set method. Each round adds the structure that violates optimality most, and gives all structures
// their best weights. The objective grows in each round, so no support repeats, and the rounds end. Near the end
// it grows by the square of a small gap, which rounding may hide: such a round has stalled. After many of them,
// or if the oracle has nothing new, a new factorization is tried once. Where `patience` rounds were not enough,
// solving at once is tried, once, too; then the objective may start anew.
template <class Make>
Outcome active_set(Instance<Make>& instance, Limits limits, int64_t patience) {
  constexpr int kMaxStalled = 100;
  Support& support = instance.support;
  Outcome outcome;
  double best = -kInf<double>, gap = kInf<double>;
  int stalled = 0;
  bool is_fresh = false, tried_at_once = false;
  for (;;) {
    if (!tried_at_once && outcome.iterations >= patience && outcome.iterations + 1 < limits.iterations) {
      tried_at_once = true;
      if (solve_at_once(instance, limits, gap, outcome)) return outcome;
      best = -kInf<double>, stalled = 0;
    }
    const double tau = support.optimize();
    const double value = (support.mean_score() + tau) / 2;
    instance.update_marginals();
    const double tolerance = std::max(limits.gap, limits.rounding * instance.rounding());
    stalled = value > best ? 0 : stalled + 1;
    best = std::max(best, value);
    double score = 0, overlap = 0;
    const auto ask = [&](bool preferred) {
      preferred ? instance.find_preferred() : instance.find_next();
      ++outcome.iterations;
      score = instance.score_next(), overlap = instance.overlap(support.size());
      gap = score - overlap - tau;
      return support.compare_next() < 0 && gap > tolerance;
    };
    // The preferred one of structures that tie is added; the certificate needs the best one itself. At first that is
    // asked for, because it is often all.
    const bool first = outcome.iterations == 0 || support.size() == 1;
    const bool may_ask_twice = outcome.iterations + 2 < limits.iterations;
    bool is_new = ask(!first && may_ask_twice);
    if (may_ask_twice && is_new == first) is_new = ask(first) || (first && ask(false));
    const bool last = outcome.iterations == limits.iterations;
    if (is_new && stalled < kMaxStalled && !last) {
      support.add_next(score, 0);
      is_fresh = false;
      continue;
    }
    outcome.gap = std::max(score - overlap - instance.level(), 0.0);
    outcome.converged = outcome.gap <= tolerance + instance.rounding();
    if (outcome.converged || is_fresh || last) return outcome;
    support.refactor();
    is_fresh = true;
  }
}

}  // namespace fenchel
