// SparseMAP of sequences as a flow of one unit through the positions, by an interior point method.
//
// The flow on edge (a, b) between positions i and i + 1 is v, and through tag a of position i it is u. With
// potentials α of the outflow of a tag, β of its inflow, and λ of the whole unit, the conditions of optimality are
//   u = scores + α + β (− λ at the first position),   s = α + β − transitions ≥ 0,   v ≥ 0,   v s = 0
// and u = Σ v over the edges out of a tag, and over those into it. Newton's steps for v s = μ, μ falling to zero,
// have a block tridiagonal system in α and β.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "simd.hpp"

namespace fenchel {

// Scores of tags (length, tags) and of edges (length − 1, tags, tags), at most zero, −inf where there is no edge.
// Every other edge is on a path from the first position to the last.
struct FlowProblem {
  int64_t length, tags;
  std::vector<double> scores, edges;

  const double* edge(int64_t i, int64_t a) const { return edges.data() + (i * tags + a) * tags; }
};

class FlowInteriorPoint {
 public:
  explicit FlowInteriorPoint(const FlowProblem& problem)
      : problem_(problem), n_(problem.length), k_(problem.tags), width_(padded<double>(k_)),
        layers_(n_ - 1), blocks_(2 * layers_) {
    const auto edges = static_cast<size_t>(layers_ * k_ * width_);
    for (auto* x : {&v_, &s_, &ratio_, &dv_, &ds_, &target_}) x->assign(edges, 0.0);
    for (auto* x : {&x_, &dx_, &border_, &right_}) x->assign(static_cast<size_t>(blocks_ * width_), 0.0);
    upper_.assign(static_cast<size_t>(blocks_ * k_ * width_), 0.0);
    coupling_.assign(upper_.size(), 0.0);
    u_.assign(static_cast<size_t>(n_ * width_), 0.0);
    start();
  }

  // One step. False if rounding allows no more.
  bool step() {
    factorize();
    for (int64_t a = 0; a < k_; ++a) border_[a] = 1;
    std::fill(border_.begin() + k_, border_.end(), 0.0);
    solve(border_.data());
    const double now = complementarity() / count_;
    find_direction(0);
    const double far = step_length();
    double after = 0;
    for_each_edge([&](int64_t e) { after += (v_[e] + far * dv_[e]) * (s_[e] + far * ds_[e]); });
    const double share = std::max(after / count_ / now, 0.0);
    for_each_edge([&](int64_t e) { target_[e] = -dv_[e] * ds_[e]; });
    find_direction(share * share * share * now);
    const double length = 0.995 * step_length();
    if (!(length > kMinStep) || !std::isfinite(dlambda_)) return false;
    for_each_edge([&](int64_t e) { v_[e] += length * dv_[e], s_[e] += length * ds_[e]; });
    for (size_t j = 0; j < x_.size(); ++j) x_[j] += length * dx_[j];
    lambda_ += length * dlambda_;
    std::fill(target_.begin(), target_.end(), 0.0);
    set_marginals();
    return true;
  }

  // Σ v s: the duality gap, as far as the flow is one.
  double complementarity() const {
    double sum = 0;
    for_each_edge([&](int64_t e) { sum += v_[e] * s_[e]; });
    return sum;
  }

  double flow(int64_t i, int64_t a, int64_t b) const { return v_[(i * k_ + a) * width_ + b]; }
  double marginal(int64_t i, int64_t a) const { return u_[i * width_ + a]; }
  double slack(int64_t i, int64_t a, int64_t b) const { return s_[(i * k_ + a) * width_ + b]; }

 private:
  // f(i, a, where the edges from tag a of position i start)
  template <class F>
  void for_each_row(F f) const {
    for (int64_t i = 0; i < layers_; ++i)
      for (int64_t a = 0; a < k_; ++a) f(i, a, (i * k_ + a) * width_);
  }
  template <class F>
  void for_each_in(int64_t i, int64_t a, F f) const {
    const double* scores = problem_.edge(i, a);
    for (int64_t b = 0; b < k_; ++b)
      if (scores[b] > -kInf<double>) f(b);
  }
  template <class F>
  void for_each_edge(F f) const {
    for_each_row([&](int64_t i, int64_t a, int64_t row) { for_each_in(i, a, [&](int64_t b) { f(row + b); }); });
  }
  double* alpha(std::vector<double>& x, int64_t i) const { return x.data() + 2 * i * width_; }
  double* beta(std::vector<double>& x, int64_t i) const { return x.data() + (2 * i - 1) * width_; }

