// Chu-Liu/Edmonds: the best dependency tree, a maximum spanning arborescence, in O(n²). A path grows backwards
// along best arcs, and its cycles are contracted (Tarjan 1977, Camerini et al. 1979, Gabow et al. 1986).
//
// A single root needs no second run. The root's arcs count only where a contracted node has no other arc left,
// as if they were worse than all others by more than any tree can gain. Without forbidden arcs, that is when
// everything is contracted into one node.
#pragma once

#include "arborescences.hpp"
#include "structure.hpp"

namespace fenchel {

template <class Num>
class TreeMap : public Grid {
 public:
  TreeMap(int64_t n, int64_t, int64_t single_root)
      : Grid(n, n), single_root_(single_root != 0), width_(static_cast<int>(padded<Num>(n))) {
    arcs_.resize(2 * n * width_);
    for (auto* v : {&root_, &weight_}) v->resize(2 * n);
    for (auto* v : {&start_, &first_, &last_, &source_}) v->resize(2 * n);
    for (auto* v : {&children_, &path_}) v->resize(2 * n);
    for (auto* v : {&order_, &place_}) v->resize(n);
  }

  void resize(const int64_t* lengths) {
    rows_ = columns_ = lengths ? static_cast<int>(lengths[0]) : full_rows_;
    width_ = static_cast<int>(padded<Num>(rows_));
  }
  int positions() const { return rows_; }
  Lines choices() const { return Lines::kColumns; }
  int part(int modifier, int32_t head) const { return head < 0 ? -1 : head * columns_ + modifier; }

  // code[i] is the head of word i, i itself if that is the root.
  double argmax(const Num* scores, const Num*, int32_t* code) {
    read_scores(scores);
    if (!contract()) {
      for (int i = 0; i < rows_; ++i) code[i] = -1;
      return kNone;
    }
    for (int k = 0; k < chosen_; ++k) expand(path_[k], source_[path_[k]], code);
    Num value = 0;
    for (int i = 0; i < rows_; ++i) value += scores[static_cast<int64_t>(code[i]) * rows_ + i];
    return rounded(value);
  }

  int64_t patience() const { return 64 + 2 * rows_; }
  // SparseMAP at once, if no constraint but those of the degrees is tight.
  bool decompose(const double* scores, const double*, double tol, Decomposition& out) const {
    const auto n = static_cast<int64_t>(rows_);
    std::vector<double> u(static_cast<size_t>(n * n));
    const bool one_root = DegreeProjection().solve(n, single_root_, scores, u.data());
    for (int64_t k = 0; k < n * n; ++k)
      out.set_groups(u[k] > 0 ? k % n : -1, u[k] > 0 && k / n == k % n && one_root ? 0 : -1);
    TreePeeling().solve(n, one_root, u.data(), tol, out);
    out.is_face_exact = tol <= kCertain;  // a constraint that is violated a little shows in a small gap alone
    return true;
  }

 private:
  static constexpr int kRoot = -1, kUnseen = -1, kAttached = -2;
  static constexpr double kCertain = 1e-9;
  bool single_root_;
  int width_, nodes_, chosen_;
  // Nodes 0 … n − 1 are the words, the others contracted cycles. Of each node: the scores of its arcs from
  // every word, its root's score, the arc it takes, the place in `order` where its words start, and the
  // range of its children.
  WorkspaceOf<Num> arcs_;
  std::vector<Num> root_, weight_;
  std::vector<int> start_, first_, last_, source_;
  std::vector<int> children_, path_;
  std::vector<int> order_, place_;

  Num* arcs(int node) { return arcs_.data() + static_cast<int64_t>(node) * width_; }

  void read_scores(const Num* scores) {
    for (int d = 0; d < rows_; ++d) {
      Num* row = arcs(d);
      for (int h = 0; h < rows_; ++h) row[h] = scores[static_cast<int64_t>(h) * rows_ + d];
      for (int h = rows_; h < width_; ++h) row[h] = kNone;
      root_[d] = row[d];
      row[d] = kNone;
      place_[d] = kUnseen;
    }
    nodes_ = rows_;
  }

  // Chooses an arc for every node that is left in the end, path_[0 … chosen_).
  bool contract() {
    int children = 0, num_seen = 0, roots = 0;
    chosen_ = 0;
    for (int word = 0; word < rows_; ++word) {
      if (place_[word] != kUnseen) continue;
      int length = chosen_;  // nodes below `chosen_` are attached already
      const int begin = num_seen;
      for (int node = word;;) {
        if (node < rows_) {
          start_[node] = place_[node] = num_seen;
          order_[num_seen++] = node;
        }
        path_[length++] = node;
        const Num best = largest(arcs(node), width_);
        if (best == kNone || (!single_root_ && root_[node] >= best)) {
          if (root_[node] == kNone || (++roots > 1 && single_root_)) return false;
          source_[node] = kRoot;
          break;
        }
        const int head = first_equal(arcs(node), width_, best);
        source_[node] = head;
        weight_[node] = best;
        if (place_[head] == kAttached) break;
        if (place_[head] == kUnseen) {
          node = head;
          continue;
        }
        const int cycle = nodes_++;
        first_[cycle] = children;
        do children_[children++] = path_[--length];
        while (start_[path_[length]] > place_[head]);
        last_[cycle] = children;
        start_[cycle] = start_[path_[length]];
        merge(cycle, num_seen);
        node = cycle;
      }
      for (int k = begin; k < num_seen; ++k) place_[order_[k]] = kAttached;
      chosen_ = length;
    }
    return true;
  }

  // The arcs into a cycle: entering at a child costs the arc that this child has in the cycle.
  void merge(int cycle, int num_seen) {
    Num* to = arcs(cycle);
    const int head = children_[first_[cycle]];
    const Num lost = weight_[head];
    Num root = root_[head] - lost;
    for (int j = 0; j < width_; j += kLanes<Num>) store<Num>(to + j, load<Num>(arcs(head) + j) - lost);
    for (int k = first_[cycle] + 1; k < last_[cycle]; ++k) {
      const int child = children_[k];
      const Num* from = arcs(child);
      const Num weight = weight_[child];
      for (int j = 0; j < width_; j += kLanes<Num>)
        store<Num>(to + j, max<Num>(load<Num>(to + j), load<Num>(from + j) - weight));
      const Num other = root_[child] - weight;
      if (root < other) root = other;
    }
    root_[cycle] = root;
    for (int k = start_[cycle]; k < num_seen; ++k) to[order_[k]] = kNone;
  }

  // Gives the words of a node their heads, when the node's own head is known: the child that the arc
  // enters is the one whose entry equals the cycle's. Cycles hold fewer than n nodes, so this is short.
  void expand(int node, int head, int32_t* code) {
    while (node >= rows_) {
      const Num entry = head == kRoot ? root_[node] : arcs(node)[head];
      int entered = -1;
      for (int k = first_[node]; k < last_[node]; ++k) {
        const int child = children_[k];
        const Num own = (head == kRoot ? root_[child] : arcs(child)[head]) - weight_[child];
        if (entered < 0 && own == entry)
          entered = child;
        else
          expand(child, source_[child], code);
      }
      node = entered;
    }
    code[node] = head == kRoot ? node : head;
  }
};

}  // namespace fenchel
