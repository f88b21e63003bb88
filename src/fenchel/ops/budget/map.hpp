// The best choice of at most, or exactly, k of d entries.
#pragma once

#include <algorithm>
#include <functional>

#include "structure.hpp"

namespace fenchel {

template <class Num>
class BudgetMap : public Grid {
 public:
  BudgetMap(int64_t d, int64_t, int64_t option)
      : Grid(d, 1), most_(static_cast<int>(option / 2)), exact_(option % 2 != 0), sorted_(d) {}

  void resize(const int64_t* lengths) { rows_ = lengths ? static_cast<int>(lengths[0]) : full_rows_; }
  int positions() const { return rows_; }
  int part(int i, int32_t chosen) const { return chosen == 1 ? i : -1; }

  // code[i] is whether entry i is chosen; the first ones among equals are.
  double argmax(const Num* scores, const Num*, int32_t* code) {
    if (exact_ && most_ > rows_) return none(code);
    const int k = std::min(most_, rows_);
    Num bar = kInf<double>;  // the k-th largest
    if (k > 0) {
      std::copy(scores, scores + rows_, sorted_.begin());
      auto place = sorted_.begin() + (k - 1);
      std::nth_element(sorted_.begin(), place, sorted_.begin() + rows_, std::greater<Num>());
      bar = *place;
    }
    if (exact_ && bar == kNone) return none(code);
    int left = k;  // how many of those at the bar are chosen
    for (int i = 0; i < rows_; ++i) left -= scores[i] > bar;
    Num value = 0;
    for (int i = 0; i < rows_; ++i) {
      const bool at_bar = scores[i] == bar && left > 0;
      const bool chosen = (exact_ || scores[i] > Num(0)) && (scores[i] > bar || at_bar);
      left -= at_bar;
      code[i] = chosen;
      if (chosen) value += scores[i];
    }
    return rounded(value);
  }

 private:
  int most_;
  bool exact_;
  std::vector<Num> sorted_;

  double none(int32_t* code) const {
    for (int i = 0; i < rows_; ++i) code[i] = -1;
    return kNone;
  }
};

}  // namespace fenchel
