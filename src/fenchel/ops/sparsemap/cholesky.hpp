// The Cholesky factor of a positive definite matrix that grows by a row and loses any row.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "simd.hpp"

namespace fenchel {

constexpr int64_t kWide = kLanes<double>;

FENCHEL_INLINE double add_lanes(Vec<double> v) {
  return reduce(v, [](auto a, auto b) { return a + b; });
}

// Σ a_i b_i of whole vectors.
FENCHEL_INLINE double dot(const double* a, const double* b, int64_t n) {
  Vec<double> first{}, second{};
  int64_t i = 0;
  for (; i + 2 * kWide <= n; i += 2 * kWide) {
    first += load(a + i) * load(b + i);
    second += load(a + i + kWide) * load(b + i + kWide);
  }
  if (i < n) first += load(a + i) * load(b + i);
  return add_lanes(first + second);
}

// Triangular systems are solved by blocks of this many unknowns: one by one within a block, whose
// latency is that of scalars, and with whole vectors for the others.
constexpr int64_t kSide = 8;
static_assert(kSide % kWide == 0);

constexpr int64_t blocks(int64_t n) { return (n + kSide - 1) / kSide * kSide; }

// A = L Lᵀ, and p = L⁻¹ b of one right side and q = L⁻¹ 1 kept beside it. L is kept by columns: the
// diagonal by its inverse alone, and zeros above it, on it and behind the end, so that vectors may
// cover more than is meant. Vectors that are solved for have `capacity()` entries, finite ones
// behind the end.
class Cholesky {
 public:
  int64_t size() const { return size_; }
  int64_t capacity() const { return stride_; }

  void clear() {
    std::fill_n(columns_.begin(), size_ * stride_, 0.0);
    std::fill_n(p_.begin(), size_, 0.0);
    std::fill_n(q_.begin(), size_, 0.0);
    size_ = 0, pq_ = qq_ = 0;
  }

  void reserve(int64_t size) {
    if (size <= stride_) return;
    const int64_t stride = blocks(2 * size);
    std::vector<double> columns(static_cast<size_t>(stride * stride));
    for (int64_t j = 0; j < size_; ++j) std::copy_n(column(j), size_, columns.data() + j * stride);
    columns_.swap(columns);
    stride_ = stride;
    for (auto* values : {&inverse_, &p_, &q_, &carry_}) values->resize(static_cast<size_t>(stride));
  }

  // Column j of L, from its diagonal down.
  void copy_column(int64_t j, double* to) const {
    *to = 1 / inverse_[j];
    std::copy_n(column(j) + j + 1, size_ - j - 1, to + 1);
  }

  // Solves L x = x.
  void forward(double* x) const {
    for (int64_t b = 0; b < size_; b += kSide) {
      const int64_t top = std::min(b + kSide, size_);
      for (int64_t j = b; j < top; ++j) {
        const double *l = column(j), xj = x[j] *= inverse_[j];
        for (int64_t i = j + 1; i < top; ++i) x[i] -= xj * l[i];
      }
      for (int64_t i = b + kSide; i < size_; i += kWide) {
        Vec<double> xi = load(x + i);
        for (int64_t j = b; j < b + kSide; ++j) xi -= x[j] * load(column(j) + i);
        store(x + i, xi);
      }
    }
  }

  // Solves Lᵀ x = x.
  void backward(double* x) const {
    const int64_t end = padded<double>(size_);
    for (int64_t b = (size_ - 1) / kSide * kSide; b >= 0; b -= kSide) {
      const int64_t top = std::min(b + kSide, size_), rest = b + kSide;
      if (rest < size_)
        for (int64_t j = b; j < top; ++j) x[j] -= dot(column(j) + rest, x + rest, end - rest);
      for (int64_t j = top - 1; j >= b; --j) {
        const double* l = column(j);
        double xj = x[j];
        for (int64_t i = top - 1; i > j; --i) xj -= l[i] * x[i];  // the newest last
        x[j] = xj * inverse_[j];
      }
    }
  }

