// Rows with few candidates, solved in double side by side, one per lane: see columns.hpp for why. A lane stands still
// once it is solved, so a row's answer does not depend on its neighbours.
#pragma once

#include "threshold.hpp"

namespace fenchel {

// The equation Σ u^a = ‖u‖_q^(q−2) with a = q − 1, 1 < a < kSmallPower, of rows of floats.
class ShortRows {
 public:
  static constexpr int64_t kLongest = 32;

  ShortRows(double q, int64_t d, float* out) : q_(q), d_(d), out_(out) {}

  static bool takes(double a) { return a > 1 && a < kSmallPower; }

  void add(const Candidates<float>& candidates, int64_t row) {
    for (int64_t j = 0; j < candidates.count; ++j) {
      value_[j][filled_] = candidates.distance[j];
      index_[filled_][j] = candidates.index[j];
    }
    count_[filled_] = candidates.count;
    row_[filled_] = row;
    if (++filled_ == kLanes<double>) flush();
  }

  // Solves the rows that wait, and writes them.
  void flush() {
    if (filled_ == 0) return;
    longest_ = 0;
    for (int lane = 0; lane < kLanes<double>; ++lane) {
      if (lane >= filled_) count_[lane] = 1, value_[0][lane] = 0;
      longest_ = count_[lane] > longest_ ? count_[lane] : longest_;
    }
    for (int lane = 0; lane < kLanes<double>; ++lane)
      for (int64_t j = count_[lane]; j < longest_; ++j) value_[j][lane] = 2;  // out of reach
    const double a = q_ - 1;
    if (a == 2)
      solve([](Vec<double> u) FENCHEL_LAMBDA { return Powers<double>{u * u, u, {}}; });
    else
      solve([a](Vec<double> u) FENCHEL_LAMBDA {
        const Vec<double> at = power<double>(u, a);
        return Powers<double>{at, at / (u > 0 ? u : splat<double>(1)), {}};
      });
    for (int lane = 0; lane < filled_; ++lane) {
      float* y = out_ + row_[lane] * d_;
      std::memset(y, 0, static_cast<size_t>(d_) * sizeof(float));
      for (int64_t j = 0; j < count_[lane]; ++j) y[index_[lane][j]] = static_cast<float>(value_[j][lane]);
    }
    filled_ = 0;
  }

 private:
  // As squared_root_from, in the unknown x = −log s; raise(u) gives u^a and u^(a−1). Leaves y for the distances.
  template <class F>
  FENCHEL_INLINE void solve(F raise) {
    constexpr double kShort = 3e-5;  // a step's error is its square
    double most[kLanes<double>];
    for (int lane = 0; lane < kLanes<double>; ++lane) most[lane] = static_cast<double>(count_[lane]);
    Vec<double> x = {}, low = {}, high = 2 / q_ * log<double>(load<double>(most), Vec<double>{});
    Vec<double> last = high, before = 2 * last, open = splat<double>(1);
    for (int i = 0; i < kMaxSteps && reduce_max(open) > 0; ++i) {
      const Vec<double> s = exp<double>(-x);
      Vec<double> above = {}, at = {}, below = {};
      for (int64_t j = 0; j < longest_; ++j) {
        const Vec<double> u = max<double>(s - value_[j], Vec<double>{});
        const Powers<double> e = raise(u);
        above += e.at * u;
        at += e.at;
        below += e.below;
      }
      const Vec<double> f = log<double>(at, Vec<double>{}) - (q_ - 2) / q_ * log<double>(above, Vec<double>{});
      const Vec<double> step = f / (s * ((q_ - 1) * below / at - (q_ - 2) * at / above));
      low = f > 0 ? x : low;
      high = f > 0 ? high : x;
      Vec<double> next = x + step;
      const Vec<double> middle = low + (high - low) / 2, size = magnitude<double>(step);
      Vec<double> safe = next > low ? next : middle;
      safe = next < high ? safe : middle;
      safe = 2 * size > before ? middle : safe;
      next = size < kShort ? next : safe;
      Vec<double> moves = size < kShort ? Vec<double>{} : open;
      moves = next == low ? Vec<double>{} : moves;
      moves = next == high ? Vec<double>{} : moves;
      before = last;
      last = magnitude<double>(next - x);
      x = open > 0 ? next : x;
      open = moves;
    }
    const Vec<double> s = exp<double>(-x);
    Vec<double> total = {};
    for (int64_t j = 0; j < longest_; ++j) {
      value_[j] = raise(max<double>(s - value_[j], Vec<double>{})).at;
      total += value_[j];
    }
    const Vec<double> share = 1 / total;
    for (int64_t j = 0; j < longest_; ++j) value_[j] *= share;
  }

  const double q_;
  const int64_t d_;
  float* const out_;
  Vec<double> value_[kLongest];  // distances below the largest score, then y
  int32_t index_[kLanes<double>][kLongest];
  int64_t count_[kLanes<double>], row_[kLanes<double>], longest_ = 0;
  int filled_ = 0;
};

}  // namespace fenchel
