// k-subsets of rows with few open entries at α = 2, one row per lane: see columns.hpp for why. A lane stands still once
// it is solved, so a row's answer does not depend on its neighbours.
#pragma once

#include "subset.hpp"

namespace fenchel {

template <class T>
class SubsetRows {
 public:
  explicit SubsetRows(int64_t d) : d_(d) {}

  // Takes a row x, whose open entries are in `heights`, and answers it in y, at once or later.
  void add(const Open& open, const double* heights, const T* x, T* y) {
    if (open.count > kLongest) return write_subset(x, y, d_, newton(open, heights, 1), 1);
    for (int64_t j = 0; j < open.count; ++j) height_[j][filled_] = heights[j];
    open_[filled_] = open;
    x_[filled_] = x;
    y_[filled_] = y;
    if (++filled_ == kLanes<double>) flush();
  }

  // Answers the rows that wait.
  void flush() {
    int64_t longest = 0;
    Vec<double> k = {}, high = {}, moves = {};
    for (int lane = 0; lane < filled_; ++lane) {
      longest = open_[lane].count > longest ? open_[lane].count : longest;
      k[lane] = open_[lane].k, high[lane] = open_[lane].high, moves[lane] = 1;
    }
    for (int lane = 0; lane < kLanes<double>; ++lane)
      for (int64_t j = lane < filled_ ? open_[lane].count : 0; j < longest; ++j) height_[j][lane] = -kInf<double>;
    const Vec<double> above = solve(longest, k, high, moves);
    for (int lane = 0; lane < filled_; ++lane)
      write_subset(x_[lane], y_[lane], d_, Threshold{open_[lane].base, above[lane]}, 1);
    filled_ = 0;
  }

 private:
  static constexpr int64_t kLongest = 32;

  // As `newton`, in every lane that moves.
  FENCHEL_INLINE Vec<double> solve(int64_t n, Vec<double> k, Vec<double> high, Vec<double> moves) const {
    Vec<double> low = {}, t = high / 2;
    for (int pass = 0; pass < kMaxPasses && reduce_max(moves) > 0; ++pass) {
      LinearMass mass;
      for (int64_t j = 0; j < n; ++j) mass.add(t - height_[j]);
      const Vec<double> excess = (mass.total + mass.rounded) - k, step = excess / mass.slope;
      low = excess > 0 ? t : low;
      high = excess > 0 ? high : t;
      const Vec<double> middle = low + (high - low) / 2;
      Vec<double> next = t + step;
      next = next > low ? (next < high ? next : middle) : middle;
      moves = magnitude<double>(step) <= kShortStep * (1 + t) ? Vec<double>{} : moves;
      moves = next == low ? Vec<double>{} : moves;
      moves = next == high ? Vec<double>{} : moves;
      t = moves > 0 ? next : t;
    }
    return t;
  }

  const int64_t d_;
  Vec<double> height_[kLongest];
  Open open_[kLanes<double>];
  const T* x_[kLanes<double>];
  T* y_[kLanes<double>];
  int filled_ = 0;
};

}  // namespace fenchel
