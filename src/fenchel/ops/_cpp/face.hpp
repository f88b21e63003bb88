// The linear space of a face, and the projection onto it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace fenchel {

// Vectors over the parts that vanish off the face, and whose sum over each group is zero. `groups` is that of a
// Decomposition.
//
// The projection of x is x ∓ (α + β) on the face, with a number α for each group of the first kind and β for each of
// the second. The first are eliminated.
class Face {
 public:
  void set(const int32_t* groups, int64_t parts) {
    groups_ = groups, parts_ = parts, first_ = second_ = 0;
    for (int64_t p = 0; p < parts; ++p) {
      first_ = std::max<int64_t>(first_, groups[3 * p] + 1);
      second_ = std::max<int64_t>(second_, groups[3 * p + 1] + 1);
    }
    count_.assign(static_cast<size_t>(first_), 0.0);
    alpha_.resize(static_cast<size_t>(first_)), beta_.resize(static_cast<size_t>(second_));
    schur_.assign(static_cast<size_t>(second_ * second_), 0.0);
    pairs_.assign(static_cast<size_t>(first_ * second_), 0.0);  // how many parts two groups share
    for (int64_t p = 0; p < parts; ++p) {
      const int32_t a = groups[3 * p], b = groups[3 * p + 1];
      if (a < 0) continue;
      ++count_[a];
      if (b >= 0) ++pairs_[a * second_ + b], ++schur_[b * second_ + b];
    }
    for (int64_t a = 0; a < first_; ++a) {
      const double* row = pairs_.data() + a * second_;
      for (int64_t b = 0; b < second_; ++b) {
        if (row[b] == 0) continue;
        const double by = row[b] / count_[a];
        double* column = schur_.data() + b * second_;
#pragma omp simd
        for (int64_t c = b; c < second_; ++c) column[c] -= by * row[c];
      }
    }
    factorize();
  }

  void project(const double* x, double* out) {
    std::fill(alpha_.begin(), alpha_.end(), 0.0);
    std::fill(beta_.begin(), beta_.end(), 0.0);
    project_less(x, out);
  }
  // The same where the sums over groups are not zero but those given.
  void project(const double* x, const std::vector<double>& first, const std::vector<double>& second, double* out) {
    for (int64_t a = 0; a < first_; ++a) alpha_[a] = -first[a];
    for (int64_t b = 0; b < second_; ++b) beta_[b] = -second[b];
    project_less(x, out);
  }

 private:
  void project_less(const double* x, double* out) {
    for (int64_t p = 0; p < parts_; ++p) {
      const int32_t a = groups_[3 * p], b = groups_[3 * p + 1];
      if (a < 0) continue;
      const double value = sign(p) * x[p];
      alpha_[a] += value;
      if (b >= 0) beta_[b] += value;
    }
    for (int64_t a = 0; a < first_; ++a)
      if (count_[a] > 0)
        for (int64_t b = 0; b < second_; ++b) beta_[b] -= pairs_[a * second_ + b] / count_[a] * alpha_[a];
    solve();
    for (int64_t a = 0; a < first_; ++a) {
      for (int64_t b = 0; b < second_; ++b) alpha_[a] -= pairs_[a * second_ + b] * beta_[b];
      if (count_[a] > 0) alpha_[a] /= count_[a];
    }
    for (int64_t p = 0; p < parts_; ++p) {
      const int32_t a = groups_[3 * p], b = groups_[3 * p + 1];
      out[p] = a < 0 ? 0 : x[p] - sign(p) * (alpha_[a] + (b < 0 ? 0 : beta_[b]));
    }
  }

  // Sums of some groups follow from those of others. Their pivots are zero but for rounding, and so may be β.
  static constexpr double kSingular = 1e-10;

  double sign(int64_t p) const { return groups_[3 * p + 2] > 0 ? -1 : 1; }

  // Cholesky by columns, each up to the last row that any column before it reaches.
  void factorize() {
    ends_.resize(static_cast<size_t>(second_));
    int64_t end = 0;
    for (int64_t k = 0; k < second_; ++k) {
      double* column = schur_.data() + k * second_;
      int64_t reach = second_;
      while (reach > std::max(end, k + 1) && column[reach - 1] == 0) --reach;
      end = ends_[k] = reach;
      const double inverse = column[k] > kSingular ? 1 / std::sqrt(column[k]) : 0;
      column[k] = inverse;
      for (int64_t i = k + 1; i < end; ++i) column[i] *= inverse;
      for (int64_t j = k + 1; j < end; ++j) {
        double *other = schur_.data() + j * second_, by = column[j];
#pragma omp simd
        for (int64_t i = j; i < end; ++i) other[i] -= by * column[i];
      }
    }
  }
  void solve() {
    for (int64_t k = 0; k < second_; ++k) {
      const double *column = schur_.data() + k * second_, x = beta_[k] *= column[k];
      for (int64_t i = k + 1; i < ends_[k]; ++i) beta_[i] -= column[i] * x;
    }
    for (int64_t k = second_ - 1; k >= 0; --k) {
      const double* column = schur_.data() + k * second_;
      for (int64_t i = k + 1; i < ends_[k]; ++i) beta_[k] -= column[i] * beta_[i];
      beta_[k] *= column[k];
    }
  }

  const int32_t* groups_ = nullptr;
  int64_t parts_ = 0, first_ = 0, second_ = 0;
  std::vector<double> count_, pairs_, schur_, alpha_, beta_;
  std::vector<int64_t> ends_;
};

// Extra parts from parts, by the `links` of a Decomposition.
class Links {
 public:
  void set(const int32_t* links, int64_t count) { links_ = links, count_ = count; }

  // f(link, what it moves to its extra part)
  template <class F>
  void for_each(const double* parts, int64_t num_parts, F f) {
    slots_.resize(static_cast<size_t>(2 * num_parts));
    for (int64_t p = 0; p < num_parts; ++p) slots_[2 * p] = slots_[2 * p + 1] = parts[p];
    for (int64_t k = 0; k < count_; ++k) {
      const int32_t* link = links_ + 3 * k;
      if (link[0] < 0) continue;
      f(k, slots_[link[0]]);
      if (link[1] >= 0) slots_[link[1]] -= slots_[link[0]];
    }
  }
  // Adds to `extras` what the parts give.
  void apply(const double* parts, int64_t num_parts, double* extras) {
    for_each(parts, num_parts, [&](int64_t k, double value) { extras[links_[3 * k + 2]] += value; });
  }

  // The transposes: add to `parts` what f(link), or `extras`, give.
  template <class F>
  void apply_transposed_of(F f, int64_t num_parts, double* parts) {
    slots_.assign(static_cast<size_t>(2 * num_parts), 0.0);
    for (int64_t k = count_ - 1; k >= 0; --k) {
      const int32_t* link = links_ + 3 * k;
      if (link[0] < 0) continue;
      slots_[link[0]] += f(k) - (link[1] < 0 ? 0 : slots_[link[1]]);
    }
    for (int64_t p = 0; p < num_parts; ++p) parts[p] += slots_[2 * p] + slots_[2 * p + 1];
  }
  void apply_transposed(const double* extras, int64_t num_parts, double* parts) {
    apply_transposed_of([&](int64_t k) { return extras[links_[3 * k + 2]]; }, num_parts, parts);
  }

 private:
  const int32_t* links_ = nullptr;
  int64_t count_ = 0;
  std::vector<double> slots_;
};

}  // namespace fenchel
