// The projection onto the doubly stochastic matrices, and its decomposition into matchings.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "decomposition.hpp"

namespace fenchel {

// u = max(scores − a_i − b_j, 0), with potentials for which rows sum to one, and columns do, too, or to at most one
// where there are more columns than rows. Then potentials of columns are not negative, and zero if the sum is less.
// They are the minimum of f = ½‖u‖² + Σ a + Σ b, by Newton's method. Its Hessian counts the nonzeros of u.
class BirkhoffProjection {
 public:
  // After at most kMaxSteps steps u may still be off; whoever needs to know computes the duality gap.
  void solve(int64_t rows, int64_t columns, const double* scores, double* u) {
    n_ = rows, m_ = columns, scores_ = scores, u_ = u;
    for (auto* v : {&a_, &row_gap_, &da_}) v->assign(static_cast<size_t>(n_), 0.0);
    for (auto* v : {&b_, &column_gap_, &db_}) v->assign(static_cast<size_t>(m_), 0.0);
    schur_.resize(static_cast<size_t>(m_ * m_));
    active_.reserve(static_cast<size_t>(m_));
    fit_rows();
    fit_columns();
    double value = evaluate(), last = std::numeric_limits<double>::infinity();
    bool falls = true;
    for (int step = 0; step < kMaxSteps; ++step) {
      const double error = find_sums();
      if (error <= kExact * static_cast<double>(m_) || !(falls || error < last / 2)) return;
      find_direction(std::max(kMinRidge, kRidge * error));
      const double next = search_line(value);
      falls = next < value;
      value = next, last = error;
    }
  }

  // Whether the sum of a column is fixed.
  bool is_tight(int64_t j) const { return n_ == m_ || b_[j] > 0; }

 private:
  static constexpr int kMaxSteps = 200, kMaxHalvings = 40;
  static constexpr double kExact = 1e-16, kRidge = 1e-3, kMinRidge = 1e-11;

  double bounded(double b) const { return n_ < m_ ? std::max(b, 0.0) : b; }

  // Potentials that give each row, or column, the sum one where the others stay.
  void fit_rows() {
    sorted_.resize(static_cast<size_t>(m_));
    for (int64_t i = 0; i < n_; ++i) {
      for (int64_t j = 0; j < m_; ++j) sorted_[j] = scores_[i * m_ + j] - b_[j];
      a_[i] = threshold();
    }
  }
  void fit_columns() {
    sorted_.resize(static_cast<size_t>(n_));
    for (int64_t j = 0; j < m_; ++j) {
      for (int64_t i = 0; i < n_; ++i) sorted_[i] = scores_[i * m_ + j] - a_[i];
      b_[j] = bounded(threshold());
    }
  }
  // The τ for which Σ max(sorted − τ, 0) = 1; −inf if nothing is finite.
  double threshold() {
    std::sort(sorted_.begin(), sorted_.end(), std::greater<double>());
    double sum = -1, tau = 0;
    for (size_t k = 0; k < sorted_.size(); ++k) {
      sum += sorted_[k];
      const double next = sum / static_cast<double>(k + 1);
      if (k && !(sorted_[k] > next)) break;
      tau = next;
    }
    return tau;
  }

  // Sets u and returns f.
  double evaluate() {
    double squares = 0, sums = 0;
    for (int64_t i = 0; i < n_; ++i) {
      const double *row = scores_ + i * m_, *b = b_.data(), ai = a_[i];
      double* u = u_ + i * m_;
#pragma omp simd reduction(+ : squares)
      for (int64_t j = 0; j < m_; ++j) {
        const double value = row[j] - ai - b[j];
        u[j] = value > 0 ? value : 0;
        squares += u[j] * u[j];
      }
      sums += ai;
    }
    for (const double b : b_) sums += b;
    return squares / 2 + sums;
  }

  // By how much the sums of rows and columns exceed one; returns the largest error.
  double find_sums() {
    std::fill(column_gap_.begin(), column_gap_.end(), -1.0);
    double error = 0;
    for (int64_t i = 0; i < n_; ++i) {
      double sum = -1;
      for (int64_t j = 0; j < m_; ++j) sum += u_[i * m_ + j], column_gap_[j] += u_[i * m_ + j];
      row_gap_[i] = sum;
      error = std::max(error, std::abs(sum));
    }
    for (int64_t j = 0; j < m_; ++j)
      if (is_moving(j)) error = std::max(error, std::abs(column_gap_[j]));
    return error;
  }
  bool is_moving(int64_t j) const { return is_tight(j) || column_gap_[j] > 0; }

