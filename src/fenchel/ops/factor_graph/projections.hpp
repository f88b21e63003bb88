// The marginals of small factors that are closest to given scores, in closed form.
#pragma once

#include <vector>

#include "../ksubset/subset.hpp"

namespace fenchel {

// −inf becomes a number that outweighs all others of the row.
inline void bound(double* x, int64_t d) {
  double top = 0;
  bool has_forbidden = false;
  for (int64_t i = 0; i < d; ++i) {
    const bool forbidden = x[i] == -kInf<double>;
    has_forbidden |= forbidden;
    if (!forbidden) top = std::max(top, std::fabs(x[i]));
  }
  if (!has_forbidden) return;
  for (int64_t i = 0; i < d; ++i)
    if (x[i] == -kInf<double>) x[i] = -1e3 * static_cast<double>(d) * (1 + top);
}

// The point 1 − x instead of x, where `negated(i)`; −inf there forces a bit.
template <class Negated>
void negate(double* x, int64_t d, std::vector<double>& finite, Negated negated) {
  finite.assign(x, x + d);
  bound(finite.data(), d);
  for (int64_t i = 0; i < d; ++i)
    if (negated(i)) x[i] = 1 - finite[i];
}

class Projections {
 public:
  // y = [x − τ]₊, at most one, with a sum of k, or of as many as are not forbidden.
  void subset(const double* x, int64_t d, int64_t k, bool exact, double* y) {
    const int64_t allowed = std::count_if(x, x + d, [](double v) { return v > -kInf<double>; });
    if (exact && allowed < k) return void(std::fill_n(y, d, 0.0));
    work_.resize(static_cast<size_t>(d));
    ksubset_row(x, y, d, static_cast<double>(std::min(k, allowed)), 1.0, work_.data());
  }

  static double box(const double* x, int64_t d, double* y) {
    double sum = 0;
    for (int64_t i = 0; i < d; ++i) sum += y[i] = std::min(std::max(x[i], 0.0), 1.0);
    return sum;
  }

  void at_most(const double* x, int64_t d, int64_t k, double* y) {
    if (box(x, d, y) > static_cast<double>(k)) subset(x, d, k, false, y);
  }

  void at_least_one(const double* x, int64_t d, double* y) {
    if (box(x, d, y) < 1) subset(x, d, 1, false, y);
  }

  // The last entry says whether any entry before it is on.
  void or_out(double* x, int64_t d, double* y) {
    bound_by_last(x, d);
    box(bounded_.data(), d, y);
    double sum = 0;
    for (int64_t i = 0; i + 1 < d; ++i) sum += y[i];
    if (!(sum < y[d - 1])) return;
    negate(x, d, finite_, [&](int64_t i) { return i == d - 1; });
    subset(x, d, 1, false, y);
    y[d - 1] = 1 - y[d - 1];
  }

  // Numbers between 0 and 1 with a total cost of at most a budget: y = x − τ costs, cut to [0, 1].
  void knapsack(const double* x, int64_t d, const double* costs, double budget, double* y) {
    const auto spend = [&](double tau) {
      double sum = 0;
      for (int64_t i = 0; i < d; ++i) sum += costs[i] * std::min(std::max(x[i] - tau * costs[i], 0.0), 1.0);
      return sum;
    };
    box(x, d, y);
    if (!(spend(0) > budget)) return;
    work_.assign(1, 0.0);
    for (int64_t i = 0; i < d; ++i)
      for (const double at : {x[i], x[i] - 1})
        if (costs[i] > 0 && at > 0) work_.push_back(at / costs[i]);
    std::sort(work_.begin(), work_.end());
    // Between two neighbours the cost is linear; it is above the budget at the first.
    size_t low = 0, high = work_.size() - 1;
    while (high - low > 1) {
      const size_t middle = (low + high) / 2;
      (spend(work_[middle]) > budget ? low : high) = middle;
    }
    const double inner = work_[low] + (work_[high] - work_[low]) / 2;
    double excess = -budget, square = 0;
    for (int64_t i = 0; i < d; ++i) {
      const double moved = x[i] - inner * costs[i];
      const bool open = moved > 0 && moved < 1 && costs[i] > 0;
      excess += costs[i] * (open ? x[i] : std::min(std::max(moved, 0.0), 1.0));
      if (open) square += costs[i] * costs[i];
    }
    const double tau = square > 0 ? excess / square : work_[high];
    for (int64_t i = 0; i < d; ++i) y[i] = std::min(std::max(x[i] - tau * costs[i], 0.0), 1.0);
  }

 private:
  // No entry above the last, which becomes the mean t of itself and of all entries above t.
  void bound_by_last(const double* x, int64_t d) {
    bounded_.assign(x, x + d);
    work_.assign(x, x + d - 1);
    std::sort(work_.begin(), work_.end(), std::greater<double>());
    double sum = x[d - 1], top = sum;
    for (int64_t i = 0; i + 1 < d && work_[i] > top; ++i) sum += work_[i], top = sum / static_cast<double>(i + 2);
    for (double& value : bounded_) value = std::min(value, top);
    bounded_[d - 1] = top;
  }

  std::vector<double> work_, bounded_, finite_;
};

// Two bits with the extra score `coupling` where both are on; returns how far both are.
inline double pair(const double* x, double coupling, double* y) {
  const bool attract = coupling >= 0;
  double a = x[0], b = x[1];
  const double size = (a > -kInf<double> ? std::fabs(a) : 0) + (b > -kInf<double> ? std::fabs(b) : 0);
  coupling = std::max(coupling, -1 - size);  // the same
  if (!attract) {  // φuv = φu − φu(1 − v): a pair that repels is one that attracts, with a bit negated
    double other[2] = {a, b};
    bound(other, 2);
    a += coupling, b = 1 - other[1];
  }
  const double both = std::fabs(coupling), mean = (a + b + both) / 2;
  double u = a > b + both ? a : b > a + both ? a + both : mean;
  double v = b > a + both ? b : a > b + both ? b + both : mean;
  u = std::min(std::max(u, 0.0), 1.0), v = std::min(std::max(v, 0.0), 1.0);
  if (!attract) v = 1 - v;
  y[0] = u, y[1] = v;
  return attract ? std::min(u, v) : std::max(u + v - 1, 0.0);
}

}  // namespace fenchel