  // Adds a row (a, diagonal) to A and an entry to b; false, and nothing added, if A would become
  // singular. Leaves L⁻¹ a in a, which must be zero behind its end.
  bool append(double* a, double diagonal, double b) {
    const int64_t end = padded<double>(size_);
    forward(a);
    const double pivot = diagonal - dot(a, a, end);
    if (!(pivot > kSingular * diagonal)) return false;
    const double inverse = 1 / std::sqrt(pivot);
    p_[size_] = (b - dot(a, p_.data(), end)) * inverse;
    q_[size_] = (1 - dot(a, q_.data(), end)) * inverse;
    pq_ += p_[size_] * q_[size_];
    qq_ += q_[size_] * q_[size_];
    for (int64_t j = 0; j < size_; ++j) columns_[j * stride_ + size_] = a[j];
    inverse_[size_++] = inverse;
    return true;
  }

  // Takes row and column k out of A, and entry k out of b: rotations make L triangular again.
  void erase(int64_t k) {
    const int64_t last = size_ - 1;
    for (int64_t j = 0; j < k; ++j) {
      double* l = columns_.data() + j * stride_;
      std::memmove(l + k, l + k + 1, static_cast<size_t>(last - k) * sizeof(double));
      l[last] = 0;
    }
    double *carry = carry_.data(), p = p_[k], q = q_[k];
    std::copy_n(column(k), size_, carry);
    for (int64_t j = k + 1; j < size_; ++j) {
      const double* l = column(j);
      double* to = columns_.data() + (j - 1) * stride_ - 1;  // row i becomes row i − 1
      const double diagonal = 1 / inverse_[j];
      const double inverse = 1 / std::sqrt(diagonal * diagonal + carry[j] * carry[j]);
      const double c = diagonal * inverse, s = carry[j] * inverse;
      inverse_[j - 1] = inverse;
      to[j] = 0;
#pragma omp simd
      for (int64_t i = j + 1; i < size_; ++i) {
        const double old = l[i], carried = carry[i];
        to[i] = c * old + s * carried;
        carry[i] = c * carried - s * old;
      }
      to[size_] = 0;
      rotate(p_, j, c, s, p);
      rotate(q_, j, c, s, q);
    }
    p_[last] = q_[last] = 0;
    size_ = last;
    pq_ = dot(p_.data(), q_.data(), padded<double>(size_));
    qq_ = dot(q_.data(), q_.data(), padded<double>(size_));
  }

  // x = A⁻¹ (b + c 1) with the c for which x sums to one; returns c.
  double solve_on_plane(double* x) const {
    const double c = (1 - pq_) / qq_;
    for (int64_t j = 0; j < size_; j += kWide) store(x + j, load(&p_[j]) + c * load(&q_[j]));
    backward(x);
    return c;
  }

  // x = (A⁻¹ − A⁻¹11ᵀA⁻¹ / 1ᵀA⁻¹1) x, which sums to zero.
  void solve_along_plane(double* x) const {
    forward(x);
    const double shift = dot(x, q_.data(), padded<double>(size_)) / qq_;
    for (int64_t j = 0; j < size_; ++j) x[j] -= shift * q_[j];
    backward(x);
  }

 private:
  static constexpr double kSingular = 1e-11;  // entries of A are small integers

  const double* column(int64_t j) const { return columns_.data() + j * stride_; }

  static void rotate(std::vector<double>& x, int64_t j, double c, double s, double& carried) {
    const double old = x[j];
    x[j - 1] = c * old + s * carried;
    carried = c * carried - s * old;
  }

  int64_t size_ = 0, stride_ = 0;
  double pq_ = 0, qq_ = 0;
  std::vector<double> columns_, inverse_, p_, q_, carry_;
};

}  // namespace fenchel
