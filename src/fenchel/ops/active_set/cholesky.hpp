// The Cholesky factor of a positive definite matrix that grows by a row and loses any row.
#pragma once

#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "simd.hpp"

namespace fenchel {

FENCHEL_INLINE double dot(const double* a, const double* b, int64_t n) {
  Vec<double> first{}, second{};
  int64_t i = 0;
  for (; i + 2 * kLanes<double> <= n; i += 2 * kLanes<double>) {
    first += load(a + i) * load(b + i);
    second += load(a + i + kLanes<double>) * load(b + i + kLanes<double>);
  }
  if (i + kLanes<double> <= n) {
    first += load(a + i) * load(b + i);
    i += kLanes<double>;
  }
  if (i < n) second += load_tail(a + i, n - i, 0.0) * load_tail(b + i, n - i, 0.0);
  return fold(first + second, [](auto x, auto y) { return x + y; });
}

// A = L Lᵀ by columns, with p = L⁻¹ b of one right side and q = L⁻¹ 1 kept beside it.
class Cholesky {
 public:
  int64_t size() const { return size_; }
  void clear() { size_ = 0; }
  const double* column(int64_t j) const { return columns_.data() + j * stride_; }

  // Solves L x = x.
  void forward(double* x) const {
    for (int64_t j = 0; j < size_; ++j) {
      const double* l = column(j);
      const double xj = x[j] *= inverse_[j];
#pragma omp simd
      for (int64_t i = j + 1; i < size_; ++i) x[i] -= xj * l[i];
    }
  }

  // Solves Lᵀ x = x.
  void backward(double* x) const {
    for (int64_t j = size_ - 1; j >= 0; --j) {
      const double* l = column(j) + j + 1;
      x[j] = (x[j] - dot(l, x + j + 1, size_ - 1 - j)) * inverse_[j];
    }
  }

  // Adds a row (a, diagonal) to A and an entry to b; false, and nothing added, if A would become
  // singular. Leaves L⁻¹ a in a.
  bool append(double* a, double diagonal, double b) {
    reserve(size_ + 1);
    forward(a);
    const double pivot = diagonal - dot(a, a, size_);
    if (!(pivot > kSingular * diagonal)) return false;
    const double root = std::sqrt(pivot), inverse = 1 / root;
    p_[size_] = (b - dot(a, p_.data(), size_)) * inverse;
    q_[size_] = (1 - dot(a, q_.data(), size_)) * inverse;
    for (int64_t j = 0; j < size_; ++j) columns_[j * stride_ + size_] = a[j];
    columns_[size_ * stride_ + size_] = root;
    inverse_[size_++] = inverse;
    return true;
  }

  // Takes row and column k out of A, and entry k out of b: rotations make L triangular again.
  void erase(int64_t k) {
    for (int64_t j = 0; j < k; ++j) {
      double* l = columns_.data() + j * stride_;
      std::memmove(l + k, l + k + 1, static_cast<size_t>(size_ - k - 1) * sizeof(double));
    }
    double* carry = columns_.data() + k * stride_;
    std::memcpy(carry_.data(), carry, static_cast<size_t>(size_) * sizeof(double));
    carry = carry_.data();
    double p = p_[k], q = q_[k];
    for (int64_t j = k + 1; j < size_; ++j) {
      const double* l = column(j);
      double* to = columns_.data() + (j - 1) * stride_ - 1;  // row i goes to row i − 1
      const double root = std::sqrt(l[j] * l[j] + carry[j] * carry[j]), inverse = 1 / root;
      const double c = l[j] * inverse, s = carry[j] * inverse;
      inverse_[j - 1] = inverse;
      to[j] = root;
#pragma omp simd
      for (int64_t i = j + 1; i < size_; ++i) {
        const double old = l[i];
        to[i] = c * old + s * carry[i];
        carry[i] = c * carry[i] - s * old;
      }
      p_[j - 1] = c * p_[j] + s * p;
      p = c * p - s * p_[j];
      q_[j - 1] = c * q_[j] + s * q;
      q = c * q - s * q_[j];
    }
    --size_;
  }

  // x = A⁻¹ (b + c 1) with the c for which x sums to one; returns c.
  double solve_on_plane(double* x) const {
    const double c =
        (1 - dot(p_.data(), q_.data(), size_)) / dot(q_.data(), q_.data(), size_);
    for (int64_t j = 0; j < size_; ++j) x[j] = p_[j] + c * q_[j];
    backward(x);
    return c;
  }

 private:
  static constexpr double kSingular = 1e-11;  // entries of A are small integers

  void reserve(int64_t size) {
    if (size <= stride_) return;
    const int64_t stride = padded<double>(2 * size);
    std::vector<double> columns(stride * stride);
    for (int64_t j = 0; j < size_; ++j)
      std::memcpy(columns.data() + j * stride, column(j), static_cast<size_t>(size_) * sizeof(double));
    columns_ = std::move(columns);
    stride_ = stride;
    inverse_.resize(stride), p_.resize(stride), q_.resize(stride), carry_.resize(stride);
  }

  int64_t size_ = 0, stride_ = 0;
  std::vector<double> columns_, inverse_, p_, q_, carry_;
};

}  // namespace fenchel
