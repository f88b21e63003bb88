// α-entmax: y_i = [s − (α−1)Δ_i]₊^(1/(α−1)), Δ_i the distance below the largest score, with the one
// unknown s set so that y sums to one. For α > 1 only entries with (α−1)Δ < 1 can be in the support.
#include "columns.hpp"
#include "state.hpp"

namespace fenchel {
namespace {

template <class T>
FENCHEL_INLINE Root softmax_row(const T* x, T* y, int64_t d, T top) {
  double total = 0, weighted = 0;
  for (int64_t start = 0; start < d; start += kBlock<T>) {
    int64_t n = d - start < kBlock<T> ? d - start : kBlock<T>;
    Vec<T> mass = {}, moment = {};
    each_vector<T>(x + start, n, -kInf<T>, [&](Vec<T> v, int64_t i, int64_t count) {
      Vec<T> t = v - top;
      Vec<T> e = exp<T>(t);
      mass += e;
      moment += e > T(0) ? e * t : Vec<T>{};
      store_some<T>(y + start + i, e, count);
    });
    total += sum<T>(mass);
    weighted -= sum<T>(moment);
  }
  if constexpr (sizeof(T) == 8) total = compensated_sum(y, d);
  T scale = static_cast<T>(1 / total);
  each_vector<T>(y, d, T(0), [&](Vec<T> v, int64_t i, int64_t count) {
    store_some<T>(y + i, v * scale, count);
  });
  return {-std::log(total), 0, weighted / total};
}

// 1 < α ≤ 2
template <class T>
FENCHEL_INLINE Root sparse_root(Candidates<T>& near, double alpha, double s) {
  if (alpha == 2) return linear_root(near, s);
  if (alpha == 1.5) return quadratic_root(near, s);
  double r = 1 / (alpha - 1);
  return precise_power_root(near, alpha - 1, r, r, s);
}

// max_Ω from the largest score and the root, of which at α = 1 the logarithm of the largest entry is kept.
template <class T>
FENCHEL_INLINE double value(T top, const Root& root, double alpha) {
  double rise = root.rise + root.rest, peak_loss = alpha == 1 ? -rise : -rise / (alpha - 1);
  return top + (peak_loss - (alpha - 1) * root.mean_distance) / alpha;
}

// Where the answers go: y or the states, and the values if they are asked for.
template <class T>
struct Outputs {
  T* y;
  double* maxima;
  State* state;

