// The Cholesky factor of a whole Gram matrix of structures, by blocks.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "simd.hpp"

namespace fenchel {

// L Lᵀ = MᵀM + 11ᵀ, by columns. A structure that is an affine combination of those before it has an infinite
// diagonal and nothing below, so that solutions are zero there.
class GramFactor {
 public:
  // `rows` has the indices of the parts of each structure, −1 for none.
  void set(const int32_t* rows, int64_t size, int64_t each) {
    size_ = size, least_ = kSingular * static_cast<double>(each + 1);
    stride_ = padded<double>(size) + kTall;  // not a power of two
    columns_.assign(static_cast<size_t>(stride_ * (size + kWide)), 0.0);
    for (int64_t j = 0; j < size; ++j)
      for (int64_t i = j; i < size; ++i) {
        const int32_t *a = rows + i * each, *b = rows + j * each;
        int32_t shared = 1;
#pragma omp simd reduction(+ : shared)
        for (int64_t p = 0; p < each; ++p) shared += (a[p] == b[p]) & (a[p] >= 0);
        column(j)[i] = shared;
      }
    for (int64_t j = 0; j < size; j += kBlock) {
      const int64_t end = std::min(j + kBlock, size);
      for (int64_t k = j; k < end; k += kWide) update(0, j, k);
      for (int64_t k = j; k < end; ++k) finish(j, k);
    }
  }

  const double* data() const { return columns_.data(); }
  int64_t stride() const { return stride_; }

 private:
  static constexpr int64_t kBlock = 32, kWide = 4, kTall = 2 * kLanes<double>;
  static constexpr double kSingular = 1e-8;  // entries are small integers

  double* column(int64_t j) { return columns_.data() + j * stride_; }

  // Subtracts what columns [first, last) give to the kWide columns from j on.
  void update(int64_t first, int64_t last, int64_t j) {
    for (int64_t i = j / kTall * kTall; i < size_; i += kTall) {
      Vec<double> sums[kWide][2] = {};
      for (int64_t k = first; k < last; ++k) {
        const double* l = column(k);
        const Vec<double> top = load(l + i), bottom = load(l + i + kLanes<double>);
        for (int64_t c = 0; c < kWide; ++c) sums[c][0] += l[j + c] * top, sums[c][1] += l[j + c] * bottom;
      }
      for (int64_t c = 0; c < kWide; ++c) {
        double* l = column(j + c) + i;
        store(l, load(l) - sums[c][0]);
        store(l + kLanes<double>, load(l + kLanes<double>) - sums[c][1]);
      }
    }
  }

  // Column j of its block, when all blocks before are subtracted.
  void finish(int64_t first, int64_t j) {
    double* l = column(j);
    for (int64_t k = first; k < j; ++k) {
      const double *other = column(k), by = other[j];
#pragma omp simd
      for (int64_t i = j; i < size_; ++i) l[i] -= by * other[i];
    }
    std::fill_n(l, j, 0.0);
    const bool regular = l[j] > least_;
    const double inverse = regular ? 1 / std::sqrt(l[j]) : 0;
    for (int64_t i = j + 1; i < size_; ++i) l[i] *= inverse;
    l[j] = regular ? 1 / inverse : std::numeric_limits<double>::infinity();
  }

  int64_t size_ = 0, stride_ = 0;
  double least_ = 0;  // of a pivot
  std::vector<double> columns_;
};

}  // namespace fenchel
