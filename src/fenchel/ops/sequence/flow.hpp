// A flow through the positions of a sequence: on few edges, and as paths.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "decomposition.hpp"
#include "face.hpp"
#include "interior_point.hpp"

namespace fenchel {

struct FlowEdge {
  int32_t from, to;
  double flow;
};

// The edges between two positions as a forest: where they have a cycle, flow moves along it until an edge has none.
// Flows through tags stay, and so does the score, if all edges are equally good.
class FlowForest {
 public:
  void solve(int64_t tags, std::vector<FlowEdge>& edges) {
    tags_ = tags;
    neighbours_.assign(static_cast<size_t>(2 * tags), {});
    std::sort(edges.begin(), edges.end(), [](const auto& x, const auto& y) { return x.flow > y.flow; });
    forest_.clear();
    for (const FlowEdge& edge : edges) insert(edge);
    edges.clear();
    for (const FlowEdge& edge : forest_)
      if (edge.from >= 0) edges.push_back(edge);
  }

 private:
  // Nodes are the tags of the first position, then those of the second.
  int32_t other(int32_t edge, int32_t node) const {
    const auto to = static_cast<int32_t>(forest_[edge].to + tags_);
    return node == to ? forest_[edge].from : to;
  }

  void insert(FlowEdge edge) {
    const auto start = edge.from, end = static_cast<int32_t>(edge.to + tags_);
    if (find_path(start, end)) {
      // To take flow off this edge, every other edge of the path gets more, and those between get less.
      double most = edge.flow;
      int32_t least = -1;
      for (size_t j = 1; j < path_.size(); j += 2)
        if (forest_[path_[j]].flow < most) most = forest_[path_[j]].flow, least = path_[j];
      for (size_t j = 0; j < path_.size(); ++j) forest_[path_[j]].flow += j % 2 ? -most : most;
      if (least < 0) return;
      edge.flow -= most;
      remove(least);
    }
    const auto place = static_cast<int32_t>(forest_.size());
    forest_.push_back(edge);
    neighbours_[start].push_back(place);
    neighbours_[end].push_back(place);
  }

  void remove(int32_t edge) {
    for (const int32_t node : {forest_[edge].from, static_cast<int32_t>(forest_[edge].to + tags_)}) {
      auto& list = neighbours_[node];
      list.erase(std::find(list.begin(), list.end(), edge));
    }
    forest_[edge].from = -1;
  }

  // The edges between two nodes, if they are connected.
  bool find_path(int32_t start, int32_t end) {
    came_.assign(static_cast<size_t>(2 * tags_), -1);
    queue_.assign(1, end);
    for (size_t head = 0; head < queue_.size(); ++head) {
      const int32_t node = queue_[head];
      if (node == start) {
        path_.clear();
        for (int32_t at = start; at != end; at = other(path_.back(), at)) path_.push_back(came_[at]);
        return true;
      }
      for (const int32_t edge : neighbours_[node]) {
        const int32_t next = other(edge, node);
        if (next == end || came_[next] >= 0) continue;
        came_[next] = edge;
        queue_.push_back(next);
      }
    }
    return false;
  }

