// Viterbi's algorithm: the best sequence of tags, by dynamic programming over the positions.
#pragma once

#include "flow.hpp"
#include "structure.hpp"

namespace fenchel {

// Extra scores: of the first and of the last tag, if there are any; then transitions (previous, next), one
// matrix for all pairs of neighbours if shared, else one for each.
struct SequenceOptions {
  bool shared, bounded;
  explicit SequenceOptions(int64_t option) : shared(option % 2 != 0), bounded(option / 2 != 0) {}
};

template <class Num>
class SequenceMap : public Grid {
 public:
  SequenceMap(int64_t length, int64_t tags, int64_t option)
      : Grid(length, tags), width_(static_cast<int>(padded<Num>(tags))), shared_(SequenceOptions(option).shared),
        ends_(SequenceOptions(option).bounded ? 2 * columns_ : 0) {
    best_.resize(length * width_);
    transitions_.resize(pairs() * tags * width_);
    for (WorkspaceOf<Num>* w : {&start_, &end_, &total_}) w->resize(width_), w->fill(width_, 0);
  }

  void resize(const int64_t* lengths) { rows_ = lengths ? static_cast<int>(lengths[0]) : full_rows_; }
  int extras() const { return ends_ + pairs() * columns_ * columns_; }
  int positions() const { return rows_; }
  Lines choices() const { return Lines::kRows; }
  int part(int i, int32_t tag) const { return tag < 0 ? -1 : i * columns_ + tag; }

  template <class F>
  void for_each_extra(const int32_t* code, F f) const {
    if (ends_) f(code[0]), f(columns_ + code[rows_ - 1]);
    for (int i = 0; i + 1 < rows_; ++i) f(ends_ + (pair(i) * columns_ + code[i]) * columns_ + code[i + 1]);
  }

  double argmax(const Num* scores, const Num* extra_scores, int32_t* code) {
    if (extra_scores) read_extra(extra_scores);
    for (int b = 0; b < width_; ++b) best_[b] = b < columns_ ? scores[b] + start_[b] : Num(kNone);
    switch (width_ / kLanes<Num>) {
      case 1: run_forward<1>(scores); break;
      case 2: run_forward<2>(scores); break;
      case 3: run_forward<3>(scores); break;
      case 4: run_forward<4>(scores); break;
      default: run_forward<0>(scores);
    }
    return backtrack(scores, code);
  }

  int64_t patience() const { return rows_ + 16 * columns_; }
  // SparseMAP at once. It takes the time of some hundred rounds of the active set for each tag.
  bool decompose(const double* scores, const double* extra_scores, double tol, Decomposition& out) const {
    if (rows_ < 2 || columns_ > kMaxFlowTags) return false;
    if (extra_scores)
      for (int32_t a = 0; a < ends_; ++a) {
        const int32_t part = a < columns_ ? a : (rows_ - 2) * columns_ + a;
        for (const int32_t value : {2 * part, -1, a}) out.links.push_back(value);
      }
    decompose_flow(flow_problem(scores, extra_scores), tol, [&](int64_t i, int32_t a, int32_t b) {
      return ends_ + (static_cast<int64_t>(pair(static_cast<int>(i))) * columns_ + a) * columns_ + b;
    }, out);
    if (!extra_scores) out.links.clear();
    return true;
  }

 private:
  static constexpr int kMaxFlowTags = 128;

  // Scores relative to the largest of each position and of the transitions; without edges that are on no path.
  FlowProblem flow_problem(const double* scores, const double* extra_scores) const {
    const int64_t n = rows_, k = columns_;
    FlowProblem problem{n, k, {scores, scores + n * k}, {}};
    const double* ends = extra_scores;
    for (int64_t a = 0; a < ends_ / 2; ++a)
      problem.scores[a] += ends[a], problem.scores[(n - 1) * k + a] += ends[k + a];
    const double* transitions = extra_scores ? extra_scores + ends_ : nullptr;
    problem.edges.assign(static_cast<size_t>((n - 1) * k * k), 0.0);
    if (transitions)
      for (int64_t i = 0; i + 1 < n; ++i)
        std::copy_n(transitions + pair(static_cast<int>(i)) * k * k, k * k, problem.edges.data() + i * k * k);
    const double top = largest_unpadded(problem.edges.data(), static_cast<int64_t>(problem.edges.size()));
    for (double& score : problem.edges) score -= top;
    remove_dead_ends(problem);
    for (int64_t i = 0; i < n; ++i) {
      double* row = problem.scores.data() + i * k;
      const double most = largest_unpadded(row, k);
      for (int64_t a = 0; a < k; ++a) row[a] = row[a] == kNone ? 0 : row[a] - most;
    }
    return problem;
  }

