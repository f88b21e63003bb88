// α > 2: y = u^(1/(α−1)) magnifies what u = s − (α−1)Δ rounds, without end where u is small. The unknown
// here is the smallest entry y_k of the support, at the pivot x_k, since the others follow from it without
// a difference of like numbers: y = (y_k^(α−1) + (α−1)(x − x_k))^(1/(α−1)).
#pragma once

#include <algorithm>
#include <functional>

#include "threshold.hpp"

namespace fenchel {

struct Pivot {
  double score, entry, power;  // x_k, y_k, y_k^(α−1)

  FENCHEL_INLINE Vec<double> entries(Vec<double> x, double alpha) const {
    Vec<double> above = (alpha - 1) * (x - score), u = above > 0 ? power + above : splat<double>(1);
    Vec<double> same = above == 0 ? splat<double>(entry) : Vec<double>{};
    return above > 0 ? fenchel::power(u, u - 1, 1 / (alpha - 1)) : same;
  }
};

// The sums over n scores of the entries, and of how fast they grow with y_k: (y_k/y)^(α−2).
FENCHEL_INLINE Masses weigh(const double* x, int64_t n, const Pivot& pivot, double alpha) {
  ExactSum<double> total;
  Vec<double> slope = {};
  each_vector<double>(x, n, -kInf<double>, [&](Vec<double> v, int64_t, int64_t) FENCHEL_LAMBDA {
    Vec<double> y = pivot.entries(v, alpha);
    total.add(y);
    slope += power<double>(pivot.entry / (y > 0 ? y : splat<double>(kInf<double>)), alpha - 2);
  });
  return {total.value(), sum<double>(slope)};
}

// The pivot of n scores in descending order. A score is in the support if the entries above it, were it
// the threshold, sum to less than one; that sum grows from score to score. Then it is convex in y_k, and
// Newton from the right goes down to the root.
inline Pivot pivot_of(const double* x, int64_t n, double alpha) {
  auto above = [&](int64_t k) { return weigh(x, k, {x[k], 0, 0}, alpha).total; };
  int64_t in = 0, out = n;
  while (out - in > 1) {
    int64_t middle = in + (out - in) / 2;
    (above(middle) < 1 ? in : out) = middle;
  }
  const int64_t size = in + 1;
  const auto ties = size - (std::lower_bound(x, x + size, x[in], std::greater<double>()) - x);
  const double rest = (1 - above(in)) / static_cast<double>(ties), equal = 1 / static_cast<double>(size);
  Pivot pivot = {x[in], rest < equal ? rest : equal, 0};
  for (int i = 0; i < kMaxSteps; ++i) {
    pivot.power = std::pow(pivot.entry, alpha - 1);
    Masses m = weigh(x, size, pivot, alpha);
    double next = pivot.entry - (m.total - 1) / m.moment;
    if (!(next < pivot.entry && next > std::numeric_limits<double>::min())) break;
    pivot.entry = next;
  }
  return pivot;
}

// What the value max_Ω needs of a row with values y at its candidates.
template <class T>
FENCHEL_INLINE Root root_of(const Candidates<T>& candidates, double alpha) {
  double peak = 0, mean_distance = 0;
  for (int64_t i = 0; i < candidates.count; ++i) {
    double y = candidates.distance[i];
    double delta = static_cast<double>(candidates.top) - candidates.row[candidates.index[i]];
    peak = y > peak ? y : peak;
    mean_distance += y * delta;
  }
  return {std::pow(peak, alpha - 1) - 1, 0, mean_distance};
}

// Turns the candidates' distances into the values of the answer; `sorted` has room for all of them.
template <class T>
FENCHEL_INLINE Pivot steep_root(Candidates<T>& candidates, double alpha, double* sorted) {
  for (int64_t i = 0; i < candidates.count; ++i) sorted[i] = candidates.row[candidates.index[i]];
  std::sort(sorted, sorted + candidates.count, std::greater<double>());
  Pivot pivot = pivot_of(sorted, candidates.count, alpha);
  const double share = 1 / weigh(sorted, candidates.count, pivot, alpha).total;
  for (int64_t i = 0; i < candidates.count; ++i) sorted[i] = candidates.row[candidates.index[i]];
  for (int64_t i = 0; i < candidates.count; i += kLanes<double>)
    narrow_store(candidates.distance.get() + i, pivot.entries(load<double>(sorted + i), alpha) * share);
  pivot.entry *= share;
  return pivot;
}

// out = (diag(s) − s sᵀ/Σs) v on the support, whose −y are the distances below zero, with s = y^(2−α). The
// smallest entry y_k has the largest s, which may be nearly all of Σs: then v_k would cancel with the mean.
// So v is taken relative to v_k, and s_k is divided out. `s` has room for the support.
template <class T>
FENCHEL_INLINE void steep_jvp(Candidates<T>& support, const T* v, double alpha, double* s, T* out) {
  T *below = support.distance.get(), *w = support.scratch;
  support.gather(v, w);
  const auto k = std::max_element(below, below + support.count) - below;
  const double inverse = std::pow(-static_cast<double>(below[k]), alpha - 2), shift = w[k];
  below[k] = 0;
  Vec<double> mass = {}, moment = {};
  for (int64_t i = 0; i < support.count; i += kLanes<double>) {
    Vec<double> weight = power<double>(-wide_load(below + i), 2 - alpha);
    mass += weight;
    moment += weight > 0 ? weight * (wide_load(w + i) - shift) : Vec<double>{};
    store<double>(s + i, weight);
  }
  const double least = sum<double>(moment) / (1 + inverse * sum<double>(mass)), mean = inverse * least;
  for (int64_t i = 0; i < support.count; i += kLanes<double>)
    narrow_store(w + i, load<double>(s + i) * (wide_load(w + i) - shift - mean));
  w[k] = static_cast<T>(-least);
  support.scatter(w, out);
}

}  // namespace fenchel
