// The projection onto the polytope of dependency trees where no constraint but those of the degrees is tight, and
// its decomposition into trees.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "decomposition.hpp"

namespace fenchel {

// The marginals closest to the scores (head, word), roots on the diagonal, if every word has one head, and the root
// one word (`single_root`) or at least one. Trees satisfy more: no set of words is a cycle. Whether the result does
// is for the caller to find out, by the duality gap.
class DegreeProjection {
 public:
  // Returns whether the number of roots is fixed to one.
  bool solve(int64_t n, bool single_root, const double* scores, double* u) {
    n_ = n, scores_ = scores, u_ = u;
    column_.resize(static_cast<size_t>(n));
    double slope, roots = project(0, &slope);
    if (roots == 1 || (roots > 1 && !single_root)) return roots == 1;
    double low = -std::numeric_limits<double>::infinity(), high = -low, shift = 0;
    for (int step = 0; step < kMaxSteps; ++step) {
      if (std::abs(roots - 1) <= kExact * static_cast<double>(n)) break;
      (roots < 1 ? low : high) = shift;
      double next = shift + (1 - roots) / slope;  // infinite where no word changes its root
      if (!(next > low && next < high)) next = between(low, high);
      if (next == shift) break;
      shift = next;
      roots = project(shift, &slope);
    }
    return true;
  }

 private:
  static constexpr int kMaxSteps = 200;
  static constexpr double kExact = 1e-16;

  static double between(double low, double high) {
    if (std::isinf(low)) return high - 1 - std::abs(high);
    if (std::isinf(high)) return low + 1 + std::abs(low);
    return low + (high - low) / 2;
  }

  // Projects each column onto the simplex, the root's scores shifted. Returns the expected number of roots, and its
  // derivative.
  double project(double shift, double* slope) {
    double roots = 0;
    *slope = 0;
    for (int64_t d = 0; d < n_; ++d) {
      for (int64_t h = 0; h < n_; ++h) column_[h] = scores_[h * n_ + d] + (h == d ? shift : 0);
      std::sort(column_.begin(), column_.end(), std::greater<double>());
      double sum = -1, tau = 0;
      int64_t k = 0;
      for (; k < n_; ++k) {
        const double next = (sum + column_[k]) / static_cast<double>(k + 1);
        if (k && !(column_[k] > next)) break;
        sum += column_[k], tau = next;
      }
      for (int64_t h = 0; h < n_; ++h)
        u_[h * n_ + d] = std::max(scores_[h * n_ + d] + (h == d ? shift : 0) - tau, 0.0);
      const double root = u_[d * n_ + d];
      roots += root;
      if (root > 0) *slope += 1 - 1 / static_cast<double>(k);
    }
    return roots;
  }

  int64_t n_ = 0;
  const double* scores_ = nullptr;
  double* u_ = nullptr;
  std::vector<double> column_;
};

// Takes trees off marginals. Each is one whose smallest arc is large: it grows from its roots by the largest arc to
// a new word. It takes a share of that smallest arc off all of its arcs. With all of it an arc is zero, and there are
// fewest trees. But where all marginals are nearly equal, what is then left may hold no tree; a smaller share keeps
// them so.
//
// What is left for the root per tree stays what it was, between two whole numbers, so that trees have one of these
// numbers of roots, until what is left has one root for each tree.
class TreePeeling {
 public:
  // Until the trees have a duality gap of at most `tol`, or there are as many as arcs, or no more with any share.
  void solve(int64_t n, bool one_root, const double* u, double tol, Decomposition& out) {
    for (const double share : {1.0, 0.9, 0.75, 0.5}) {
      out.codes.clear(), out.weights.clear();
      if (peel(n, one_root, u, share, tol, out)) return;
    }
  }

 private:
  static constexpr double kNothing = 1e-17, kRounding = 1e-14;
  static constexpr double kUnreached = -1, kAttached = -2;

  bool peel(int64_t n, bool one_root, const double* u, double share, double tol, Decomposition& out) {
    n_ = n;
    remainder_.start(n, n, u);
    u_ = remainder_.data();
    best_.resize(static_cast<size_t>(n));
    from_.resize(static_cast<size_t>(n)), head_.resize(static_cast<size_t>(n));
    double all = 0;
    for (int64_t d = 0; d < n; ++d) all += u[d * n + d];
    const double few = std::max(std::floor(all + kRounding), 1.0);
    for (double roots = all; !remainder_.is_negligible(out.size(), tol);) {
      const double slack = roots - remainder_.share();
      const bool more =
          few < static_cast<double>(n) && slack > kRounding && roots > all * remainder_.share();
      const double count = one_root ? 1 : more ? few + 1 : few;
      double weight = share * grow(static_cast<int64_t>(count));
      if (count > 1) weight = std::min(weight, slack / (count - 1));
      if (!(weight > kNothing) || out.size() == n * n) return false;
      out.weights.push_back(weight);
      out.codes.insert(out.codes.end(), head_.begin(), head_.end());
      remainder_.take(weight), roots -= count * weight;
      for (int64_t d = 0; d < n; ++d) u_[head_[d] * n + d] -= weight;
    }
    out.merge_equal(n, n);
    return true;
  }

  // Returns the smallest arc.
  double grow(int64_t roots) {
    for (int64_t d = 0; d < n_; ++d) best_[d] = u_[d * n_ + d], from_[d] = static_cast<int32_t>(d);
    double smallest = std::numeric_limits<double>::infinity();
    for (int64_t k = 0; k < roots; ++k) smallest = std::min(smallest, attach_best());
    for (double& best : best_) best = best == kAttached ? kAttached : kUnreached;
    for (int64_t d = 0; d < n_; ++d)
      if (best_[d] == kAttached) reach_from(d);
    for (int64_t k = roots; k < n_; ++k) {
      smallest = std::min(smallest, attach_best());
      reach_from(last_);
    }
    return smallest;
  }

  double attach_best() {
    last_ = std::max_element(best_.begin(), best_.end()) - best_.begin();
    const double best = best_[last_];
    head_[last_] = from_[last_];
    best_[last_] = kAttached;
    return best;
  }

  void reach_from(int64_t word) {
    const double* row = u_ + word * n_;
    const auto head = static_cast<int32_t>(word);
    for (int64_t d = 0; d < n_; ++d) {
      const bool better = row[d] > best_[d] && best_[d] != kAttached;
      best_[d] = better ? row[d] : best_[d];
      from_[d] = better ? head : from_[d];
    }
  }

  int64_t n_ = 0, last_ = 0;
  Remainder remainder_;
  double* u_ = nullptr;  // what is left
  std::vector<double> best_;
  std::vector<int32_t> from_, head_;
};

}  // namespace fenchel
