// A convex combination of structures that are vectors of any numbers, and the best weights for those it has.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "simd.hpp"

namespace fenchel {

inline double inner(const double* a, const double* b, int64_t n) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

inline void add_multiple(double by, const double* x, double* to, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) to[i] += by * x[i];
}

// Rows a_k = Σ_j R_jk q_j with orthonormal q and an upper triangular R, kept by columns. So RᵀR is the Gram
// matrix of the rows, but R is as exact as the rows are: rows that differ little are told apart, as they are
// not by Cholesky's algorithm.
class OrthogonalFactor {
 public:
  double at(int64_t i, int64_t j) const { return r_[j * capacity_ + i]; }
  void clear() { size_ = solved_ = 0; }

  void reserve(int64_t capacity, int64_t width) {
    std::vector<double> r(static_cast<size_t>(capacity * capacity));
    for (int64_t j = 0; j < size_; ++j) std::copy_n(column(j), size_, r.data() + j * capacity);
    r_.swap(r);
    q_.resize(static_cast<size_t>(capacity * width));
    capacity_ = capacity, width_ = width;
    for (auto* values : {&p_, &ones_, &cosines_, &sines_}) values->resize(static_cast<size_t>(capacity));
  }

  // False, and nothing added, if the row is a combination of those here; then `x` gets its coefficients.
  bool append(const double* row, double* x) {
    double *r = column(size_), *v = q_.data() + size_ * width_;
    std::copy_n(row, width_, v);
    std::fill_n(r, size_, 0.0);
    const double length = norm(row);
    double rest = subtract_parts(v, r, x);
    if (rest < kClose * length) rest = subtract_parts(v, r, x);  // what rounding has left of them
    if (!(rest > kSingular * length)) {
      std::copy_n(r, size_, x);
      backward(x);
      return false;
    }
    for (int64_t i = 0; i < width_; ++i) v[i] /= rest;
    r[size_++] = rest;
    return true;
  }

  // Takes row k out: rotations make R triangular again.
  void erase(int64_t k) {
    for (int64_t c = k; c + 1 < size_; ++c) {
      double* to = column(c);
      std::copy_n(column(c + 1), c + 2, to);
      for (int64_t j = k; j < c; ++j) rotate(cosines_[j], sines_[j], to[j], to[j + 1]);
      const double length = std::hypot(to[c], to[c + 1]);
      const double cosine = cosines_[c] = to[c] / length, sine = sines_[c] = to[c + 1] / length;
      to[c] = length;
      double *a = q_.data() + c * width_, *b = a + width_;
#pragma omp simd
      for (int64_t i = 0; i < width_; ++i) {
        const double x = a[i], y = b[i];
        a[i] = cosine * x + sine * y, b[i] = cosine * y - sine * x;
      }
    }
    --size_;
    solved_ = std::min(solved_, k);
  }

  // x = A⁻¹ (b + c 1) for A = RᵀR, with the c for which x sums to one.
  void solve_on_plane(const double* b, double* x) {
    double *p = p_.data(), *q = ones_.data();
    for (; solved_ < size_; ++solved_) {
      const double *r = column(solved_), diagonal = r[solved_];
      p[solved_] = (b[solved_] - inner(r, p, solved_)) / diagonal;
      q[solved_] = (1 - inner(r, q, solved_)) / diagonal;
    }
    const double c = (1 - inner(p, q, size_)) / inner(q, q, size_);
    for (int64_t j = 0; j < size_; ++j) x[j] = p[j] + c * q[j];
    backward(x);
    const double total = std::accumulate(x, x + size_, 0.0);
    for (int64_t j = 0; j < size_; ++j) x[j] /= total;
  }

 private:
  static constexpr double kSingular = 1e-9, kClose = 0.1;

  double norm(const double* v) const { return std::sqrt(inner(v, v, width_)); }

  // Subtracts from v its part along each q, and adds their lengths to r; returns the norm of the rest.
  double subtract_parts(double* v, double* r, double* lengths) const {
    for (int64_t j = 0; j < size_; ++j) lengths[j] = inner(q(j), v, width_);
    for (int64_t j = 0; j < size_; ++j) add_multiple(-lengths[j], q(j), v, width_), r[j] += lengths[j];
    return norm(v);
  }

  double* column(int64_t j) { return r_.data() + j * capacity_; }
  const double* q(int64_t j) const { return q_.data() + j * width_; }

  static void rotate(double c, double s, double& x, double& y) {
    const double before = x;
    x = c * before + s * y, y = c * y - s * before;
  }

  // Solves R x = x.
  void backward(double* x) {
    for (int64_t j = size_; j-- > 0;) {
      x[j] /= column(j)[j];
      add_multiple(-x[j], column(j), x, j);
    }
  }

  int64_t size_ = 0, solved_ = 0, capacity_ = 0, width_ = 0;
  std::vector<double> q_, r_, p_, ones_, cosines_, sines_;
};

// A row has `features` numbers that count in the norm, a one behind them, which turns affine into linear
// independence, and `others` that do not count.
class DenseSupport {
 public:
  DenseSupport(int64_t features, int64_t others)
      : features_(features), width_(padded<double>(features + 1)), stride_(width_ + others) {}

