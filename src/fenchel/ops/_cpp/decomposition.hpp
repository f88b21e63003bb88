// A solution of SparseMAP that was found at once, on its face of the marginal polytope, and not by adding one
// structure after the other.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

namespace fenchel {

// Structures and their weights, which sum to one; and the face.
//
// On the face a part has marginals above zero, and the sums of the marginals over each group of parts are fixed, where
// parts may count negatively. A part is in one group of the first kind, −1 off the face, and in at most one of the
// second, −1 for none.
//
// Each part has two slots with its marginal. A link moves what is in its first slot to an extra part, and takes it
// off its second slot, if that is not −1. Links in order give the marginals of extra parts from those of parts.
struct Decomposition {
  std::vector<int32_t> codes;
  std::vector<double> weights;
  std::vector<int32_t> groups;  // (parts, 3): both groups, and 1 if the part counts negatively
  std::vector<int32_t> links;   // (any number, 3): both slots, 2 part or 2 part + 1, and the extra part
  bool is_face_exact = true;    // whether the face is certainly that of the exact solution

  void clear() { codes.clear(), weights.clear(), groups.clear(), links.clear(), is_face_exact = true; }
  bool empty() const { return weights.empty(); }
  int64_t size() const { return static_cast<int64_t>(weights.size()); }

  // Of the next part.
  void set_groups(int64_t first, int64_t second, bool negative = false) {
    for (const int64_t value : {first, second, static_cast<int64_t>(negative)})
      groups.push_back(static_cast<int32_t>(value));
  }

  // From codes of `length` options to their first `kept` ones: equal codes become one.
  void merge_equal(int64_t length, int64_t kept) {
    std::vector<int64_t> order(weights.size());
    for (size_t k = 0; k < order.size(); ++k) order[k] = static_cast<int64_t>(k);
    const auto begin = [&](int64_t k) { return codes.begin() + k * length; };
    std::stable_sort(order.begin(), order.end(), [&](int64_t x, int64_t y) {
      return std::lexicographical_compare(begin(x), begin(x) + kept, begin(y), begin(y) + kept);
    });
    Decomposition merged;
    for (size_t k = 0; k < order.size(); ++k) {
      const bool again = k && std::equal(begin(order[k]), begin(order[k]) + kept, begin(order[k - 1]));
      if (again) {
        merged.weights.back() += weights[order[k]];
      } else {
        merged.weights.push_back(weights[order[k]]);
        merged.codes.insert(merged.codes.end(), begin(order[k]), begin(order[k]) + kept);
      }
    }
    weights.swap(merged.weights), codes.swap(merged.codes);
  }

  void normalize() {
    double total = 0;
    for (double weight : weights) total += weight;
    for (double& weight : weights) weight /= total;
  }
};

// Marginals (n, n) of structures that have one entry of each column, from which structures are taken off. Only those
// of the first rows count.
class Remainder {
 public:
  void start(int64_t n, int64_t rows, const double* u) {
    n_ = n, rows_ = rows, share_ = 1;
    whole_.assign(u, u + n * n);
    left_ = whole_;
    best_.resize(static_cast<size_t>(n));
  }

  double* data() { return left_.data(); }
  double share() const { return share_; }
  void take(double weight) { share_ -= weight; }

  // Whether the structures taken so far have a duality gap of at most `tol`. It is bounded by the best entry of
  // each column. The bound is computed once for every n structures.
  bool is_negligible(int64_t structures, double tol) {
    if (2 * static_cast<double>(n_) * share_ <= tol) return true;
    if (structures % n_ || share_ > 0.5) return false;
    std::fill(best_.begin(), best_.end(), rows_ < n_ ? 0 : -std::numeric_limits<double>::infinity());
    double mean = 0;
    for (int64_t i = 0; i < rows_; ++i)
      for (int64_t j = 0; j < n_; ++j) {
        const double left = left_[i * n_ + j], whole = whole_[i * n_ + j], slope = left - share_ * whole;
        best_[j] = std::max(best_[j], slope);
        mean += slope * (whole - left);
      }
    double gap = -mean / (1 - share_);
    for (const double best : best_) gap += best;
    return 2 * gap <= (1 - share_) * tol;
  }

 private:
  int64_t n_ = 0, rows_ = 0;
  double share_ = 1;  // of each column
  std::vector<double> whole_, left_, best_;
};

}  // namespace fenchel