  // From the flow that parts equally at each tag, with potentials for which it has these marginals. Scores are at
  // most zero, so that s is positive.
  void start() {
    std::vector<double> flow(static_cast<size_t>(n_ * k_));
    const auto degree = [&](int64_t i, int64_t a) {
      const double* scores = problem_.edge(i, a);
      return static_cast<double>(k_ - std::count(scores, scores + k_, -kInf<double>));
    };
    double starts = 0;
    for (int64_t a = 0; a < k_; ++a) starts += degree(0, a) > 0;
    for (int64_t a = 0; a < k_; ++a) flow[a] = degree(0, a) > 0 ? 1 / starts : 0;
    for_each_row([&](int64_t i, int64_t a, int64_t row) {
      const double share = flow[i * k_ + a] / std::max(degree(i, a), 1.0);
      for_each_in(i, a, [&](int64_t b) { v_[row + b] = share, flow[(i + 1) * k_ + b] += share; });
    });
    for (int64_t a = 0; a < k_; ++a) alpha(x_, 0)[a] = flow[a] - problem_.scores[a];
    for (int64_t i = 1; i < n_; ++i)
      for (int64_t a = 0; a < k_; ++a) beta(x_, i)[a] = flow[i * k_ + a] - problem_.scores[i * k_ + a];
    count_ = 0;
    for_each_row([&](int64_t i, int64_t a, int64_t row) {
      for_each_in(i, a, [&](int64_t b) {
        s_[row + b] = alpha(x_, i)[a] + beta(x_, i + 1)[b] - problem_.edge(i, a)[b];
        ++count_;
      });
    });
    set_marginals();
  }

  void set_marginals() {
    for (int64_t i = 0; i < n_; ++i)
      for (int64_t a = 0; a < k_; ++a) {
        double u = problem_.scores[i * k_ + a];
        if (i + 1 < n_) u += alpha(x_, i)[a];
        u += i ? beta(x_, i)[a] : -lambda_;
        u_[i * width_ + a] = u;
      }
  }

  // The factor UᵀU of each diagonal block when those before are eliminated, and U⁻ᵀ times the block beside it. The
  // blocks are α₀, β₁, α₁, …; beside α stand ratios v / s, beside β the identity.
  void factorize() {
    for (int64_t e = 0; e < static_cast<int64_t>(v_.size()); ++e) ratio_[e] = s_[e] > 0 ? v_[e] / s_[e] : 0;
    std::vector<double> diagonal(static_cast<size_t>(blocks_ * width_), 1 + kRidge);
    for_each_row([&](int64_t i, int64_t a, int64_t row) {
      double *to = diagonal.data() + (2 * i + 1) * width_, sum = 0;
      for (int64_t b = 0; b < k_; ++b) sum += ratio_[row + b], to[b] += ratio_[row + b];
      diagonal[2 * i * width_ + a] += sum;
    });
    const int64_t size = k_ * width_;
    for (int64_t j = 0; j < blocks_; ++j) {
      double* block = upper_.data() + j * size;
      std::fill_n(block, size, 0.0);
      for (int64_t a = 0; a < k_; ++a) block[a * width_ + a] = diagonal[j * width_ + a];
      if (j)
        for (int64_t r = 0; r < k_; ++r) {
          const double* y = coupling_.data() + (j - 1) * size + r * width_;
          for (int64_t a = 0; a < k_; ++a)
            if (y[a] != 0) subtract(block + a * width_, y[a], y, a);
        }
      double* y = coupling_.data() + j * size;
      if (j % 2 == 0) {
        std::copy_n(ratio_.data() + j / 2 * size, size, y);
      } else {
        std::fill_n(y, size, 0.0);
        for (int64_t a = 0; a < k_; ++a) y[a * width_ + a] = 1;
      }
      for (int64_t a = 0; a < k_; ++a) {
        double* row = block + a * width_;
        const double inverse = 1 / std::sqrt(std::max(row[a], kRidge));
        for (int64_t b = a; b < width_; ++b) row[b] *= inverse;
        row[a] = inverse;
        for (int64_t b = 0; b < width_; ++b) y[a * width_ + b] *= inverse;
        for (int64_t c = a + 1; c < k_; ++c) {
          subtract(block + c * width_, row[c], row, c);
          if (row[c] != 0) subtract(y + c * width_, row[c], y + a * width_, 0);
        }
      }
    }
  }
  void subtract(double* to, double by, const double* from, int64_t first) const {
    for (int64_t b = first / kLanes<double> * kLanes<double>; b < width_; b += kLanes<double>)
      store(to + b, load(to + b) - by * load(from + b));
  }

