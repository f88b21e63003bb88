// What every MAP oracle is, and the batch over one.
//
// An oracle solves one instance at a time and keeps its working memory. A structure is a code: for each
// position the option it takes (tag, head, column, bit), −1 for none.
//
//   void resize(const int64_t* lengths)   the sizes of the next instance, null for the full ones; also
//                                         forgets all that was kept from other scores
//   Map(n, m, option)                     from the full sizes of the scores and the structure's option
//   int parts(), extras(), positions()    how many scores, extra scores, and positions
//   double argmax(scores, extra_scores, code)
//                                         the best structure's score; −inf, and a code of −1, if every
//                                         structure holds a part of score −inf. extra_scores may be null
//                                         for "as before". No score is NaN or +inf. It is a template over
//                                         the kind of number: doubles, or exact ones for large scores
//   int part(position, choice)            the score's index of that choice, −1 if it has none
//   void for_each_extra(code, f)          f(index) for each extra score of the structure
//   void gather(full, compact), scatter   between a tensor of the full sizes and scores of these
//   bool decompose(scores, extra_scores, tol, decomposition)
//                                         optional: SparseMAP at once, to a gap of about tol; false for
//                                         sizes that it does not know. Beside it, int64_t patience(): how
//                                         many rounds of the active set to try first
#pragma once

#include <cstring>
#include <memory>
#include <vector>

#include "exact.hpp"
#include "simd.hpp"

namespace fenchel {

constexpr double kNone = -kInf<double>;

template <class Num>
class WorkspaceOf {
 public:
  void resize(int64_t n) { memory_.resize(static_cast<size_t>(n)); }
  void fill(int64_t n, const Num& value) { std::fill_n(memory_.begin(), n, value); }
  Num* data() { return memory_.data(); }
  const Num* data() const { return memory_.data(); }
  Num& operator[](int64_t i) { return memory_[i]; }
  const Num& operator[](int64_t i) const { return memory_[i]; }

 private:
  std::vector<Num> memory_;
};

// Memory for vectors: it starts where a cache line does, and sizes are multiples of the lanes.
template <>
class WorkspaceOf<double> {
 public:
  void resize(int64_t n) {
    memory_.reset(new double[n + kLine]);
    auto address = reinterpret_cast<uintptr_t>(memory_.get());
    data_ = memory_.get() + (-address % (kLine * sizeof(double))) / sizeof(double);
  }
  void fill(int64_t n, double value) {
    for (int64_t i = 0; i < n; ++i) data_[i] = value;
  }
  double* data() { return data_; }
  const double* data() const { return data_; }
  double& operator[](int64_t i) { return data_[i]; }
  double operator[](int64_t i) const { return data_[i]; }

 private:
  static constexpr int64_t kLine = 8;
  std::unique_ptr<double[]> memory_;
  double* data_ = nullptr;
};

using Workspace = WorkspaceOf<double>;

// Whether no entry is NaN or +inf.
inline bool is_solvable(const double* x, int64_t n) {
  VecInt<double> bad = {};
  each_vector<double>(x, n, 0, [&](Vec<double> v, int64_t, int64_t) { bad |= ~(v < kInf<double>); });
  return reduce_or(bad) == 0;
}

// The largest of any number of entries; `largest` takes padded ones.
inline double largest_unpadded(const double* x, int64_t n) {
  Vec<double> top = splat<double>(kNone);
  each_vector<double>(x, n, kNone, [&](Vec<double> v, int64_t, int64_t) { top = max<double>(top, v); });
  return reduce_max(top);
}

inline double largest(const double* x, int64_t n) {
  Vec<double> top = splat<double>(kNone);
  for (int64_t i = 0; i < n; i += kLanes<double>) top = max<double>(top, load<double>(x + i));
  return reduce_max(top);
}

// The first of n entries that equals the value, among padded ones; −1 if there is none.
inline int first_equal(const double* x, int64_t n, double value) {
  for (int64_t i = 0; i < n; i += kLanes<double>) {
    Vec<double> v = load<double>(x + i);
#if defined(__AVX512F__)
    unsigned bits = _mm512_cmp_pd_mask((__m512d)v, _mm512_set1_pd(value), _CMP_EQ_OQ);
#elif defined(__AVX2__)
    unsigned bits = static_cast<unsigned>(_mm256_movemask_pd((__m256d)(v == splat<double>(value))));
#else
    VecInt<double> same = v == splat<double>(value);
    unsigned bits = 0;
    for (int k = 0; k < kLanes<double>; ++k) bits |= static_cast<unsigned>(same[k] & 1) << k;
#endif
    if (bits) return static_cast<int>(i) + __builtin_ctz(bits);
  }
  return -1;
}

// Sizes and parts of a structure whose scores are a matrix: a corner of the full one.
class Grid {
 public:
  Grid(int64_t rows, int64_t columns)
      : full_rows_(static_cast<int>(rows)), full_columns_(static_cast<int>(columns)), rows_(full_rows_),
        columns_(full_columns_) {}
  int parts() const { return rows_ * columns_; }
  int extras() const { return 0; }
  template <class F>
  void for_each_extra(const int32_t*, F) const {}
  template <class T>
  void gather(const T* full, double* compact) const {
    for (int i = 0; i < rows_; ++i)
      for (int j = 0; j < columns_; ++j)
        compact[i * columns_ + j] = static_cast<double>(full[static_cast<int64_t>(i) * full_columns_ + j]);
  }
  template <class T>
  void scatter(const double* compact, T* full) const {
    for (int64_t i = 0; i < full_rows_; ++i)
      for (int64_t j = 0; j < full_columns_; ++j)
        full[i * full_columns_ + j] =
            i < rows_ && j < columns_ ? static_cast<T>(compact[i * columns_ + j]) : T(0);
  }