  int64_t tags_ = 0;
  std::vector<FlowEdge> forest_;
  std::vector<std::vector<int32_t>> neighbours_;
  std::vector<int32_t> came_, queue_, path_;
};

// Takes paths off a flow. Each is the one whose smallest edge is largest, and takes that off all of its edges, so
// that one of them is empty.
class FlowPeeling {
 public:
  // `layers` has the edges between each position and the next. Until at most `rest` of the flow is left, or no path.
  void solve(int64_t tags, std::vector<std::vector<FlowEdge>>& layers, double rest, Decomposition& out) {
    const auto length = layers.size() + 1;
    best_.resize(length * static_cast<size_t>(tags));
    last_.resize(best_.size());
    path_.resize(length);
    for (double left = 1; left > rest;) {
      std::fill(best_.begin(), best_.end(), 0.0);
      std::fill_n(best_.begin(), tags, std::numeric_limits<double>::infinity());
      for (size_t i = 0; i + 1 < length; ++i) {
        const double* from = best_.data() + i * static_cast<size_t>(tags);
        double* to = best_.data() + (i + 1) * static_cast<size_t>(tags);
        int32_t* last = last_.data() + (i + 1) * static_cast<size_t>(tags);
        const auto& edges = layers[i];
        for (size_t e = 0; e < edges.size(); ++e) {
          const double flow = std::min(from[edges[e].from], edges[e].flow);
          if (flow > to[edges[e].to]) to[edges[e].to] = flow, last[edges[e].to] = static_cast<int32_t>(e);
        }
      }
      const auto end = best_.end() - tags;
      auto tag = static_cast<int32_t>(std::max_element(end, best_.end()) - end);
      const double weight = end[tag];
      if (!(weight > kNothing)) return;
      for (size_t i = length - 1; i > 0; --i) {
        path_[i] = tag;
        FlowEdge& edge = layers[i - 1][last_[i * static_cast<size_t>(tags) + tag]];
        edge.flow -= weight;
        tag = edge.from;
      }
      path_[0] = tag;
      left -= weight;
      out.weights.push_back(weight);
      out.codes.insert(out.codes.end(), path_.begin(), path_.end());
    }
  }

 private:
  static constexpr double kNothing = 1e-17;
  std::vector<double> best_;
  std::vector<int32_t> last_, path_;
};

// The face of a flow. Between two positions the edges that carry flow connect the tags to components: what flows
// through the tags of a component is the same on both sides. Tags of every other position count negatively, so that
// this is a sum over the component.
class FlowFace {
 public:
  // `edges_of(i)` are the edges that carry flow between positions i and i + 1, and `extra_index(i, a, b)` is the extra
  // part of an edge.
  template <class E, class F>
  void solve(int64_t n, int64_t k, E edges_of, F extra_index, Decomposition& out) {
    // Of each tag the component before it and behind it; before the first and behind the last position there is one.
    std::vector<int64_t> before(static_cast<size_t>(n * k), -1), behind(before);
    int64_t counts[2] = {};  // components before and behind alternate between two kinds
    std::fill_n(before.begin(), k, counts[1]++);
    first_link_ = out.links.size() / 3;
    edges_of_links_.clear();
    for (int64_t i = 0; i + 1 < n; ++i) {
      keep_forest(k, edges_of(i));
      int64_t& count = counts[i % 2];
      for (int64_t j = 0; j < 2 * k; ++j)
        if (degree_[j] && root(j) == j) name_[j] = count++;
      for (int64_t j = 0; j < 2 * k; ++j)
        if (degree_[j]) (j < k ? behind : before)[i * k + j] = name_[root(j)];
      while (!edges_.empty()) {
        const auto leaf = std::find_if(edges_.begin(), edges_.end(), [&](const FlowEdge& edge) {
          return degree_[edge.from] == 1 || degree_[edge.to + k] == 1;
        });
        const int64_t from = leaf->from, to = leaf->to + k;
        const int64_t slots[2] = {2 * (i * k + from), 2 * (i * k + to) + 1};
        const bool first = degree_[from] == 1;
        for (const int64_t value : {slots[!first], slots[first], extra_index(i, leaf->from, leaf->to)})
          out.links.push_back(static_cast<int32_t>(value));
        edges_of_links_.push_back({i, leaf->from, leaf->to});
        --degree_[from], --degree_[to];
        edges_.erase(leaf);
      }
    }
    int64_t& count = counts[(n - 1) % 2];
    std::fill_n(behind.end() - k, k, count++);
    for (int j : {0, 1}) totals_[j].assign(static_cast<size_t>(counts[j]), 0.0);
    totals_[1][0] = 1;
    totals_[(n - 1) % 2].back() = n % 2 ? 1 : -1;
    for (int64_t i = 0; i < n; ++i)
      for (int64_t p = i * k; p < (i + 1) * k; ++p) {
        const bool inside = before[p] >= 0 && behind[p] >= 0;
        const int64_t even = i % 2 ? before[p] : behind[p], odd = i % 2 ? behind[p] : before[p];
        out.set_groups(inside ? even : -1, inside ? odd : -1, i % 2);
      }
  }