  // x holds the row's n candidates.
  FENCHEL_INLINE void conclude(const T* x, int64_t n, int64_t row, double alpha, T top,
                               const Root& root) const {
    if (maxima) maxima[row] = value(top, root, alpha);
    if (!state) return;
    State at = {top, root.rise, root.rest, 1};
    if (alpha == 1)
      at = {top, 0, 0, std::exp(root.rise)};
    else
      at.share = 1 / total_weight(x, n, alpha, at);
    state[row] = at;
  }
};

// Solves the rows that wait side by side, and writes them.
template <class T>
FENCHEL_INLINE void flush(Columns<T>& waiting, double alpha, const T* scores, int64_t d,
                          const Outputs<T>& out) {
  double r = 1 / (alpha - 1);
  waiting.pad(static_cast<T>(4 * r));
  column_roots(waiting, alpha - 1, r);
  for (int lane = 0; lane < kLanes<T>; ++lane) {
    int64_t row = waiting.row[lane];
    if (row < 0) break;
    const int64_t count = waiting.count[lane];
    const int32_t* index = waiting.index.get() + lane * Columns<T>::kLongest;
    T candidates[Columns<T>::kLongest];
    if (out.y) {
      T* y = out.y + row * d;
      std::memset(y, 0, static_cast<size_t>(d) * sizeof(T));
      for (int64_t j = 0; j < count; ++j) y[index[j]] = waiting.power[j * kLanes<T> + lane];
    } else {
      for (int64_t j = 0; j < count; ++j) candidates[j] = scores[row * d + index[j]];
    }
    Root root = {waiting.rise[lane], waiting.rest[lane], waiting.mean_distance[lane]};
    out.conclude(candidates, count, row, alpha, waiting.top[lane], root);
  }
  waiting.filled = 0;
  waiting.longest = 0;
}

template <class T>
FENCHEL_INLINE void entmax_rows(const T* scores, const double* alphas, int64_t alpha_step,
                                int64_t rows, int64_t first, int64_t last, int64_t d,
                                const Outputs<T>& out) {
  Candidates<T> near(d);
  Columns<T> waiting;  // rows with the same α
  double waiting_alpha = 0;
  std::unique_ptr<double[]> sorted;
  auto has_neighbour = [&](int64_t row, double alpha) {
    return (row > 0 && alphas[row - 1] == alpha) || (row + 1 < rows && alphas[row + 1] == alpha);
  };
  for (int64_t row = first; row < last; ++row) {
    const T* x = scores + row * d;
    T* y = out.y ? out.y + row * d : nullptr;
    double alpha = alphas[row * alpha_step];
    Peaks<T> peak = peaks(x, d);
    if (!(alpha > 0 && alpha < kInf<double>)) peak.top = std::numeric_limits<T>::quiet_NaN();
    if (is_nonfinite(peak.top)) {
      T share = nonfinite_share(x, d, peak.top);
      if (y) write_nonfinite(x, d, peak.top, share, y);
      if (out.maxima) out.maxima[row] = peak.top;
      if (out.state) out.state[row] = {peak.top, 0, 0, share};
      continue;
    }
    if (alpha <= 1) {
      Root solved = alpha < 1 ? heavy_row(x, y, d, peak.top, alpha)
                    : y       ? softmax_row(x, y, d, peak.top)
                              : Root{-std::log(total_weight(x, d, 1, {peak.top, 0, 0, 1})), 0, 0};
      out.conclude(x, d, row, alpha, peak.top, solved);
      continue;
    }
    double r = 1 / (alpha - 1), s = upper_root(peak, alpha - 1, r);
    const T width = static_cast<T>(s * r), least = std::numeric_limits<T>::min();
    near.take(x, d, peak.top, width > least ? width : least);  // for any α it keeps the largest scores
    if (alpha > 2) {
      if (!sorted) sorted.reset(new double[d + 2 * kLanes<T>]);
      Pivot pivot = steep_root(near, alpha, sorted.get());
      if (out.state) out.state[row] = {pivot.score, pivot.entry, 0, 1};
      if (out.maxima) out.maxima[row] = value(peak.top, root_of(near, alpha), alpha);
      if (y) near.scatter(near.distance.get(), y);
    } else if (near.count <= Columns<T>::kLongest && (alpha_step == 0 || has_neighbour(row, alpha))) {
      if (waiting.filled && waiting_alpha != alpha) flush(waiting, waiting_alpha, scores, d, out);
      waiting_alpha = alpha;
      waiting.add(near, row, s);
      if (waiting.full()) flush(waiting, alpha, scores, d, out);
    } else {
      Root solved = sparse_root(near, alpha, s);
      if (y)
        near.scatter(near.distance.get(), y);
      else
        near.gather(x, near.scratch);
      out.conclude(near.scratch, near.count, row, alpha, peak.top, solved);
    }
  }
  if (waiting.filled) flush(waiting, waiting_alpha, scores, d, out);
}

// s = y^(2−α) on the support: the diagonal of the Jacobian before it is centred.
template <class T>
FENCHEL_INLINE Vec<T> curvature(Vec<T> y, T power) {
  if (power == 1) return y;
  if (power == T(0.5)) return sqrt<T>(y);
  Vec<T> one = splat<T>(1);
  if (power == 0) return y > 0 ? one : Vec<T>{};
  return fenchel::power<T>(y, power);
}

// The mean of v weighted by s(i), which also stores what it needs again, over vectors i of n entries.
template <class T, class F>
FENCHEL_INLINE T weighted_mean(const T* v, int64_t n, F s) {
  double mass = 0, moment = 0;
  for (int64_t start = 0; start < n; start += kBlock<T>) {
    int64_t stop = n - start < kBlock<T> ? n : start + kBlock<T>, i = start;
    Vec<T> m0[2] = {}, m1[2] = {};
    auto add = [&](Vec<T> weight, Vec<T> at, int way) {
      m0[way] += weight;
      m1[way] += weight > 0 ? weight * at : Vec<T>{};
    };
    for (; i + 2 * kLanes<T> <= stop; i += 2 * kLanes<T>)
      for (int way = 0; way < 2; ++way) {
        int64_t j = i + way * kLanes<T>;
        add(s(j, kLanes<T>), load<T>(v + j), way);
      }
    for (; i < stop; i += kLanes<T>) {
      int64_t count = stop - i < kLanes<T> ? stop - i : kLanes<T>;
      add(s(i, count), load_some<T>(v + i, count), 0);
    }
    mass += sum<T>(m0[0] + m0[1]);
    moment += sum<T>(m1[0] + m1[1]);
  }
  return mass > 0 ? static_cast<T>(moment / mass) : T(0);
}

// out = (diag(s) − s sᵀ/Σs) v, vector by vector
template <class T>
FENCHEL_INLINE void dense_jvp(const T* y, const T* v, int64_t d, T power, T* out) {
  const T* s = power == 1 ? y : out;
  auto given = [&](int64_t i, int64_t count) { return load_some<T>(y + i, count); };
  auto raised = [&](int64_t i, int64_t count) {
    Vec<T> weight = curvature<T>(given(i, count), power);
    store_some<T>(out + i, weight, count);
    return weight;
  };
  T mean = power == 1 ? weighted_mean(v, d, given) : weighted_mean(v, d, raised);
  each_vector<T>(v, d, T(0), [&](Vec<T> w, int64_t i, int64_t count) {
    Vec<T> weight = load_some<T>(s + i, count);
    store_some<T>(out + i, weight > 0 ? weight * (w - mean) : weight, count);
  });
}

// The same on the support alone, whose −y are the distances below zero.
template <class T>
FENCHEL_INLINE void sparse_jvp(Candidates<T>& support, const T* v, T power, T* out) {
  T *s = support.distance.get(), *w = support.scratch;
  support.gather(v, w);
  T mean = weighted_mean(w, support.count, [&](int64_t i, int64_t) {
    Vec<T> weight = curvature<T>(-load<T>(s + i), power);
    store<T>(s + i, weight);
    return weight;
  });
  for (int64_t i = 0; i < support.count; i += kLanes<T>)
    store<T>(w + i, load<T>(s + i) * (load<T>(w + i) - mean));
  support.scatter(w, out);
}

template <class T>
FENCHEL_INLINE void jvp_rows(const T* ys, const T* vs, const double* alphas, int64_t alpha_step,
                             int64_t first, int64_t last, int64_t d, T* outs) {
  Candidates<T> support(d);
  std::unique_ptr<double[]> wide;
  for (int64_t row = first; row < last; ++row) {
    const T *y = ys + row * d, *v = vs + row * d;
    T* out = outs + row * d;
    T power = static_cast<T>(2 - alphas[row * alpha_step]);
    if (power != 1) support.take(y, d, T(0), T(0));
    if (power < 0 && support.count) {
      if (!wide) wide.reset(new double[padded<T>(d)]);
      steep_jvp(support, v, alphas[row * alpha_step], wide.get(), out);
    } else if (power == 1 || 2 * support.count > d) {
      dense_jvp(y, v, d, power, out);
    } else {
      sparse_jvp(support, v, power, out);
    }
  }
}

template <class T>
int entmax(const T* scores, const double* alphas, int64_t alpha_step, int64_t rows, int64_t d,
           const Outputs<T>& out, int threads) {
  return parallel_rows(rows, d, threads, [&](int64_t first, int64_t last) {
    entmax_rows(scores, alphas, alpha_step, rows, first, last, d, out);
  });
}

template <class T>
int jvp(const T* y, const T* v, const double* alphas, int64_t alpha_step, int64_t rows, int64_t d,
        T* out, int threads) {
  return parallel_rows(rows, d, threads, [&](int64_t first, int64_t last) {
    jvp_rows(y, v, alphas, alpha_step, first, last, d, out);
  });
}

}  // namespace
}  // namespace fenchel

