// Spans of a sentence by their width, so that all spans of one width are neighbours in memory and are
// computed side by side: entry i of row w belongs to the span i … i + w.
#pragma once

#include "structure.hpp"

namespace fenchel {

template <class Num>
class SpansOf {
 public:
  // Rows leave room for a vector that starts at any entry.
  static int64_t stride(int64_t n) { return padded<Num>(n) + kLanes<Num>; }
  static int64_t size(int64_t n) { return (n + 1) * stride(n); }

  void resize(int64_t n) {
    memory_.resize(size(n));
    for (int64_t i = 0; i < size(n); ++i) memory_[i] = kNone;
  }
  void set_nodes(int64_t n) { stride_ = stride(n); }
  Num* operator[](int64_t width) { return memory_.data() + width * stride_; }
  const Num* operator[](int64_t width) const { return memory_.data() + width * stride_; }

 private:
  WorkspaceOf<Num> memory_;
  int64_t stride_ = 0;
};

using Spans = SpansOf<double>;

// The nodes of a sentence: its words, and before them the root if any number of words may hang on it.
template <class Num>
struct SentenceOf {
  int n, nodes;
  bool single_root;
  const Num* scores;

  SentenceOf(const Num* arcs, int words, bool single)
      : n(words), nodes(words + !single), single_root(single), scores(arcs) {}

  // The scores' index of an arc; −1 for one into the root.
  int64_t arc(int head, int modifier) const {
    if (single_root) return static_cast<int64_t>(head) * n + modifier;
    if (modifier == 0) return -1;
    return (head ? static_cast<int64_t>(head - 1) : modifier - 1) * n + modifier - 1;
  }
  Num score(int head, int modifier) const {
    const int64_t index = arc(head, modifier);
    return index < 0 ? Num(kNone) : scores[index];
  }
};

using Sentence = SentenceOf<double>;

}  // namespace fenchel