  // The best flow on this face. False if it is none, or not the one of the interior point: then the face is wrong,
  // or edges of the same score form a cycle.
  bool find_flow(const FlowProblem& problem, const FlowInteriorPoint& point, const Decomposition& face,
                 std::vector<std::vector<FlowEdge>>& layers) {
    const int64_t n = problem.length, k = problem.tags;
    Links links;
    links.set(face.links.data() + 3 * first_link_, static_cast<int64_t>(edges_of_links_.size()));
    std::vector<double> u = problem.scores;
    links.apply_transposed_of([&](int64_t j) {
      const LinkEdge& edge = edges_of_links_[j];
      return problem.edge(edge.layer, edge.from)[edge.to];
    }, n * k, u.data());
    Face space;
    space.set(face.groups.data(), n * k);
    space.project(u.data(), totals_[0], totals_[1], u.data());
    bool is_flow = true;
    for (int64_t i = 0; i < n; ++i)
      for (int64_t a = 0; a < k; ++a) is_flow &= std::abs(u[i * k + a] - point.marginal(i, a)) < kNear;
    layers.assign(static_cast<size_t>(n - 1), {});
    links.for_each(u.data(), n * k, [&](int64_t j, double flow) {
      const LinkEdge& edge = edges_of_links_[j];
      layers[static_cast<size_t>(edge.layer)].push_back({edge.from, edge.to, flow});
      is_flow &= flow > -kRounding;
    });
    return is_flow;
  }

 private:
  static constexpr double kNear = 1e-4, kRounding = 1e-12;
  struct LinkEdge {
    int64_t layer;
    int32_t from, to;
  };

  int64_t root(int64_t node) {
    while (parent_[node] != node) node = parent_[node] = parent_[parent_[node]];
    return node;
  }

  // A spanning forest of edges, and the degrees of tags in it.
  void keep_forest(int64_t k, std::vector<FlowEdge> all) {
    std::sort(all.begin(), all.end(), [](const auto& x, const auto& y) { return x.flow > y.flow; });
    parent_.resize(static_cast<size_t>(2 * k)), name_.resize(parent_.size());
    for (int64_t j = 0; j < 2 * k; ++j) parent_[j] = j;
    degree_.assign(static_cast<size_t>(2 * k), 0);
    edges_.clear();
    for (const FlowEdge& edge : all) {
      const int64_t from = root(edge.from), to = root(edge.to + k);
      if (from == to) continue;
      parent_[from] = to;
      ++degree_[edge.from], ++degree_[edge.to + k];
      edges_.push_back(edge);
    }
  }

