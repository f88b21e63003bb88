// SparseMAP of one instance by conditional gradient: vanilla, with away steps, or pairwise.
#pragma once

#include "solver.hpp"

namespace fenchel {

enum class Method { kActiveSet, kVanilla, kAway, kPairwise, kFace };

// Where −½ curve t² + slope t is largest in [0, max_step].
inline double line_search(double slope, double curve, double max_step) {
  return slope < max_step * curve ? slope / curve : max_step;
}

// Each round moves towards the best structure for the scores less the marginals, away from the
// worst one of the support, or from this to that, as far as the objective grows.
template <class Make>
Outcome conditional_gradient(Instance<Make>& instance, Limits limits, Method method) {
  Support& support = instance.support;
  Outcome outcome;
  for (;;) {
    instance.update_marginals();
    instance.find_next();
    ++outcome.iterations;
    const double level = instance.level(), norm = instance.squared_norm();
    const double score = instance.score_next();
    const double overlap = instance.overlap(support.size()), value = score - overlap;
    outcome.gap = std::max(value - level, 0.0);
    outcome.converged = outcome.gap <= std::max(limits.gap, instance.rounding());
    if (outcome.converged || outcome.iterations == limits.iterations) return outcome;

    int64_t worst = 0;
    double least = std::numeric_limits<double>::infinity();
    if (method != Method::kVanilla)
      for (int64_t k = 0; k < support.size(); ++k) {
        const double other = support.score(k) - instance.overlap(k);
        if (other < least) least = other, worst = k;
      }
    const int64_t known = support.compare_next();
    const double count = support.count(support.size());
    const bool pairwise = method == Method::kPairwise;
    if (method == Method::kAway && value - level < level - least) {
      const double weight = support.weight(worst);
      const double curve = norm - 2 * instance.overlap(worst) + support.count(worst);
      const double max_step = weight / (1 - weight);  // below one: the level of one alone is its own
      const double step = line_search(level - least, curve, max_step);
      support.scale_weights(1 + step);
      support.shift_weight(worst, step == max_step ? -support.weight(worst) : -step);
    } else {
      const double max_step = pairwise ? support.weight(worst) : 1;
      const double shared = pairwise ? support.shared_with_next(worst) : overlap;
      const double step = line_search(value - (pairwise ? least : level),
                                      count - 2 * shared + (pairwise ? support.count(worst) : norm),
                                      max_step);
      if (!pairwise) support.scale_weights(1 - step);
      if (pairwise) support.shift_weight(worst, step == max_step ? -support.weight(worst) : -step);
      if (known >= 0)
        support.shift_weight(known, step);
      else
        support.append_next(score, step);
    }
    support.remove_zeros();
  }
}

}  // namespace fenchel