  int64_t size() const { return size_; }
  int64_t width() const { return width_; }
  const double* row(int64_t k) const { return rows_.data() + slot_[k] * stride_; }
  const double* others(int64_t k) const { return row(k) + width_; }
  double weight(int64_t k) const { return weights_[k]; }
  double value(int64_t k) const { return values_[k]; }
  double factor(int64_t i, int64_t j) const { return factor_.at(i, j); }

  // The row of a structure that may be added next, to be filled.
  double* next() {
    reserve(size_ + 1);
    double* row = rows_.data() + slot_[size_] * stride_;
    row[features_] = 1;
    std::fill(row + features_ + 1, row + width_, 0.0);
    return row;
  }

  // The place of an equal of the next structure, or −1.
  int64_t find_next() const {
    for (int64_t k = 0; k < size_; ++k)
      if (std::equal(row(k), row(k) + stride_, row(size_))) return k;
    return -1;
  }

  // Adds the next structure. If it is an affine combination of those here, weights move along it until one is
  // zero, and that structure goes: marginals stay and the value does not fall.
  void add_next(double value, double weight) {
    while (!factor_.append(row(size_), trial_.data())) {
      const double gain = value - inner(trial_.data(), values_.data(), size_), sign = gain >= 0 ? 1 : -1;
      double step = kInf<double>;
      int64_t gone = -1;
      for (int64_t k = 0; k < size_; ++k) {
        const double fall = sign * trial_[k];
        if (fall > kZero && weights_[k] < step * fall) step = weights_[k] / fall, gone = k;
      }
      if (gone < 0 || (sign < 0 && weight <= step)) {
        for (int64_t k = 0; k < size_; ++k) weights_[k] += weight * trial_[k];
        return;
      }
      weight += sign * step;
      for (int64_t k = 0; k < size_; ++k) weights_[k] -= step * sign * trial_[k];
      factor_.erase(gone);
      remove(gone);
    }
    append_next(value, weight);
  }

  // For methods that move weights one by one: adds the next structure without factorizing.
  void append_next(double value, double weight) { values_[size_] = value, weights_[size_++] = weight; }
  void scale_weights(double by) {
    for (int64_t k = 0; k < size_; ++k) weights_[k] *= by;
  }
  void shift_weight(int64_t k, double by) { weights_[k] += by; }
  void remove_zeros() {
    for (int64_t k = size_; k-- > 0;)
      if (!(weights_[k] > 0)) remove(k);
  }
  double total_weight() const { return std::accumulate(weights_.begin(), weights_.begin() + size_, 0.0); }

  // Keeps affinely independent structures alone, at the same marginals, and factorizes them anew.
  void keep_independent() {
    const int64_t held = size_;
    factor_.clear();
    size_ = 0;
    for (int64_t k = 0; k < held; ++k) {
      if (!(weights_[k] > kZero)) continue;
      const double value = values_[k], weight = weights_[k];
      std::swap(slot_[size_], slot_[k]);
      add_next(value, weight);
    }
  }

  // Gives the structures their best weights, and drops those that get none.
  void optimize() {
    for (;;) {
      factor_.solve_on_plane(values_.data(), trial_.data());
      double step = 1;
      int64_t blocked = -1;
      for (int64_t k = 0; k < size_; ++k) {
        if (trial_[k] > kZero) continue;
        const double bound = weights_[k] / std::max(weights_[k] - trial_[k], kZero);
        if (bound < step || blocked < 0) step = std::min(step, bound), blocked = k;
      }
      if (blocked < 0 || size_ == 1) {
        std::copy_n(trial_.begin(), size_, weights_.begin());
        return;
      }
      for (int64_t k = 0; k < size_; ++k) weights_[k] += step * (trial_[k] - weights_[k]);
      weights_[blocked] = 0;
      for (int64_t k = size_; k-- > 0 && size_ > 1;)
        if (!(weights_[k] > kZero)) factor_.erase(k), remove(k);
    }
  }

  // The marginals of the features, zeros behind them.
  void marginals(double* u) const {
    std::fill_n(u, width_, 0.0);
    for (int64_t k = 0; k < size_; ++k) add_multiple(weights_[k], row(k), u, features_);
  }

  double mean_value() const { return inner(weights_.data(), values_.data(), size_); }

 private:
  static constexpr double kZero = 1e-13;

  // The next structure, behind the last, moves with the others.
  void remove(int64_t k) {
    const int32_t slot = slot_[k];
    for (; k < size_; ++k) slot_[k] = slot_[k + 1], weights_[k] = weights_[k + 1], values_[k] = values_[k + 1];
    slot_[size_--] = slot;
  }

  void reserve(int64_t size) {
    if (size < capacity_) return;
    const int64_t capacity = 2 * (size + 1);
    factor_.reserve(capacity, width_);
    rows_.resize(static_cast<size_t>(capacity * stride_));
    slot_.resize(static_cast<size_t>(capacity));
    std::iota(slot_.begin() + capacity_, slot_.end(), static_cast<int32_t>(capacity_));
    for (auto* values : {&weights_, &values_, &trial_}) values->resize(static_cast<size_t>(capacity));
    capacity_ = capacity;
  }

  int64_t features_, width_, stride_, size_ = 0, capacity_ = 0;
  std::vector<int32_t> slot_;
  std::vector<double> rows_, weights_, values_, trial_;
  OrthogonalFactor factor_;
};

}  // namespace fenchel
