// A solution of SparseMAP that was found at once, on its face of the marginal polytope, and not by adding one
// structure after the other.
#pragma once

#include <cstdint>
#include <vector>

namespace fenchel {

// Structures and their weights, which sum to one; and the face. On the face a part has marginals above zero, and
// the sums of the marginals over each group of parts are fixed. A part is in one group of the first kind, −1 off
// the face, and in at most one of the second, −1 for none.
struct Decomposition {
  std::vector<int32_t> codes;
  std::vector<double> weights;
  std::vector<int32_t> groups;  // (parts, 2); empty if the structures alone tell the face

  void clear() { codes.clear(), weights.clear(), groups.clear(); }
  bool empty() const { return weights.empty(); }
  int64_t size() const { return static_cast<int64_t>(weights.size()); }

  void normalize() {
    double total = 0;
    for (double weight : weights) total += weight;
    for (double& weight : weights) weight /= total;
  }
};

}  // namespace fenchel