  static void remove_dead_ends(FlowProblem& problem) {
    const int64_t n = problem.length, k = problem.tags;
    std::vector<char> left(static_cast<size_t>(n * k)), right(left.size());
    for (int64_t j = 0; j < n * k; ++j) {
      const bool possible = problem.scores[j] > kNone;
      left[j] = possible && j < k;
      right[j] = possible && j >= (n - 1) * k;
    }
    const auto edge = [&](int64_t i, int64_t a, int64_t b) -> double& {
      return problem.edges[(i * k + a) * k + b];
    };
    for (int64_t i = 0; i + 1 < n; ++i)
      for (int64_t a = 0; a < k; ++a)
        for (int64_t b = 0; b < k; ++b)
          if (left[i * k + a] && edge(i, a, b) > kNone && problem.scores[(i + 1) * k + b] > kNone)
            left[(i + 1) * k + b] = true;
    for (int64_t i = n - 2; i >= 0; --i)
      for (int64_t a = 0; a < k; ++a)
        for (int64_t b = 0; b < k; ++b)
          if (right[(i + 1) * k + b] && edge(i, a, b) > kNone && problem.scores[i * k + a] > kNone)
            right[i * k + a] = true;
    for (int64_t i = 0; i + 1 < n; ++i)
      for (int64_t a = 0; a < k; ++a)
        for (int64_t b = 0; b < k; ++b)
          if (!left[i * k + a] || !right[(i + 1) * k + b]) edge(i, a, b) = kNone;
  }

  int width_;
  bool shared_;
  int ends_;  // how many scores of first and last tags there are
  WorkspaceOf<Num> best_, transitions_, start_, end_, total_;

  int pairs() const { return shared_ ? rows_ > 1 : rows_ - 1; }
  int pair(int i) const { return shared_ ? 0 : i; }
  const Num* transitions(int i) const {
    return transitions_.data() + static_cast<int64_t>(pair(i)) * columns_ * width_;
  }

  void read_extra(const Num* extra_scores) {
    for (int b = 0; b < ends_ / 2; ++b) start_[b] = extra_scores[b], end_[b] = extra_scores[columns_ + b];
    extra_scores += ends_;
    Num* row = transitions_.data();
    for (int k = 0; k < pairs() * columns_; ++k, row += width_, extra_scores += columns_) {
      for (int b = 0; b < columns_; ++b) row[b] = extra_scores[b];
      for (int b = columns_; b < width_; ++b) row[b] = kNone;
    }
  }

  // best[i][b] = scores[i][b] + max_a best[i−1][a] + transition[a][b], with kBlocks vectors of b held in
  // registers; 0 for any number of them.
  template <int kBlocks>
  void run_forward(const Num* scores) {
    constexpr int kHeld = kBlocks ? kBlocks : 4;
    constexpr int kStep = kHeld * static_cast<int>(kLanes<Num>);
    for (int i = 1; i < rows_; ++i) {
      const Num* last = best_.data() + static_cast<int64_t>(i - 1) * width_;
      Num* next = best_.data() + static_cast<int64_t>(i) * width_;
      const Num* unary = scores + static_cast<int64_t>(i) * columns_;
      const bool inside = i * columns_ + width_ <= parts();
      int b = 0;
      for (; b + kStep <= width_; b += kStep) pass<kHeld>(last, transitions(i - 1) + b, next + b);
      if constexpr (kBlocks == 0)
        for (; b < width_; b += kLanes<Num>) pass<1>(last, transitions(i - 1) + b, next + b);
      if (inside) {  // what lies behind the row is added to −inf
        for (b = 0; b < width_; b += kLanes<Num>)
          store<Num>(next + b, load<Num>(next + b) + load<Num>(unary + b));
      } else {
        for (b = 0; b < columns_; ++b) next[b] += unary[b];
      }
    }
  }

  template <int kHeld>
  FENCHEL_INLINE void pass(const Num* last, const Num* row, Num* next) const {
    Vec<Num> even[kHeld], odd[kHeld];
    for (int k = 0; k < kHeld; ++k) even[k] = odd[k] = splat<Num>(kNone);
    int a = 0;
    for (; a + 2 <= columns_; a += 2, row += 2 * width_) {
      Vec<Num> first = splat<Num>(last[a]), second = splat<Num>(last[a + 1]);
      for (int k = 0; k < kHeld; ++k) {
        even[k] = max<Num>(even[k], first + load<Num>(row + k * kLanes<Num>));
        odd[k] = max<Num>(odd[k], second + load<Num>(row + width_ + k * kLanes<Num>));
      }
    }
    if (a < columns_)
      for (int k = 0; k < kHeld; ++k)
        even[k] = max<Num>(even[k], splat<Num>(last[a]) + load<Num>(row + k * kLanes<Num>));
    for (int k = 0; k < kHeld; ++k) store<Num>(next + k * kLanes<Num>, max<Num>(even[k], odd[k]));
  }

  // Follows the maxima back. They are found again: a column per position is little work.
  double backtrack(const Num* scores, int32_t* code) {
    const Num* best = best_.data() + static_cast<int64_t>(rows_ - 1) * width_;
    for (int b = 0; b < width_; ++b) total_[b] = best[b] + end_[b];
    const Num value = largest(total_.data(), width_);
    if (value == kNone) {
      for (int i = 0; i < rows_; ++i) code[i] = -1;
      return kNone;
    }
    int tag = first_equal(total_.data(), width_, value);
    for (int i = rows_ - 1; i > 0; --i) {
      code[i] = tag;
      const Num &total = best[tag], &unary = scores[static_cast<int64_t>(i) * columns_ + tag];
      const Num* transition = transitions(i - 1) + tag;
      best -= width_;
      for (tag = 0; tag + 1 < columns_; ++tag, transition += width_)
        if ((best[tag] + *transition) + unary == total) break;
    }
    code[0] = tag;
    return rounded(value);
  }
};

}  // namespace fenchel