  // Solves (H + ridge) (da, db) = (row_gap, column_gap), the rows eliminated, for potentials that move.
  void find_direction(double ridge) {
    std::fill(schur_.begin(), schur_.end(), 0.0);
    for (int64_t j = 0; j < m_; ++j) {
      db_[j] = is_moving(j) ? column_gap_[j] : 0;
      schur_[j * m_ + j] = is_moving(j) ? ridge : 1;
    }
    for (int64_t i = 0; i < n_; ++i) {
      const double inverse = 1 / (find_active(i) + ridge);
      for (const int32_t j : active_) {
        double* row = schur_.data() + j * m_;
        for (const int32_t k : active_) row[k] -= inverse;
        row[j] += 1;
        db_[j] -= inverse * row_gap_[i];
      }
    }
    solve_schur();
    for (int64_t i = 0; i < n_; ++i) {
      const double count = find_active(i);
      double sum = row_gap_[i];
      for (const int32_t j : active_) sum -= db_[j];
      da_[i] = sum / (count + ridge);
    }
  }
  // Lists the nonzeros of row i in columns that move; returns the number of all.
  double find_active(int64_t i) {
    active_.clear();
    int64_t count = 0;
    for (int64_t j = 0; j < m_; ++j) {
      if (!(u_[i * m_ + j] > 0)) continue;
      ++count;
      if (is_moving(j)) active_.push_back(static_cast<int32_t>(j));
    }
    return static_cast<double>(count);
  }

  // Cholesky by columns, in place. Potentials that rounding makes indefinite stay.
  void solve_schur() {
    double *s = schur_.data(), *x = db_.data();
    for (int64_t k = 0; k < m_; ++k) {
      double* column = s + k * m_;
      const double inverse = column[k] > 1e-13 ? 1 / std::sqrt(column[k]) : 0;
      column[k] = inverse;
      for (int64_t i = k + 1; i < m_; ++i) column[i] *= inverse;
      for (int64_t j = k + 1; j < m_; ++j) {
        double *other = s + j * m_, factor = column[j];
        if (factor == 0) continue;
#pragma omp simd
        for (int64_t i = j; i < m_; ++i) other[i] -= factor * column[i];
      }
      x[k] *= inverse;
      for (int64_t i = k + 1; i < m_; ++i) x[i] -= column[i] * x[k];
    }
    for (int64_t k = m_ - 1; k >= 0; --k) {
      const double* column = s + k * m_;
      for (int64_t i = k + 1; i < m_; ++i) x[k] -= column[i] * x[i];
      x[k] *= column[k];
    }
  }

  // Moves along the direction, within the bounds, as far as f falls enough, but for rounding, and sets u; returns f.
  double search_line(double value) {
    const std::vector<double> a = a_, b = b_;
    const double rounding = kExact * (std::abs(value) + static_cast<double>(m_));
    double step = 1;
    for (int k = 0; k < kMaxHalvings; ++k, step /= 2) {
      double fall = 0;
      for (int64_t i = 0; i < n_; ++i) a_[i] = a[i] + step * da_[i], fall += row_gap_[i] * (a_[i] - a[i]);
      for (int64_t j = 0; j < m_; ++j) b_[j] = bounded(b[j] + step * db_[j]), fall += column_gap_[j] * (b_[j] - b[j]);
      const double next = evaluate();
      if (next <= value - 1e-4 * fall + rounding) return next;
    }
    return value;
  }