  void solve(double* x) const {
    const int64_t size = k_ * width_;
    for (int64_t j = 0; j < blocks_; ++j) {
      double* xj = x + j * width_;
      if (j)
        for (int64_t r = 0; r < k_; ++r)
          subtract(xj, xj[r - width_], coupling_.data() + (j - 1) * size + r * width_, 0);
      for (int64_t a = 0; a < k_; ++a) {
        const double *row = upper_.data() + j * size + a * width_, value = xj[a] * row[a];
        for (int64_t c = a + 1; c < k_; ++c) xj[c] -= value * row[c];
        xj[a] = value;
      }
    }
    for (int64_t j = blocks_ - 1; j >= 0; --j) {
      double* xj = x + j * width_;
      if (j + 1 < blocks_)
        for (int64_t r = 0; r < k_; ++r) xj[r] -= dot(coupling_.data() + j * size + r * width_, xj + width_);
      for (int64_t a = k_ - 1; a >= 0; --a) {
        const double* row = upper_.data() + j * size + a * width_;
        double value = xj[a];
        for (int64_t c = a + 1; c < k_; ++c) value -= row[c] * xj[c];
        xj[a] = value * row[a];
      }
    }
  }
  double dot(const double* a, const double* b) const {
    Vec<double> sum{};
    for (int64_t j = 0; j < width_; j += kLanes<double>) sum += load(a + j) * load(b + j);
    return reduce(sum, [](auto p, auto q) { return p + q; });
  }

  // Towards v s = mu + target, target being what the product of the changes adds.
  void find_direction(double mu) {
    std::fill(right_.begin(), right_.end(), 0.0);
    for (int64_t i = 0; i < n_; ++i)
      for (int64_t a = 0; a < k_; ++a) {
        if (i + 1 < n_) alpha(right_, i)[a] = -u_[i * width_ + a];
        if (i) beta(right_, i)[a] = -u_[i * width_ + a];
      }
    for_each_row([&](int64_t i, int64_t a, int64_t row) {
      double *to = beta(right_, i + 1), sum = 0;
      for_each_in(i, a, [&](int64_t b) {
        const double flow = (mu + target_[row + b]) / s_[row + b];
        sum += flow, to[b] += flow;
      });
      alpha(right_, i)[a] += sum;
    });
    dx_ = right_;
    solve(dx_.data());
    double total = -1, moved = -static_cast<double>(k_);
    for (int64_t a = 0; a < k_; ++a) total += u_[a] + dx_[a], moved += border_[a];
    dlambda_ = -total / moved;
    for (size_t j = 0; j < dx_.size(); ++j) dx_[j] += dlambda_ * border_[j];
    for_each_row([&](int64_t i, int64_t a, int64_t row) {
      const double *in = beta(dx_, i + 1), out = alpha(dx_, i)[a];
      for_each_in(i, a, [&](int64_t b) {
        const int64_t e = row + b;
        ds_[e] = out + in[b];
        dv_[e] = (mu + target_[e]) / s_[e] - v_[e] - ratio_[e] * ds_[e];
      });
    });
  }

  // How far v and s stay positive, at most one.
  double step_length() const {
    double most = 0;
    for_each_edge([&](int64_t e) { most = std::max({most, -dv_[e] / v_[e], -ds_[e] / s_[e]}); });
    return most > 1 ? 1 / most : 1;
  }

  static constexpr double kRidge = 1e-13, kMinStep = 1e-8;

  const FlowProblem& problem_;
  int64_t n_, k_, width_, layers_, blocks_;
  double lambda_ = 0, dlambda_ = 0, count_ = 0;
  std::vector<double> u_, v_, s_, ratio_, dv_, ds_, target_;
  std::vector<double> x_, dx_, border_, right_, upper_, coupling_;
};

}  // namespace fenchel
