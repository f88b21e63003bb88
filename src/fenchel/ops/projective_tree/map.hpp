// Eisner's algorithm: the best projective dependency tree, by dynamic programming over spans (Eisner 1996).
#pragma once

#include <algorithm>

#include "spans.hpp"

namespace fenchel {

template <class Num>
class ProjectiveTreeMap : public Grid {
 public:
  ProjectiveTreeMap(int64_t n, int64_t, int64_t single_root) : Grid(n, n), single_root_(single_root != 0) {
    for (SpansOf<Num>* table : {&right_, &left_, &right_arc_, &left_arc_}) table->resize(n + !single_root_);
    stack_.resize(3 * (n + 1));
  }

  void resize(const int64_t* lengths) {
    rows_ = columns_ = lengths ? static_cast<int>(lengths[0]) : full_rows_;
  }
  int positions() const { return rows_; }
  Lines choices() const { return Lines::kColumns; }
  int part(int modifier, int32_t head) const { return head < 0 ? -1 : head * columns_ + modifier; }

  // code[i] is the head of word i, i itself if that is the root.
  double argmax(const Num* scores, const Num*, int32_t* code) {
    const SentenceOf<Num> sentence(scores, rows_, single_root_);
    fill_spans(sentence);
    const int n = sentence.nodes;
    int root = 0;
    Num value = right_[n - 1][0];
    if (single_root_) {
      value = kNone;
      for (int r = 0; r < n; ++r) {
        const Num total = left_[r][0] + right_[n - 1 - r][r] + sentence.score(r, r);
        if (total > value) value = total, root = r;
      }
    }
    for (int i = 0; i < rows_; ++i) code[i] = -1;
    if (value == kNone) return kNone;
    code[root] = root;
    backtrack(sentence, root, code);
    value = 0;
    for (int i = 0; i < rows_; ++i) value += scores[static_cast<int64_t>(code[i]) * rows_ + i];
    return rounded(value);
  }

 private:
  // A span whose words hang on its left end, or on its right one; and the same with an arc between the
  // ends, still open in the middle.
  bool single_root_;
  SpansOf<Num> right_, left_, right_arc_, left_arc_;
  struct Item {
    bool to_right;
    int i, w;
  };
  std::vector<Item> stack_;

  void fill_spans(const SentenceOf<Num>& sentence) {
    const int n = sentence.nodes;
    for (SpansOf<Num>* table : {&right_, &left_, &right_arc_, &left_arc_}) table->set_nodes(n);
    for (int i = 0; i < n; ++i) right_[0][i] = left_[0][i] = 0;
    for (int w = 1; w < n; ++w) {
      for (int i = 0; i < n - w; i += kLanes<Num>) {
        Vec<Num> best = splat<Num>(kNone);
        for (int t = 0; t < w; ++t)
          best = max<Num>(best, load<Num>(right_[t] + i) + load<Num>(left_[w - 1 - t] + i + t + 1));
        store<Num>(right_arc_[w] + i, best);
      }
      for (int i = 0; i < n - w; ++i) {
        const Num best = right_arc_[w][i];
        right_arc_[w][i] = best + sentence.score(i, i + w);
        left_arc_[w][i] = best + sentence.score(i + w, i);
      }
      for (int i = 0; i < n - w; i += kLanes<Num>) {
        Vec<Num> right = splat<Num>(kNone), left = right;
        for (int t = 0; t < w; ++t) {
          right = max<Num>(right, load<Num>(right_arc_[t + 1] + i) + load<Num>(right_[w - t - 1] + i + t + 1));
          left = max<Num>(left, load<Num>(left_[t] + i) + load<Num>(left_arc_[w - t] + i + t));
        }
        store<Num>(right_[w] + i, right);
        store<Num>(left_[w] + i, left);
      }
    }
  }

  // Follows the maxima back. They are found again.
  void backtrack(const SentenceOf<Num>& sentence, int root, int32_t* code) {
    const int first = !single_root_;  // the node of the first word
    int size = 0;
    stack_[size++] = {false, 0, root};
    stack_[size++] = {true, root, sentence.nodes - 1 - root};
    while (size) {
      const auto [to_right, i, w] = stack_[--size];
      if (w == 0) continue;
      int t = 0, head, modifier;
      if (to_right) {
        for (t = 1; t < w; ++t)
          if (right_arc_[t][i] + right_[w - t][i + t] == right_[w][i]) break;
        stack_[size++] = {true, i + t, w - t};
        head = i, modifier = i + t;
      } else {
        for (t = 0; t + 1 < w; ++t)
          if (left_[t][i] + left_arc_[w - t][i + t] == left_[w][i]) break;
        stack_[size++] = {false, i, t};
        head = i + w, modifier = i + t;
      }
      code[modifier - first] = head < first ? modifier - first : head - first;
      const int low = std::min(head, modifier), width = std::max(head, modifier) - low;
      const Num score = sentence.score(head, modifier);
      const Num total = (to_right ? right_arc_ : left_arc_)[width][low];
      int split = 0;
      for (; split + 1 < width; ++split)
        if ((right_[split][low] + left_[width - 1 - split][low + split + 1]) + score == total) break;
      stack_[size++] = {true, low, split};
      stack_[size++] = {false, low + split + 1, width - 1 - split};
    }
  }
};

}  // namespace fenchel
