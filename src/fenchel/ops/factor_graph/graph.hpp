// The factors of a graph, in groups of one kind.
#pragma once

#include "../matching/map.hpp"
#include "../projective_tree/map.hpp"
#include "../sequence/map.hpp"
#include "../tree/map.hpp"
#include "factor.hpp"

namespace fenchel {

// Factors of one kind: `parts` variables and `extras` extra scores each, none if they were not given.
struct Group {
  Kind kind;
  int64_t count, parts, extras, n, m, option;

  std::unique_ptr<Factor> factor(const double* numbers) const {
    switch (kind) {
      case Kind::kSequence: return oracle_factor<SequenceMap>(n, m, option);
      case Kind::kTree: return oracle_factor<TreeMap>(n, m, option);
      case Kind::kProjectiveTree: return oracle_factor<ProjectiveTreeMap>(n, m, option);
      case Kind::kMatching: return oracle_factor<MatchingMap>(n, m, option);
      default: return std::make_unique<SmallFactor>(kind, parts, option, numbers);
    }
  }
};

struct Graph {
  const int64_t* groups;  // (num_groups, 7), as Group
  int64_t num_groups;
  const double* numbers;  // of the knapsacks
  const int64_t* index;   // (copies)
  const bool* negated;    // (copies)
  int64_t variables, copies, extras;

  Group group(int64_t g) const {
    const int64_t* row = groups + 7 * g;
    return {static_cast<Kind>(row[0]), row[1], row[2], row[3], row[4], row[5], row[6]};
  }
};

// Where projections are examined; structures/relaxation/_jacobian.py sets it.
struct Probe {
  const double *directions, *radii;  // (copies), (num_radii)
  int64_t num_radii;
  double straight;
};

// The factors of one instance at a time. A negated variable counts as one minus itself.
class Factors {
 public:
  explicit Factors(const Graph& graph) : graph_(graph) {
    const double* numbers = graph.numbers;
    for (int64_t g = 0; g < graph.num_groups; ++g) {
      const Group group = graph.group(g);
      for (int64_t f = 0; f < group.count; ++f) all_.push_back(group.factor(numbers));
      if (group.kind == Kind::kKnapsack) numbers += group.parts + 1;
    }
    own_.resize(static_cast<size_t>(graph.copies));
  }

  void forget() {
    for (auto& factor : all_) factor->forget();
  }

  // The projections of scores (copies) with extra scores (extras).
  void project(const double* scores, const double* extra_scores, double* copies, double* extras) {
    std::copy_n(scores, graph_.copies, own_.begin());
    for_each([&](Factor& factor, const Group& group, int64_t e, int64_t k) {
      project_one(factor, group, e, k, extra_scores, copies, extras);
    });
  }

  // The same at scores that are moved a little, to where each projection has the derivative of its smallest face.
  void settle(const Probe& probe, const double* scores, const double* extra_scores, double* copies, double* extras) {
    settled_.assign(scores, scores + graph_.copies);
    for (auto* values : {&ahead_, &behind_}) values->resize(settled_.size());
    for_each([&](Factor& factor, const Group& group, int64_t e, int64_t k) {
      const auto project = [&](double radius, double* found) {
        for (int64_t i = e; i < e + group.parts; ++i) own_[i] = settled_[i] + radius * probe.directions[i];
        project_one(factor, group, e, k, extra_scores, found, extras);
      };
      bool bends = true;
      for (int64_t r = 0; bends && r < probe.num_radii; ++r) {
        const double radius = probe.radii[r];
        project(0, copies);
        project(-radius, behind_.data());
        project(radius, ahead_.data());
        bends = false;
        for (int64_t i = e; i < e + group.parts; ++i) {
          const double bend = copies[i] - (ahead_[i] + behind_[i]) / 2;
          settled_[i] += bend;
          bends |= std::fabs(bend) > probe.straight * radius;
        }
      }
    });
  }

  bool have_jacobians() const {
    return std::all_of(all_.begin(), all_.end(), [](const auto& factor) { return factor->has_jacobian(); });
  }

  // The Jacobian of all projections times (in, in_extra); nulls as for `Factor::multiply`.
  void multiply(const double* in, const double* in_extra, double* out, double* out_extra) {
    if (in)
      for (int64_t e = 0; e < graph_.copies; ++e) own_[e] = graph_.negated[e] ? -in[e] : in[e];
    for_each([&](Factor& factor, const Group& group, int64_t e, int64_t k) {
      const bool given = group.extras > 0;
      factor.multiply(in ? own_.data() + e : nullptr, given && in_extra ? in_extra + k : nullptr,
                      out ? out + e : nullptr, given && out_extra ? out_extra + k : nullptr);
    });
    for (int64_t e = 0; out && e < graph_.copies; ++e)
      if (graph_.negated[e]) out[e] = -out[e];
  }

 private:
  // The projection of `own_`.
  void project_one(Factor& factor, const Group& group, int64_t e, int64_t k, const double* extra_scores, double* copies,
                   double* extras) {
    const bool* negated = graph_.negated + e;
    const bool any = std::find(negated, negated + group.parts, true) != negated + group.parts;
    if (any) negate(own_.data() + e, group.parts, finite_, [&](int64_t i) { return negated[i]; });
    const bool given = group.extras > 0;
    factor.project(own_.data() + e, given ? extra_scores + k : nullptr, copies + e, given ? extras + k : nullptr);
    for (int64_t i = 0; any && i < group.parts; ++i)
      if (negated[i]) copies[e + i] = 1 - copies[e + i];
  }

  template <class F>
  void for_each(F f) {
    int64_t factor = 0, e = 0, k = 0;
    for (int64_t g = 0; g < graph_.num_groups; ++g) {
      const Group group = graph_.group(g);
      for (int64_t i = 0; i < group.count; ++i, e += group.parts, k += group.extras) f(*all_[factor++], group, e, k);
    }
  }

  const Graph& graph_;
  std::vector<std::unique_ptr<Factor>> all_;
  std::vector<double> own_, finite_, settled_, ahead_, behind_;
};

// Calls work(solver, row) for all rows; each thread makes a solver of its own, and takes the next row when it is free.
template <class Make, class Work>
int parallel_instances(int64_t count, int threads, Make make, Work work) {
  threads = static_cast<int>(std::max<int64_t>(1, std::min<int64_t>(threads, count)));
  int status = kOk;
  std::atomic<int64_t> next{0};
#pragma omp parallel for num_threads(threads) schedule(static, 1) if (threads > 1)
  for (int t = 0; t < threads; ++t) {
    try {
      auto solver = make();
      for (int64_t row; (row = next++) < count;) work(solver, row);
    } catch (const std::exception&) {  // only an allocation can fail
#pragma omp atomic write
      status = kOutOfMemory;
    }
  }
  return status;
}

}  // namespace fenchel
