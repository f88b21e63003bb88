// Structures that span the face of a solution, as its Jacobian needs them.
#pragma once

#include <cmath>
#include <vector>

#include "solver.hpp"

namespace fenchel {

// A solution may be exact to the last digit and have far fewer structures than its face has dimensions. The face has
// the structures that are best for scores less marginals. So a small random direction is added to these scores, and
// taken off them, orthogonal to all differences of the structures here. If the face has more dimensions, one of both
// finds a structure outside of their affine hull; else the face is spanned.
class FaceSpan {
 public:
  // `gap` is that of the marginals.
  template <class Make>
  FaceSpan(const Instance<Make>& instance, double gap)
      : step_(kLeast + 8 * std::sqrt(2 * gap) + instance.rounding_of_scores()),
        direction_(static_cast<size_t>(instance.count())) {}

  // Adds structures outside of the affine hull of those here, up to two. False if there is none.
  template <class Make>
  bool grow(Instance<Make>& instance, double tau) {
    Support& support = instance.support;
    for (double& x : direction_) x = 2 * scatter(seed_++) - 1;
    support.project_out(direction_.data());
    double largest = 0;
    for (const double x : direction_) largest = std::fmax(largest, std::abs(x));
    if (largest < kNothing) return false;
    bool grew = false;
    for (const double sign : {step_ / largest, -step_ / largest}) {
      instance.find_shifted([&](int64_t i) { return sign * direction_[static_cast<size_t>(i)]; });
      const double score = instance.score_next(), value = score - instance.overlap(support.size());
      grew |= support.compare_next() < 0 && std::abs(value - tau) <= step_ * instance.reach() &&
              support.add_direction(score);
    }
    return grew;
  }

 private:
  static constexpr double kLeast = 1e-7, kNothing = 1e-9;
  double step_;
  std::vector<double> direction_;
  int64_t seed_ = 0;
};

// Whether the structures of the support span the face of the solution; nothing changes but its scratch.
template <class Make>
bool spans_face(Instance<Make>& instance, double gap) {
  Support& support = instance.support;
  const int64_t size = support.size();
  FaceSpan span(instance, gap);
  const bool spanned = !span.grow(instance, instance.level());
  support.keep_first(size);
  return spanned;
}

// Adds structures until they span the face.
template <class Make>
Outcome add_directions(Instance<Make>& instance, int64_t max_calls, Outcome outcome) {
  constexpr int kTries = 2;
  constexpr int64_t kMaxSize = 1000;
  FaceSpan span(instance, outcome.gap);
  for (int failed = 0; failed < kTries && instance.support.size() < kMaxSize && outcome.iterations + 1 < max_calls;) {
    const double tau = instance.support.optimize_hull();
    instance.update_marginals();
    failed = span.grow(instance, tau) ? 0 : failed + 1;
    outcome.iterations += 2;
  }
  return outcome;
}

// Solves at once to the last digits; false if that is impossible or the face may be that of another solution nearby.
// Where there are very many parts, such a face has to do.
template <class Make>
bool find_face_at_once(Instance<Make>& instance, int64_t max_calls, Outcome& outcome) {
  constexpr double kGap = 1e-10;
  constexpr int64_t kManyParts = 2000;
  if (instance.patience() == instance.kNever) return false;
  const bool solved = solve_at_once(instance, {kGap, max_calls}, 0, outcome);
  if (solved && (instance.decomposition.is_face_exact || instance.count() > kManyParts)) return true;
  instance.decomposition.clear();
  return false;
}

// The face of the solution: by solving at once, or by structures that span it, whose weights mean nothing. Where
// `known` structures of the solution are few, scores are not flat: then the active set is faster.
template <class Make>
Outcome span_face(Instance<Make>& instance, Limits limits, int64_t known) {
  constexpr double kRounding = 1.0 / 64;
  const int64_t patience = instance.patience();
  const bool is_flat = known > patience / 2;
  Outcome outcome;
  if (!is_flat) {
    outcome = active_set(instance, {0, std::min(patience, limits.iterations), kRounding}, instance.kNever);
    if (outcome.converged) return add_directions(instance, limits.iterations, outcome);
  }
  if (find_face_at_once(instance, limits.iterations, outcome)) return outcome;
  outcome = active_set(instance, {0, limits.iterations, kRounding}, instance.kNever);
  return add_directions(instance, limits.iterations, outcome);
}

}  // namespace fenchel
