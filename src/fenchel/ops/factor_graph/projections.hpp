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

// How marginals move with their scores: some are fixed, some move with their own score, and some, which are tied, all
// move with the mean of their scores; and there is no motion along `normal`, which is zero at fixed ones.
class Motion {
 public:
  enum : int8_t { kFixed, kFree, kTied };

  void start(int64_t d) {
    kinds_.assign(static_cast<size_t>(d), kFixed);
    normal_.assign(static_cast<size_t>(d), 0.0);
  }
  void set(int64_t i, int8_t kind, double normal = 0) { kinds_[i] = kind, normal_[i] = kind == kFixed ? 0 : normal; }
  void negate(int64_t i) { normal_[i] = -normal_[i]; }

  // The Jacobian times v.
  void apply(const double* v, double* out) const {
    const auto d = static_cast<int64_t>(kinds_.size());
    double sum = 0, count = 0, along = 0, square = 0;
    for (int64_t i = 0; i < d; ++i)
      if (kinds_[i] == kTied) sum += v[i], ++count;
    for (int64_t i = 0; i < d; ++i) {
      out[i] = kinds_[i] == kFree ? v[i] : kinds_[i] == kTied ? sum / count : 0;
      along += normal_[i] * out[i], square += normal_[i] * normal_[i];
    }
    if (square > 0)
      for (int64_t i = 0; i < d; ++i) out[i] -= along / square * normal_[i];
  }

 private:
  std::vector<int8_t> kinds_;
  std::vector<double> normal_;
};

// Each method writes the marginals y closest to x (d), and how they move.
class Projection {
 public:
  Motion motion;

  // y = [x − τ]₊, at most one, with a sum of k, or of as many as are not forbidden.
  void subset(const double* x, int64_t d, int64_t k, bool exact, double* y) {
    const int64_t allowed = std::count_if(x, x + d, [](double v) { return v > -kInf<double>; });
    motion.start(d);
    if (exact && allowed < k) return void(std::fill_n(y, d, 0.0));
    work_.resize(static_cast<size_t>(padded<double>(d)));
    ksubset_row(x, y, d, static_cast<double>(std::min(k, allowed)), 1.0, work_.data());
    for (int64_t i = 0; i < d; ++i) motion.set(i, y[i] > 0 && y[i] < 1 ? Motion::kFree : Motion::kFixed, 1);
  }

  // Returns the sum. Scores of exactly 0 and 1 move if it is closed.
  double box(const double* x, int64_t d, double* y, bool closed = true) {
    double sum = 0;
    motion.start(d);
    for (int64_t i = 0; i < d; ++i) {
      sum += y[i] = cut(x[i]);
      const bool moves = closed ? x[i] == y[i] : y[i] > 0 && y[i] < 1;
      motion.set(i, moves ? Motion::kFree : Motion::kFixed);
    }
    return sum;
  }

  void at_most(const double* x, int64_t d, int64_t k, double* y, bool closed = true) {
    if (box(x, d, y, closed) > static_cast<double>(k)) subset(x, d, k, false, y);
  }

  void at_least_one(const double* x, int64_t d, double* y) {
    if (box(x, d, y) < 1) subset(x, d, 1, false, y);
  }

  // The last entry says whether any entry before it is on.
  void or_out(double* x, int64_t d, double* y) {
    const double top = bound_by_last(x, d);
    double sum = 0;
    motion.start(d);
    for (int64_t i = 0; i < d; ++i) {
      const bool tied = i == d - 1 || x[i] > top;
      const double bounded = tied ? top : x[i];
      y[i] = cut(bounded);
      if (bounded == y[i]) motion.set(i, tied ? Motion::kTied : Motion::kFree);
      if (i < d - 1) sum += y[i];
    }
    if (!(sum < y[d - 1])) return;
    negate(x, d, finite_, [&](int64_t i) { return i == d - 1; });
    subset(x, d, 1, false, y);
    y[d - 1] = 1 - y[d - 1];
    motion.negate(d - 1);
  }

  // Numbers between 0 and 1 with a total cost of at most a budget: y = x − τ costs, cut to [0, 1].
  void knapsack(const double* x, int64_t d, const double* costs, double budget, double* y) {
    const auto spend = [&](double tau) {
      double sum = 0;
      for (int64_t i = 0; i < d; ++i) sum += costs[i] * cut(x[i] - tau * costs[i]);
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
      excess += costs[i] * (open ? x[i] : cut(moved));
      if (open) square += costs[i] * costs[i];
    }
    const double tau = square > 0 ? excess / square : work_[high];
    for (int64_t i = 0; i < d; ++i) {
      y[i] = cut(x[i] - tau * costs[i]);
      if (costs[i] > 0) motion.set(i, y[i] > 0 && y[i] < 1 ? Motion::kFree : Motion::kFixed, costs[i]);
    }
  }

  // Two bits with the extra score `coupling` where both are on. Returns how far both are; `with_coupling` gets the
  // derivative in the coupling.
  double pair(const double* x, double coupling, double* y, double* with_coupling) {
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
    const bool first = a > b + both, second = b > a + both;
    const double u = first ? a : second ? a + both : mean, v = second ? b : first ? b + both : mean;
    y[0] = cut(u), y[1] = cut(v);
    const double free[2] = {u == y[0] ? 1.0 : 0.0, v == y[1] ? 1.0 : 0.0};
    motion.start(2);
    for (int i = 0; i < 2; ++i) {
      const bool in_mean = !first && !second;
      if (free[i] > 0) motion.set(i, in_mean && attract ? Motion::kTied : Motion::kFree, in_mean && !attract ? 1 : 0);
      with_coupling[i] = 0;
    }
    if (attract) {
      with_coupling[0] = first ? 0 : second ? free[0] : free[0] / 2;
      with_coupling[1] = second ? 0 : first ? free[1] : free[1] / 2;
      return std::min(y[0], y[1]);
    }
    if (first) with_coupling[0] = free[0], with_coupling[1] = free[1];
    y[1] = 1 - y[1];
    return std::max(y[0] + y[1] - 1, 0.0);
  }

 private:
  static double cut(double x) { return std::min(std::max(x, 0.0), 1.0); }

  // The largest mean t of the last entry and of all entries above t.
  double bound_by_last(const double* x, int64_t d) {
    work_.assign(x, x + d - 1);
    std::sort(work_.begin(), work_.end(), std::greater<double>());
    double sum = x[d - 1], top = sum;
    for (int64_t i = 0; i + 1 < d && work_[i] > top; ++i) sum += work_[i], top = sum / static_cast<double>(i + 2);
    return top;
  }

  std::vector<double> work_, finite_;
};

}  // namespace fenchel
