// Jonker-Volgenant: the best matching of rows with columns, by prices and shortest augmenting paths (Jonker and
// Volgenant 1987). It matches as many as there can be, each at most once.
#pragma once

#include <algorithm>

#include "birkhoff.hpp"
#include "structure.hpp"

namespace fenchel {

template <class Num>
class MatchingMap : public Grid {
 public:
  MatchingMap(int64_t rows, int64_t columns, int64_t) : Grid(rows, columns) {
    const int64_t min_side = std::min(rows, columns), max_side = std::max(rows, columns);
    const int64_t width = padded<Num>(max_side);
    scores_.resize(min_side * width);
    for (WorkspaceOf<Num>* w : {&price_, &open_, &key_, &profit_, &reached_}) w->resize(width);
    previous_row_.resize(width);
    column_of_.resize(min_side);
    free_.resize(min_side);
    row_of_.resize(max_side);
    closed_.resize(max_side);
    resize(nullptr);
  }

  void resize(const int64_t* lengths) {
    rows_ = lengths ? static_cast<int>(lengths[0]) : full_rows_;
    columns_ = lengths ? static_cast<int>(lengths[1]) : full_columns_;
    min_side_ = std::min(rows_, columns_);
    max_side_ = std::max(rows_, columns_);
    width_ = static_cast<int>(padded<Num>(max_side_));
    reset_prices();
  }
  int positions() const { return rows_; }
  Lines choices() const { return rows_ <= columns_ ? Lines::kRows : Lines::kColumns; }
  int part(int i, int32_t column) const { return column < 0 ? -1 : i * columns_ + column; }

  // With as many rows as columns any prices are a start, and those of the last call a good one; else a
  // column that stays free must have the price zero.
  double argmax(const Num* scores, const Num*, int32_t* code) {
    if (min_side_ < max_side_) reset_prices();
    read_scores(scores);
    for (int i = 0; i < rows_; ++i) code[i] = -1;
    if (!match()) {
      reset_prices();
      return kNone;
    }
    Num value = 0;
    for (int r = 0; r < min_side_; ++r) {
      const int c = column_of_[r];
      (rows_ <= columns_ ? code[r] : code[c]) = rows_ <= columns_ ? c : r;
      value += scores_[static_cast<int64_t>(r) * width_ + c];
    }
    return rounded(value);
  }

  int64_t patience() const { return 64 + 2 * min_side_; }
  // SparseMAP at once.
  bool decompose(const double* scores, const double*, double tol, Decomposition& out) const {
    const int64_t few = min_side_, many = max_side_;
    const bool across = rows_ > columns_;  // columns take the place of rows
    const auto part = [&](int64_t i, int64_t j) { return across ? j * few + i : i * many + j; };
    std::vector<double> theta(static_cast<size_t>(few * many)), u(static_cast<size_t>(many * many));
    for (int64_t i = 0; i < few; ++i)
      for (int64_t j = 0; j < many; ++j) theta[i * many + j] = scores[part(i, j)];
    BirkhoffProjection projection;
    projection.solve(few, many, theta.data(), u.data());
    for (int64_t p = 0; p < few * many; ++p) {
      const int64_t i = across ? p % few : p / many, j = across ? p / few : p % many;
      const bool inside = u[i * many + j] > 0;
      out.set_groups(inside ? i : -1, inside && projection.is_tight(j) ? j : -1);
    }
    complete_columns(few, many, u.data());
    BirkhoffPeeling().solve(many, few, u.data(), tol, out);
    if (few < many) out.merge_equal(many, few);
    if (across) {
      const std::vector<int32_t> codes = out.codes;
      out.codes.assign(static_cast<size_t>(out.size() * many), -1);
      for (int64_t k = 0; k < out.size(); ++k)
        for (int64_t i = 0; i < few; ++i) out.codes[k * many + codes[k * few + i]] = static_cast<int32_t>(i);
    }
    return true;
  }