  std::vector<int64_t> parent_, name_, degree_;
  std::vector<FlowEdge> edges_;
  std::vector<double> totals_[2];  // of the groups of both kinds
  size_t first_link_ = 0;
  std::vector<LinkEdge> edges_of_links_;
};

// The flow of marginals where all edges are equally good: the tags of each position, in order, take intervals of
// [0, 1), and an edge has what those of its tags share.
inline std::vector<FlowEdge> couple(const double* before, const double* behind, int64_t tags) {
  std::vector<FlowEdge> edges;
  double ends[2] = {before[0], behind[0]}, start = 0;
  for (int32_t a = 0, b = 0; a < tags && b < tags;) {
    const bool on_a = before[a] > 0, on_b = behind[b] > 0;
    if (on_a && on_b) edges.push_back({a, b, std::max(std::min(ends[0], ends[1]) - start, 0.0)});
    start = std::max(start, std::min(ends[0], ends[1]));
    const bool next_a = !on_a || (on_b && ends[0] <= ends[1]);
    if (next_a && ++a < tags) ends[0] += before[a];
    if (!next_a && ++b < tags) ends[1] += behind[b];
  }
  return edges;
}

// SparseMAP of sequences whose transitions are all equal: sparsemax at each position.
template <class F>
void decompose_uniform(const FlowProblem& problem, double rest, F extra_index, Decomposition& out) {
  const int64_t n = problem.length, k = problem.tags;
  std::vector<double> u(static_cast<size_t>(n * k)), sorted(static_cast<size_t>(k));
  for (int64_t i = 0; i < n; ++i) {
    const double* row = problem.scores.data() + i * k;
    std::copy_n(row, k, sorted.begin());
    std::sort(sorted.begin(), sorted.end(), std::greater<>());
    double sum = 0, tau = 0;
    for (int64_t a = 0; a < k; ++a) {
      const double next = (sum + sorted[a] - 1) / static_cast<double>(a + 1);
      if (!(sorted[a] > next)) break;
      sum += sorted[a], tau = next;
    }
    for (int64_t a = 0; a < k; ++a) u[i * k + a] = std::max(row[a] - tau, 0.0);
  }
  std::vector<std::vector<FlowEdge>> layers;
  for (int64_t i = 0; i + 1 < n; ++i) layers.push_back(couple(u.data() + i * k, u.data() + (i + 1) * k, k));
  FlowFace().solve(n, k, [&](int64_t i) { return layers[static_cast<size_t>(i)]; }, extra_index, out);
  FlowPeeling().solve(k, layers, rest, out);
}

// Those whose flow does not fall to zero with the complementarity.
inline std::vector<FlowEdge> edges_with_flow(const FlowInteriorPoint& point, int64_t tags, int64_t i) {
  std::vector<FlowEdge> edges;
  for (int32_t a = 0; a < tags; ++a)
    for (int32_t b = 0; b < tags; ++b)
      if (point.flow(i, a, b) > point.slack(i, a, b)) edges.push_back({a, b, point.flow(i, a, b)});
  return edges;
}

// SparseMAP of sequences at once, to a duality gap of about `tol`. The flow is taken before the steps are too
// ill-conditioned to keep it one, and the face when edges with and without flow are far apart. Usually the best flow
// on the face is better: it is exact.
template <class F>
void decompose_flow(const FlowProblem& problem, double tol, F extra_index, Decomposition& out) {
  constexpr int kMaxSteps = 60;
  constexpr double kEnoughForFlow = 1e-3, kEnoughForFace = 1e-6, kLeast = 1e-13;
  const auto n = static_cast<double>(problem.length), k = static_cast<double>(problem.tags);
  const double rest = tol / (2 * n), nothing = rest / (8 * k * k);
  const auto is_zero = [](double score) { return score == 0; };
  if (std::all_of(problem.edges.begin(), problem.edges.end(), is_zero))
    return decompose_uniform(problem, rest, extra_index, out);
  std::vector<std::vector<FlowEdge>> layers(static_cast<size_t>(problem.length - 1));
  FlowInteriorPoint point(problem);
  int step = 0;
  const auto run = [&](double enough) {
    while (point.complementarity() > std::max(enough * tol, kLeast) && step++ < kMaxSteps && point.step()) {}
  };
  run(kEnoughForFlow);
  FlowForest forest;
  for (int64_t i = 0; i + 1 < problem.length; ++i) {
    auto& edges = layers[static_cast<size_t>(i)];
    for (int32_t a = 0; a < problem.tags; ++a)
      for (int32_t b = 0; b < problem.tags; ++b)
        if (point.flow(i, a, b) > nothing) edges.push_back({a, b, point.flow(i, a, b)});
    forest.solve(problem.tags, edges);
  }
  run(kEnoughForFace);
  FlowFace face;
  face.solve(problem.length, problem.tags, [&](int64_t i) { return edges_with_flow(point, problem.tags, i); },
             extra_index, out);
  std::vector<std::vector<FlowEdge>> exact;
  out.is_face_exact = face.find_flow(problem, point, out, exact);
  FlowPeeling().solve(problem.tags, out.is_face_exact ? exact : layers, rest, out);
}

}  // namespace fenchel
