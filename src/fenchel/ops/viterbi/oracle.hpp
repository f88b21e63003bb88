// The best sequence of tags, by dynamic programming over the positions.
#pragma once

#include "structure.hpp"

namespace fenchel {

class Viterbi : public Grid {
 public:
  // Transitions (previous, next): one matrix for all pairs of neighbours if shared, else one for each.
  Viterbi(int length, int tags, bool shared)
      : Grid(length, tags), width_(static_cast<int>(padded<double>(tags))), shared_(shared) {
    best_.resize(static_cast<int64_t>(length) * width_);
    transitions_.resize(static_cast<int64_t>(pairs()) * tags * width_);
  }

  void resize(const int64_t* lengths) { rows_ = lengths ? static_cast<int>(lengths[0]) : full_rows_; }
  int extras() const { return pairs() * columns_ * columns_; }
  int positions() const { return rows_; }
  int part(int i, int32_t tag) const { return tag < 0 ? -1 : i * columns_ + tag; }

  template <class F>
  void for_each_extra(const int32_t* code, F f) const {
    for (int i = 0; i + 1 < rows_; ++i) f((pair(i) * columns_ + code[i]) * columns_ + code[i + 1]);
  }

  double argmax(const double* scores, const double* additional, int32_t* code) {
    if (additional) keep(additional);
    for (int b = 0; b < width_; ++b) best_[b] = b < columns_ ? scores[b] : kNone;
    switch (width_ / kLanes<double>) {
      case 1: sweep<1>(scores); break;
      case 2: sweep<2>(scores); break;
      case 3: sweep<3>(scores); break;
      case 4: sweep<4>(scores); break;
      default: sweep<0>(scores);
    }
    return trace(scores, code);
  }

 private:
  int width_;
  bool shared_;
  Workspace best_, transitions_;

  int pairs() const { return shared_ ? rows_ > 1 : rows_ - 1; }
  int pair(int i) const { return shared_ ? 0 : i; }
  const double* transitions(int i) const {
    return transitions_.data() + static_cast<int64_t>(pair(i)) * columns_ * width_;
  }

  void keep(const double* additional) {
    double* row = transitions_.data();
    for (int k = 0; k < pairs() * columns_; ++k, row += width_, additional += columns_) {
      for (int b = 0; b < columns_; ++b) row[b] = additional[b];
      for (int b = columns_; b < width_; ++b) row[b] = kNone;
    }
  }

  // best[i][b] = scores[i][b] + max_a best[i−1][a] + transition[a][b], with kBlocks vectors of b held in
  // registers; 0 for any number of them.
  template <int kBlocks>
  void sweep(const double* scores) {
    constexpr int kHeld = kBlocks ? kBlocks : 4;
    constexpr int kStep = kHeld * static_cast<int>(kLanes<double>);
    for (int i = 1; i < rows_; ++i) {
      const double* last = best_.data() + static_cast<int64_t>(i - 1) * width_;
      double* next = best_.data() + static_cast<int64_t>(i) * width_;
      const double* unary = scores + static_cast<int64_t>(i) * columns_;
      const bool inside = i * columns_ + width_ <= parts();
      int b = 0;
      for (; b + kStep <= width_; b += kStep) pass<kHeld>(last, transitions(i - 1) + b, next + b);
      if constexpr (kBlocks == 0)
        for (; b < width_; b += kLanes<double>) pass<1>(last, transitions(i - 1) + b, next + b);
      if (inside) {  // what lies behind the row is added to −inf
        for (b = 0; b < width_; b += kLanes<double>)
          store<double>(next + b, load<double>(next + b) + load<double>(unary + b));
      } else {
        for (b = 0; b < columns_; ++b) next[b] += unary[b];
      }
    }
  }

  template <int kHeld>
  FENCHEL_INLINE void pass(const double* last, const double* row, double* next) const {
    Vec<double> even[kHeld], odd[kHeld];
    for (int k = 0; k < kHeld; ++k) even[k] = odd[k] = splat<double>(kNone);
    int a = 0;
    for (; a + 2 <= columns_; a += 2, row += 2 * width_) {
      Vec<double> first = splat<double>(last[a]), second = splat<double>(last[a + 1]);
      for (int k = 0; k < kHeld; ++k) {
        even[k] = max<double>(even[k], first + load<double>(row + k * kLanes<double>));
        odd[k] = max<double>(odd[k], second + load<double>(row + width_ + k * kLanes<double>));
      }
    }
    if (a < columns_)
      for (int k = 0; k < kHeld; ++k)
        even[k] = max<double>(even[k], splat<double>(last[a]) + load<double>(row + k * kLanes<double>));
    for (int k = 0; k < kHeld; ++k) store<double>(next + k * kLanes<double>, max<double>(even[k], odd[k]));
  }

  // Goes back along the maxima, which are found again: a column per position is little work.
  double trace(const double* scores, int32_t* code) const {
    const double* best = best_.data() + static_cast<int64_t>(rows_ - 1) * width_;
    const double value = largest(best, width_);
    if (value == kNone) {
      for (int i = 0; i < rows_; ++i) code[i] = -1;
      return value;
    }
    int tag = first_equal(best, width_, value);
    for (int i = rows_ - 1; i > 0; --i) {
      code[i] = tag;
      const double total = best[tag], unary = scores[static_cast<int64_t>(i) * columns_ + tag];
      const double* transition = transitions(i - 1) + tag;
      best -= width_;
      for (tag = 0; tag + 1 < columns_; ++tag, transition += width_)
        if ((best[tag] + *transition) + unary == total) break;
    }
    code[0] = tag;
    return value;
  }
};

}  // namespace fenchel
