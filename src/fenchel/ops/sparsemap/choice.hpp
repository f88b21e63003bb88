// The best one of d entries.
#pragma once

#include <algorithm>

#include "structure.hpp"

namespace fenchel {

template <class Num>
class ChoiceMap : public Grid {
 public:
  ChoiceMap(int64_t d, int64_t, int64_t) : Grid(d, 1) {}

  void resize(const int64_t* lengths) { rows_ = lengths ? static_cast<int>(lengths[0]) : full_rows_; }
  int positions() const { return 1; }
  int part(int, int32_t entry) const { return entry; }

  double argmax(const Num* scores, const Num*, int32_t* code) {
    const Num* best = std::max_element(scores, scores + rows_);
    *code = *best == kNone ? -1 : static_cast<int32_t>(best - scores);
    return rounded(*best);
  }
};

}  // namespace fenchel