  // Of which lines of the grid every structure has exactly one part.
  enum class Lines { kNone, kRows, kColumns };
  Lines choices() const { return Lines::kNone; }

  // Takes off the scores (rows, columns) of each such line the largest, which changes no choice; not where a digit
  // would be lost. Large numbers with small differences then need no exact sums.
  static void remove_offsets(Lines lines, int rows, int columns, double* scores) {
    if (lines == Lines::kNone) return;
    const bool across = lines == Lines::kRows;
    const int count = across ? rows : columns, length = across ? columns : rows;
    for (int i = 0; i < count; ++i) {
      const auto at = [&](int j) -> double& { return scores[across ? i * columns + j : j * columns + i]; };
      double top = kNone;
      for (int j = 0; j < length; ++j) top = at(j) > top ? at(j) : top;
      if (top == kNone) continue;
      bool is_exact = true;
      for (int j = 0; j < length; ++j) {
        const double x = at(j), less = x - top;
        is_exact &= x == kNone || (less + top == x && x - less == top);
      }
      for (int j = 0; is_exact && j < length; ++j) at(j) -= top;
    }
  }
  int rows() const { return rows_; }
  int columns() const { return columns_; }

 protected:
  int full_rows_, full_columns_, rows_, columns_;
};

// Builds the oracle of a thread for a kind of number, double or Exact.
template <template <class> class Map>
auto oracle_maker(int64_t n, int64_t m, int64_t option) {
  return [=](auto number) { return Map<decltype(number)>(n, m, option); };
}

// The best structures of a batch: codes (−1 behind the end of a shorter instance) and their scores, NaN
// for an instance with NaN or +inf among its scores. `make` is an oracle_maker. Where sums are
// large, exact numbers find the structure again.
template <class T, class Make>
int map_batch(Make make, const T* scores, const T* extra_scores, int64_t extra_step, const int64_t* lengths,
              int64_t lengths_step, int64_t batch, int64_t work, int32_t* codes, double* values, int threads) {
  return parallel_rows(batch, work, threads, [&](int64_t first, int64_t last) {
    auto oracle = make(double());
    std::unique_ptr<decltype(make(Exact()))> exact;
    const int64_t size = oracle.parts(), width = oracle.positions();
    Workspace compact, extra;
    compact.resize(padded<double>(size));
    extra.resize(padded<double>(oracle.extras()));
    for (int64_t row = first; row < last; ++row) {
      oracle.resize(lengths ? lengths + row * lengths_step : nullptr);
      oracle.gather(scores + row * size, compact.data());
      const int n = oracle.extras();
      for (int i = 0; i < n; ++i) extra[i] = static_cast<double>(extra_scores[row * extra_step + i]);
      int32_t* code = codes + row * width;
      for (int64_t i = 0; i < width; ++i) code[i] = -1;
      const int parts = oracle.parts();
      if (!is_solvable(compact.data(), parts) || !is_solvable(extra.data(), n)) {
        values[row] = std::numeric_limits<double>::quiet_NaN();
        continue;
      }
      values[row] = oracle.argmax(compact.data(), n ? extra.data() : nullptr, code);
      const double top = std::fmax(largest_unpadded(compact.data(), parts), largest_unpadded(extra.data(), n));
      if (!needs_exact_sums(top, values[row])) continue;
      if (!exact) exact = std::make_unique<decltype(make(Exact()))>(make(Exact()));
      const std::vector<Exact> exact_scores(compact.data(), compact.data() + parts);
      const std::vector<Exact> exact_extra(extra.data(), extra.data() + n);
      exact->resize(lengths ? lengths + row * lengths_step : nullptr);
      values[row] = exact->argmax(exact_scores.data(), n ? exact_extra.data() : nullptr, code);
    }
  });
}

}  // namespace fenchel

// The entry points of a structure's MAP operator.
#define FENCHEL_MAP_OF(name, suffix, T, work, Map)                                                  \
  FENCHEL_API int fenchel_##name##_map_##suffix(                                                    \
      const T* scores, const T* extra_scores, int64_t extra_step, const int64_t* lengths,           \
      int64_t lengths_step, int64_t batch, int64_t n, int64_t m, int64_t option, int32_t* codes,    \
      double* values, int threads) {                                                                \
    return fenchel::map_batch<T>(fenchel::oracle_maker<fenchel::Map>(n, m, option), scores,         \
                                 extra_scores, extra_step, lengths, lengths_step, batch, work,      \
                                 codes, values, threads);                                           \
  }                                                                                                 \
  FENCHEL_SIGNATURE(name##_map_##suffix,                                                            \
                    "scores, extra_scores, extra_step, lengths, lengths_step, batch, n, m, option, " \
                    "codes, values, threads")

// work: about how many entries a plain operator would touch in the same time, from n, m and option; Map:
// the oracle.
#define FENCHEL_MAP(name, work, Map)          \
  FENCHEL_MAP_OF(name, f32, float, work, Map) \
  FENCHEL_MAP_OF(name, f64, double, work, Map)
