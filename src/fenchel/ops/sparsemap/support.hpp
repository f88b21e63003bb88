// A convex combination of structures, and the best weights for those it has.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "cholesky.hpp"

namespace fenchel {

// A structure is a row of the indices of its parts, −1 where a position has none, so that two
// structures share as many parts as their rows have equal entries. Behind these entries a row may
// carry others.
class Support {
 public:
  // Of structures with at most `parts` parts and `others` more numbers in their rows.
  void start(int64_t parts, int64_t others) {
    parts_ = parts;
    others_ = others;
    padded_ = padded<float>(parts);
    stride_ = padded<float>(padded_ + others);
    rows_.resize(static_cast<size_t>(capacity_ * stride_));
    clear();
  }
  void clear() {
    size_ = 0;
    factor_.clear();
    for (int64_t k = 0; k < capacity_; ++k) slot_[k] = static_cast<int32_t>(k);
  }

  int64_t size() const { return size_; }
  const int32_t* row(int64_t k) const { return rows_.data() + slot_[k] * stride_; }
  const int32_t* others(int64_t k) const { return row(k) + padded_; }
  double weight(int64_t k) const { return weights_[k]; }
  double score(int64_t k) const { return scores_[k]; }
  double count(int64_t k) const { return count_[k]; }
  double shared_with_next(int64_t k) const { return gram_[k]; }
  const Cholesky& factor() const { return factor_; }

  // The row of a structure that may be added next, to be filled.
  int32_t* next() {
    reserve(size_ + 1);
    int32_t* row = rows_.data() + slot_[size_] * stride_;
    std::fill(row + parts_, row + padded_, -1);
    return row;
  }
  int32_t* next_others() { return rows_.data() + slot_[size_] * stride_ + padded_; }

  // Counts the parts that the next structure shares with each; returns the place of its equal, or
  // −1.
  int64_t compare_next() {
    const int32_t* next = row(size_);
    const double own = shared(next, next);
    int64_t equal = -1;
    for (int64_t k = 0; k < size_; ++k) {
      gram_[k] = shared(next, row(k));
      if (gram_[k] == own && count_[k] == own && same_others(next, row(k))) equal = k;
    }
    count_[size_] = own;
    return equal;
  }

  // Adds the next structure, after `compare_next`, with its score and a weight. If it is an affine
  // combination of those here, weights move along it until one is zero, and that structure goes:
  // the marginals stay and the score does not fall.
  void add_next(double score, double weight) {
    scores_[size_] = score;
    weights_[size_] = weight;
    for (;;) {
      set_trial([&](int64_t k) { return gram_[k] + 1; });
      if (factor_.append(trial_.data(), count_[size_] + 1, score)) break;
      const int64_t gone = exchange_weights();
      if (gone == size_) return;
      factor_.erase(gone);
      const int32_t slot = slot_[gone];
      for (int64_t k = gone; k < size_; ++k) copy_from_next_place(k);
      slot_[size_] = slot;
      --size_;
    }
    ++size_;
  }

  // Adds the next structure, after `compare_next`, without a weight; false, and nothing added, if it is an affine
  // combination of those here.
  bool add_direction(double score) {
    scores_[size_] = score, weights_[size_] = 0;
    set_trial([&](int64_t k) { return gram_[k] + 1; });
    if (!factor_.append(trial_.data(), count_[size_] + 1, score)) return false;
    ++size_;
    return true;
  }
  // Drops what `add_direction` added behind the first structures.
  void keep_first(int64_t size) {
    while (size_ > size) factor_.erase(--size_);
  }
  // Gives the structures the weights of the best point of their affine hull, negative ones too; returns τ.
  double optimize_hull() {
    const double tau = 1 - factor_.solve_on_plane(trial_.data());
    std::copy_n(trial_.begin(), size_, weights_.begin());
    return tau;
  }
  // Takes off v, over all parts, what lies along the affine hull.
  void project_out(double* v) {
    set_trial([&](int64_t k) {
      double sum = 0;
      for (int64_t i = 0; i < parts_; ++i) sum += row(k)[i] < 0 ? 0 : v[row(k)[i]];
      return sum;
    });
    factor_.solve_along_plane(trial_.data());
    for (int64_t k = 0; k < size_; ++k)
      for (int64_t i = 0; i < parts_; ++i)
        if (row(k)[i] >= 0) v[row(k)[i]] -= trial_[k];
  }

  // For methods that move weights one by one: adds the next structure without factorizing.
  void append_next(double score, double weight) {
    scores_[size_] = score, weights_[size_++] = weight;
  }
  void scale_weights(double by) {
    for (int64_t k = 0; k < size_; ++k) weights_[k] *= by;
  }
  void shift_weight(int64_t k, double by) { weights_[k] += by; }
  void remove_zeros() {
    for (int64_t k = size_; k-- > 0;)
      if (weights_[k] <= 0) remove(k);
  }
  // Keeps affinely independent structures alone, at the same marginals, and factorizes them.
  void keep_independent() {
    const int64_t held = size_;
    factor_.clear();
    size_ = 0;
    for (int64_t k = 0; k < held; ++k) {
      if (weights_[k] <= kZero) continue;
      const double score = scores_[k], weight = weights_[k];
      std::swap(slot_[size_], slot_[k]);
      compare_next();
      add_next(score, weight);
    }
  }

