// Selection: the best choice of at most, or exactly, k of d entries, by the k-th largest score.
#pragma once

#include <algorithm>
#include <functional>

#include "structure.hpp"

namespace fenchel {

template <class Num>
class BudgetMap : public Grid {
 public:
  BudgetMap(int64_t d, int64_t, int64_t option)
      : Grid(d, 1), max_chosen_(static_cast<int>(option / 2)), exact_(option % 2 != 0), sorted_(d) {}

  void resize(const int64_t* lengths) { rows_ = lengths ? static_cast<int>(lengths[0]) : full_rows_; }
  int positions() const { return rows_; }
  int part(int i, int32_t chosen) const { return chosen == 1 ? i : -1; }

  // code[i] is whether entry i is chosen; the first ones among equals are.
  double argmax(const Num* scores, const Num*, int32_t* code) {
    if (exact_ && max_chosen_ > rows_) return no_structure(code);
    const int k = std::min(max_chosen_, rows_);
    Num threshold = kInf<double>;  // the k-th largest
    if (k > 0) {
      std::copy(scores, scores + rows_, sorted_.begin());
      auto place = sorted_.begin() + (k - 1);
      std::nth_element(sorted_.begin(), place, sorted_.begin() + rows_, std::greater<Num>());
      threshold = *place;
    }
    if (exact_ && threshold == kNone) return no_structure(code);
    int num_left = k;  // how many of those at the threshold to choose
    for (int i = 0; i < rows_; ++i) num_left -= scores[i] > threshold;
    Num value = 0;
    for (int i = 0; i < rows_; ++i) {
      const bool at_threshold = scores[i] == threshold && num_left > 0;
      const bool chosen = (exact_ || scores[i] > Num(0)) && (scores[i] > threshold || at_threshold);
      num_left -= at_threshold;
      code[i] = chosen;
      if (chosen) value += scores[i];
    }
    return rounded(value);
  }

 private:
  int max_chosen_;
  bool exact_;
  std::vector<Num> sorted_;

  double no_structure(int32_t* code) const {
    for (int i = 0; i < rows_; ++i) code[i] = -1;
    return kNone;
  }
};

}  // namespace fenchel
