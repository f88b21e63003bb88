// A solution of SparseMAP that was found at once, on its face of the marginal polytope, and not by adding one
// structure after the other.
#pragma once

#include <cstdint>
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

  void clear() { codes.clear(), weights.clear(), groups.clear(), links.clear(); }
  bool empty() const { return weights.empty(); }
  int64_t size() const { return static_cast<int64_t>(weights.size()); }

  // Of the next part.
  void set_groups(int64_t first, int64_t second, bool negative = false) {
    for (const int64_t value : {first, second, static_cast<int64_t>(negative)})
      groups.push_back(static_cast<int32_t>(value));
  }

  void normalize() {
    double total = 0;
    for (double weight : weights) total += weight;
    for (double& weight : weights) weight /= total;
  }
};

}  // namespace fenchel
