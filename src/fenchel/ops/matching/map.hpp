// The best matching of rows with columns, each at most once and as many as there can be: prices and
// shortest augmenting paths (Jonker and Volgenant 1987).
#pragma once

#include <algorithm>

#include "structure.hpp"

namespace fenchel {

template <class Num>
class MatchingMap : public Grid {
 public:
  MatchingMap(int64_t rows, int64_t columns, int64_t) : Grid(rows, columns) {
    const int64_t few = std::min(rows, columns), many = std::max(rows, columns);
    const int64_t width = padded<Num>(many);
    scores_.resize(few * width);
    for (WorkspaceOf<Num>* w : {&price_, &open_, &key_, &profit_, &reached_}) w->resize(width);
    before_.resize(width);
    column_of_.resize(few);
    free_.resize(few);
    row_of_.resize(many);
    closed_.resize(many);
    resize(nullptr);
  }

  void resize(const int64_t* lengths) {
    rows_ = lengths ? static_cast<int>(lengths[0]) : full_rows_;
    columns_ = lengths ? static_cast<int>(lengths[1]) : full_columns_;
    few_ = std::min(rows_, columns_);
    many_ = std::max(rows_, columns_);
    width_ = static_cast<int>(padded<Num>(many_));
    forget();
  }
  int positions() const { return rows_; }
  int part(int i, int32_t column) const { return column < 0 ? -1 : i * columns_ + column; }

  // With as many rows as columns any prices are a start, and those of the last call a good one; else a
  // column that stays free must have the price zero.
  double argmax(const Num* scores, const Num*, int32_t* code) {
    if (few_ < many_) forget();
    take(scores);
    for (int i = 0; i < rows_; ++i) code[i] = -1;
    if (!match()) {
      forget();
      return kNone;
    }
    Num value = 0;
    for (int r = 0; r < few_; ++r) {
      const int c = column_of_[r];
      (rows_ <= columns_ ? code[r] : code[c]) = rows_ <= columns_ ? c : r;
      value += scores_[static_cast<int64_t>(r) * width_ + c];
    }
    return rounded(value);
  }

 private:
  int few_, many_, width_;
  WorkspaceOf<Num> scores_;  // of the fewer, padded with −inf
  WorkspaceOf<Num> price_, open_, key_, profit_, reached_;
  std::vector<int64_t> before_;
  std::vector<int> column_of_, row_of_, free_, closed_;

  void forget() {
    for (int j = 0; j < width_; ++j) price_[j] = 0;
  }

  void take(const Num* scores) {
    for (int r = 0; r < few_; ++r) {
      Num* row = scores_.data() + static_cast<int64_t>(r) * width_;
      if (rows_ <= columns_)
        std::copy_n(scores + static_cast<int64_t>(r) * many_, many_, row);
      else
        for (int c = 0; c < many_; ++c) row[c] = scores[static_cast<int64_t>(c) * few_ + r];
      for (int c = many_; c < width_; ++c) row[c] = kNone;
    }
  }

  // What each column brings to the row, less its price; the most of them.
  Num offers(int row) {
    const Num* s = scores_.data() + static_cast<int64_t>(row) * width_;
    Vec<Num> top = splat<Num>(kNone);
    for (int j = 0; j < width_; j += kLanes<Num>) {
      Vec<Num> v = load<Num>(s + j) - load<Num>(price_.data() + j);
      store<Num>(profit_.data() + j, v);
      top = max<Num>(top, v);
    }
    return reduce_max(top);
  }

  bool match() {
    for (int j = 0; j < many_; ++j) row_of_[j] = -1;
    int waiting = 0;
    for (int i = 0; i < few_; ++i) {
      const Num best = offers(i);
      if (best == kNone) return false;
      const int j = first_equal(profit_.data(), width_, best);
      if (row_of_[j] < 0)
        row_of_[j] = i, column_of_[i] = j;
      else
        free_[waiting++] = i;
    }
    waiting = outbid(waiting);
    for (int k = 0; k < waiting; ++k)
      if (!augment(free_[k])) return false;
    return true;
  }

  // A free row takes its best column, whose price rises by what it is better than the second, from the
  // row that had it. The number of bids is limited, since paths handle_nonfinite the rest; returns how many wait.
  int outbid(int waiting) {
    int left = 0, bids = 2 * waiting + few_;
    for (int k = 0; k < waiting; ++k) {
      for (int i = free_[k];;) {
        const Num best = offers(i);
        const int j = first_equal(profit_.data(), width_, best);
        profit_[j] = kNone;
        const Num second = largest(profit_.data(), width_), price = price_[j] + (best - second);
        const int other = row_of_[j];
        const bool bid = second > kNone && price > price_[j] && bids-- > 0;
        if (other >= 0 && !bid) {
          free_[left++] = i;
          break;
        }
        if (bid) price_[j] = price;
        row_of_[j] = i;
        column_of_[i] = j;
        if (other < 0) break;
        i = other;
      }
    }
    return left;
  }

  // Matches one more row along the path that costs least; keys are the negative lengths of paths.
  bool augment(int start) {
    for (int j = 0; j < width_; j += kLanes<Num>) {
      store<Num>(open_.data() + j, load<Num>(price_.data() + j));
      store<Num>(key_.data() + j, splat<Num>(kNone));
    }
    int closed = 0, i = start, j;
    Num offset = 0, most;
    for (;;) {
      most = relax(i, offset);
      if (most == kNone) return false;
      j = first_equal(key_.data(), width_, most);
      if (row_of_[j] < 0) break;
      closed_[closed++] = j;
      reached_[j] = most;
      key_[j] = kNone;
      open_[j] = kInf<double>;
      i = row_of_[j];
      offset = most - (scores_[static_cast<int64_t>(i) * width_ + j] - price_[j]);
    }
    for (int k = 0; k < closed; ++k) price_[closed_[k]] += reached_[closed_[k]] - most;
    do {
      i = static_cast<int>(before_[j]);
      row_of_[j] = i;
      std::swap(j, column_of_[i]);
    } while (i != start);
    return true;
  }

  Num relax(int row, Num offset) {
    const Num* s = scores_.data() + static_cast<int64_t>(row) * width_;
    Vec<Num> top = splat<Num>(kNone);
    const VecInt<Num> from = row - VecInt<Num>{};
    for (int j = 0; j < width_; j += kLanes<Num>) {
      Vec<Num> offer = load<Num>(s + j) - load<Num>(open_.data() + j) + offset;
      Vec<Num> key = load<Num>(key_.data() + j);
      VecInt<Num> before;
      std::memcpy(&before, before_.data() + j, sizeof before);
      before = offer > key ? from : before;
      std::memcpy(before_.data() + j, &before, sizeof before);
      key = max<Num>(key, offer);
      store<Num>(key_.data() + j, key);
      top = max<Num>(top, key);
    }
    return reduce_max(top);
  }
};

}  // namespace fenchel