  int64_t n_ = 0, m_ = 0;
  const double* scores_ = nullptr;
  double* u_ = nullptr;
  std::vector<double> a_, b_, row_gap_, column_gap_, da_, db_, sorted_, schur_;
  std::vector<int32_t> active_;
};

// Takes matchings off a matrix whose rows and columns have the same sums. Each is perfect among the entries of at
// least a threshold, and takes the smallest of its entries off all of them: so the first have the largest weights,
// what is left falls geometrically, and each makes an entry zero that the later ones do not have. If there is no
// perfect matching, the threshold falls.
class BirkhoffPeeling {
 public:
  // Until the matchings have a duality gap of at most `tol`, when only the first rows count.
  void solve(int64_t n, int64_t rows, const double* u, double tol, Decomposition& out) {
    n_ = n;
    remainder_.start(n, rows, u);
    u_ = remainder_.data();
    words_ = (n + 63) / 64;
    column_of_.assign(static_cast<size_t>(n), -1);
    row_of_.assign(static_cast<size_t>(n), -1);
    from_.resize(static_cast<size_t>(n)), queue_.resize(static_cast<size_t>(n));
    for (auto* bits : {&unseen_, &free_}) bits->resize(static_cast<size_t>(words_));
    set_threshold(*std::max_element(u, u + n * n) * kFall);
    while (!remainder_.is_negligible(out.size(), tol) && threshold_ > kNothing) {
      if (!match()) {
        set_threshold(threshold_ * kFall);
        continue;
      }
      double weight = std::numeric_limits<double>::infinity();
      for (int64_t i = 0; i < n; ++i) weight = std::min(weight, u_[i * n + column_of_[i]]);
      out.weights.push_back(weight);
      out.codes.insert(out.codes.end(), column_of_.begin(), column_of_.end());
      remainder_.take(weight);
      for (int64_t i = 0; i < n; ++i) take(i, column_of_[i], weight);
    }
  }

 private:
  static constexpr double kFall = 0.7, kNothing = 1e-17;
  using Bits = std::vector<uint64_t>;

  void set_threshold(double threshold) {
    threshold_ = threshold;
    allowed_.assign(static_cast<size_t>(n_ * words_), 0);
    for (int64_t i = 0; i < n_; ++i)
      for (int64_t j = 0; j < n_; ++j)
        if (u_[i * n_ + j] >= threshold) allowed_[i * words_ + j / 64] |= uint64_t{1} << (j % 64);
  }

  void take(int64_t i, int64_t j, double weight) {
    double& entry = u_[i * n_ + j];
    entry -= weight;
    if (entry >= threshold_) return;
    allowed_[i * words_ + j / 64] &= ~(uint64_t{1} << (j % 64));
    column_of_[i] = row_of_[j] = -1;
  }

  bool match() {
    std::fill(free_.begin(), free_.end(), 0);
    for (int64_t j = 0; j < n_; ++j)
      if (row_of_[j] < 0) free_[j / 64] |= uint64_t{1} << (j % 64);
    for (int64_t i = 0; i < n_; ++i)
      if (column_of_[i] < 0 && !augment(static_cast<int32_t>(i))) return false;
    return true;
  }

  // Matches row `start` along a shortest augmenting path.
  bool augment(int32_t start) {
    std::fill(unseen_.begin(), unseen_.end(), ~uint64_t{0});
    int64_t head = 0, tail = 0;
    queue_[tail++] = start;
    while (head < tail) {
      const int32_t i = queue_[head++];
      const uint64_t* allowed = allowed_.data() + i * words_;
      for (int64_t w = 0; w < words_; ++w)
        if (const uint64_t bits = allowed[w] & free_[w]) {
          const auto j = static_cast<int32_t>(64 * w + __builtin_ctzll(bits));
          free_[w] &= ~(bits & -bits);
          from_[j] = i;
          flip(j, start);
          return true;
        }
      for (int64_t w = 0; w < words_; ++w)
        for (uint64_t bits = allowed[w] & unseen_[w]; bits; bits &= bits - 1) {
          const auto j = static_cast<int32_t>(64 * w + __builtin_ctzll(bits));
          unseen_[w] &= ~(bits & -bits);
          from_[j] = i;
          queue_[tail++] = row_of_[j];
        }
    }
    return false;
  }
  void flip(int32_t j, int32_t start) {
    for (int32_t i;; ) {
      i = from_[j];
      row_of_[j] = i;
      std::swap(j, column_of_[i]);
      if (i == start) return;
    }
  }

  int64_t n_ = 0, words_ = 0;
  Remainder remainder_;
  double* u_ = nullptr;  // what is left
  double threshold_ = 0;
  Bits allowed_, unseen_, free_;
  std::vector<int32_t> column_of_, row_of_, from_, queue_;
};

}  // namespace fenchel