// alphas: one value for all rows (alpha_step 0) or one per row (alpha_step 1). maxima may be null.
#define FENCHEL_ENTMAX(suffix, T)                                                                  \
  FENCHEL_API int fenchel_entmax_##suffix(const T* scores, const double* alphas,                   \
                                          int64_t alpha_step, int64_t rows, int64_t d, T* y,       \
                                          double* maxima, int threads) {                           \
    return fenchel::entmax<T>(scores, alphas, alpha_step, rows, d, {y, maxima, nullptr}, threads); \
  }                                                                                                \
  FENCHEL_SIGNATURE(entmax_##suffix, "scores, alpha, alpha_step, rows, d, y, maxima, threads")     \
  FENCHEL_API int fenchel_entmax_state_##suffix(const T* scores, const double* alphas,             \
                                                int64_t alpha_step, int64_t rows, int64_t d,       \
                                                double* maxima, double* state, int threads) {      \
    auto states = reinterpret_cast<fenchel::State*>(state);                                        \
    return fenchel::entmax<T>(scores, alphas, alpha_step, rows, d, {nullptr, maxima, states},      \
                              threads);                                                            \
  }                                                                                                \
  FENCHEL_SIGNATURE(entmax_state_##suffix,                                                         \
                    "scores, alpha, alpha_step, rows, d, maxima, state, threads")                  \
  FENCHEL_API int fenchel_entmax_jvp_##suffix(const T* y, const T* v, const double* alphas,        \
                                              int64_t alpha_step, int64_t rows, int64_t d, T* out, \
                                              int threads) {                                       \
    return fenchel::jvp(y, v, alphas, alpha_step, rows, d, out, threads);                          \
  }                                                                                                \
  FENCHEL_SIGNATURE(entmax_jvp_##suffix, "y, v, alpha, alpha_step, rows, d, out, threads")
FENCHEL_ENTMAX(f32, float)
FENCHEL_ENTMAX(f64, double)
