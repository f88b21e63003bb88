// Structures that span the face of a solution, as its Jacobian needs them.
#pragma once

#include <cmath>
#include <vector>

#include "solver.hpp"

namespace fenchel {

// A solution may be exact but for its last digits and have far fewer structures than its face has dimensions. The
// face has the structures that are best for scores less marginals. So a small random direction is added to these
// scores, and taken off them, orthogonal to all differences of the structures here. If the face has more
// dimensions, one of both finds a structure outside of their affine hull; else the face is spanned.
template <class Make>
Outcome add_directions(Instance<Make>& instance, int64_t max_calls, Outcome outcome) {
  constexpr int kTries = 2;
  constexpr int64_t kMaxSize = 1000;
  constexpr double kLeast = 1e-6, kNothing = 1e-9;
  Support& support = instance.support;
  const double step = kLeast + 8 * std::sqrt(2 * (outcome.gap + instance.rounding()));
  std::vector<double> direction(static_cast<size_t>(instance.count()));
  int64_t seed = 0;
  for (int failed = 0; failed < kTries && support.size() < kMaxSize && outcome.iterations + 1 < max_calls; ++failed) {
    const double tau = support.optimize_hull();
    instance.update_marginals();
    for (double& x : direction) x = 2 * scatter(seed++) - 1;
    support.project_out(direction.data());
    double largest = 0;
    for (const double x : direction) largest = std::fmax(largest, std::abs(x));
    if (largest < kNothing) break;
    for (const double sign : {step / largest, -step / largest}) {
      instance.find_shifted([&](int64_t i) { return sign * direction[static_cast<size_t>(i)]; });
      ++outcome.iterations;
      const double score = instance.score_next(), value = score - instance.overlap(support.size());
      if (support.compare_next() < 0 && std::abs(value - tau) <= step * instance.reach() &&
          support.add_direction(score))
        failed = -1;
    }
  }
  return outcome;
}

// The solution to the last digits: its face, by solving at once, or structures that span it, whose weights mean
// nothing. Where there are very many parts, a face that may be that of another solution nearby has to do.
template <class Make>
Outcome span_face(Instance<Make>& instance, Limits limits) {
  constexpr double kGap = 1e-10;
  constexpr int64_t kManyParts = 2000;
  Outcome outcome;
  if (instance.patience() < instance.kNever && solve_at_once(instance, {kGap, limits.iterations}, 0, outcome) &&
      (instance.decomposition.is_face_exact || instance.count() > kManyParts))
    return outcome;
  instance.decomposition.clear();
  outcome = active_set(instance, {0, limits.iterations}, instance.kNever);
  return add_directions(instance, limits.iterations, outcome);
}

}  // namespace fenchel