  // Gives the structures their best weights and drops those that get none; returns the threshold
  // τ: each structure's score, less its overlap with the marginals, is τ.
  double optimize() {
    for (;;) {
      const double tau = 1 - factor_.solve_on_plane(trial_.data());
      double step = 1;
      int64_t blocked = -1;
      for (int64_t k = 0; k < size_; ++k) {
        if (trial_[k] > kZero) continue;
        const double bound = weights_[k] / std::max(weights_[k] - trial_[k], kZero);
        if (bound < step || blocked < 0) step = std::min(step, bound), blocked = k;
      }
      if (blocked < 0 || size_ == 1) {
        std::copy_n(trial_.begin(), size_, weights_.begin());
        return tau;
      }
      for (int64_t k = 0; k < size_; ++k) weights_[k] += step * (trial_[k] - weights_[k]);
      weights_[blocked] = 0;
      for (int64_t k = size_; k-- > 0;)
        if (weights_[k] <= kZero) factor_.erase(k), remove(k);
    }
  }

  // Adds the marginals to u.
  void add_marginals(double* u) const {
    for (int64_t k = 0; k < size_; ++k) {
      const int32_t* parts = row(k);
      const double weight = weights_[k];
      for (int64_t i = 0; i < parts_; ++i)
        if (parts[i] >= 0) u[parts[i]] += weight;
    }
  }

  double mean_score() const {
    double sum = 0;
    for (int64_t k = 0; k < size_; ++k) sum += weights_[k] * scores_[k];
    return sum;
  }

  // Factorizes anew what updates have made inexact.
  void refactor() {
    const int64_t size = size_;
    factor_.clear();
    for (size_ = 0; size_ < size; ++size_) {
      set_trial([&](int64_t k) { return shared(row(size_), row(k)) + 1; });
      factor_.append(trial_.data(), count_[size_] + 1, scores_[size_]);
    }
  }

 private:
  static constexpr double kZero = 1e-13;

  double shared(const int32_t* a, const int32_t* b) const {
#if defined(__AVX512F__)
    int count = 0;
    for (int64_t i = 0; i < padded_; i += 16) {
      const __m512i x = _mm512_loadu_si512(a + i), y = _mm512_loadu_si512(b + i);
      const __mmask16 there = _mm512_cmpge_epi32_mask(x, _mm512_setzero_si512());
      count += __builtin_popcount(_mm512_mask_cmpeq_epi32_mask(there, x, y));
    }
    return count;
#else
    VecInt<float> count{};
    for (int64_t i = 0; i < padded_; i += kLanes<float>) {
      VecInt<float> x, y;
      std::memcpy(&x, a + i, sizeof x);
      std::memcpy(&y, b + i, sizeof y);
      count -= (x == y) & (x >= 0);
    }
    return reduce(count, [](auto m, auto n) { return m + n; });
#endif
  }

  bool same_others(const int32_t* a, const int32_t* b) const {
    return std::equal(a + padded_, a + padded_ + others_, b + padded_);
  }

  template <class F>
  void set_trial(F f) {
    const int64_t end = padded<double>(size_);
    for (int64_t k = 0; k < size_; ++k) trial_[k] = f(k);
    for (int64_t k = size_; k < end; ++k) trial_[k] = 0;
  }

  // Moves weights between the next structure and those whose combination it is; returns which one
  // is left without any.
  int64_t exchange_weights() {
    factor_.backward(trial_.data());  // next = Σ trial_k structure_k, with Σ trial_k = 1
    double gain = scores_[size_];
    for (int64_t k = 0; k < size_; ++k) gain -= trial_[k] * scores_[k];
    const double sign = gain >= 0 ? 1 : -1;
    double step = sign > 0 ? std::numeric_limits<double>::infinity() : weights_[size_];
    int64_t gone = size_;
    for (int64_t k = 0; k < size_; ++k) {
      const double fall = sign * trial_[k];
      if (fall > kZero && weights_[k] < step * fall) step = weights_[k] / fall, gone = k;
    }
    for (int64_t k = 0; k < size_; ++k) weights_[k] -= sign * step * trial_[k];
    weights_[size_] += sign * step;
    return gone;
  }

  void remove(int64_t k) {
    const int32_t slot = slot_[k];
    for (--size_; k < size_; ++k) copy_from_next_place(k);
    slot_[size_] = slot;
  }

  void copy_from_next_place(int64_t k) {
    slot_[k] = slot_[k + 1], weights_[k] = weights_[k + 1], scores_[k] = scores_[k + 1];
    count_[k] = count_[k + 1], gram_[k] = gram_[k + 1];
  }

  void reserve(int64_t size) {
    if (size < capacity_) return;
    factor_.reserve(size + 1);
    const int64_t capacity = factor_.capacity();
    rows_.resize(static_cast<size_t>(capacity * stride_));
    slot_.resize(capacity);
    for (int64_t k = capacity_; k < capacity; ++k) slot_[k] = static_cast<int32_t>(k);
    for (auto* values : {&weights_, &scores_, &count_, &gram_, &trial_}) values->resize(capacity);
    capacity_ = capacity;
  }

  int64_t parts_ = 0, others_ = 0, padded_ = 0, stride_ = 0, size_ = 0, capacity_ = 0;
  std::vector<int32_t> rows_, slot_;
  std::vector<double> weights_, scores_, count_, gram_, trial_;
  Cholesky factor_;
};

}  // namespace fenchel