 private:
  int min_side_, max_side_, width_;
  WorkspaceOf<Num> scores_;  // of the fewer, padded with −inf
  WorkspaceOf<Num> price_, open_, key_, profit_, reached_;
  std::vector<int64_t> previous_row_;
  std::vector<int> column_of_, row_of_, free_, closed_;

  // Rows below for what columns lack to one.
  static void complete_columns(int64_t rows, int64_t columns, double* u) {
    for (int64_t j = 0; j < columns; ++j) {
      double sum = 0;
      for (int64_t i = 0; i < rows; ++i) sum += u[i * columns + j];
      for (int64_t i = rows; i < columns; ++i)
        u[i * columns + j] = std::max(1 - sum, 0.0) / static_cast<double>(columns - rows);
    }
  }

  void reset_prices() {
    for (int j = 0; j < width_; ++j) price_[j] = 0;
  }

  void read_scores(const Num* scores) {
    for (int r = 0; r < min_side_; ++r) {
      Num* row = scores_.data() + static_cast<int64_t>(r) * width_;
      if (rows_ <= columns_)
        std::copy_n(scores + static_cast<int64_t>(r) * max_side_, max_side_, row);
      else
        for (int c = 0; c < max_side_; ++c) row[c] = scores[static_cast<int64_t>(c) * min_side_ + r];
      for (int c = max_side_; c < width_; ++c) row[c] = kNone;
    }
  }

  // The profit of each column to the row, its score less its price; returns the largest.
  Num compute_profits(int row) {
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
    for (int j = 0; j < max_side_; ++j) row_of_[j] = -1;
    int num_free = 0;
    for (int i = 0; i < min_side_; ++i) {
      const Num best = compute_profits(i);
      if (best == kNone) return false;
      const int j = first_equal(profit_.data(), width_, best);
      if (row_of_[j] < 0)
        row_of_[j] = i, column_of_[i] = j;
      else
        free_[num_free++] = i;
    }
    num_free = reduce_rows(num_free);
    for (int k = 0; k < num_free; ++k)
      if (!augment(free_[k])) return false;
    return true;
  }

  // Augmenting row reduction. A free row takes its best column from the row that had it, and the column's price
  // grows by what it is better than the second. The number of bids is limited, since augmenting paths match the
  // other rows. Returns how many rows are still free.
  int reduce_rows(int num_free) {
    int left = 0, bids = 2 * num_free + min_side_;
    for (int k = 0; k < num_free; ++k) {
      for (int i = free_[k];;) {
        const Num best = compute_profits(i);
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

  // Matches one more row along the shortest augmenting path; keys are the negative lengths of paths.
  bool augment(int start) {
    for (int j = 0; j < width_; j += kLanes<Num>) {
      store<Num>(open_.data() + j, load<Num>(price_.data() + j));
      store<Num>(key_.data() + j, splat<Num>(kNone));
    }
    int closed = 0, i = start, j;
    Num offset = 0, best;
    for (;;) {
      best = relax(i, offset);
      if (best == kNone) return false;
      j = first_equal(key_.data(), width_, best);
      if (row_of_[j] < 0) break;
      closed_[closed++] = j;
      reached_[j] = best;
      key_[j] = kNone;
      open_[j] = kInf<double>;
      i = row_of_[j];
      offset = best - (scores_[static_cast<int64_t>(i) * width_ + j] - price_[j]);
    }
    for (int k = 0; k < closed; ++k) price_[closed_[k]] += reached_[closed_[k]] - best;
    do {
      i = static_cast<int>(previous_row_[j]);
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
      VecInt<Num> previous;
      std::memcpy(&previous, previous_row_.data() + j, sizeof previous);
      previous = offer > key ? from : previous;
      std::memcpy(previous_row_.data() + j, &previous, sizeof previous);
      key = max<Num>(key, offer);
      store<Num>(key_.data() + j, key);
      top = max<Num>(top, key);
    }
    return reduce_max(top);
  }
};

}  // namespace fenchel
