// SparseMAP of a batch: instances are independent, and each thread keeps one workspace for its own.
#pragma once

#include <atomic>
#include <memory>

#include "conditional_gradient.hpp"
#include "face_span.hpp"
#include "structure.hpp"

namespace fenchel {

// The problems and where their solutions go. Extra scores and starts may be null.
struct Batch {
  const double *scores, *extra_scores;
  int64_t extra_step;                        // 0 where instances share the extra scores
  const int64_t* lengths;                    // null, or `lengths_step` for each instance
  int64_t lengths_step, count;
  const int32_t* start_codes;                // (count, start_width, positions)
  const double* start_weights;               // (count, start_width)
  int64_t start_width, method, regularize, wants_face, max_iter;
  double tol;
  double *marginals, *gaps;                  // (count, parts), (count)
  int64_t *iterations, *sizes;               // (count)
  bool* converged;                           // (count)
  void* const* python;                       // for Interrupts
  int threads;
};

// What remains of an instance: its structures as codes, parts and extra parts, their weights, and the factor of
// their Gram matrix plus one, by columns. Solved at once it has no factor, but groups (parts, 3)
// and links (any number, 3).
struct Solution {
  std::vector<int32_t> codes, parts, extras, groups, links;
  std::vector<double> weights, factor;
  bool at_once = false;
  bool has_face = true;  // whether the structures certainly span the face, or the groups are those of the face
};

struct Solutions {
  int64_t positions, extras;
  std::vector<Solution> all;
};

// Starts the support from what the caller knows, or from the best structure for the scores alone, to which all
// are compared. One that is forbidden, or further below the best than marginals can change a score, has no weight
// in any solution: it is left out. False if there is no structure without a part of score −inf.
template <class Make>
bool start(Instance<Make>& instance, const int32_t* codes, const double* weights, int64_t width,
           int64_t step) {
  instance.update_marginals();
  if (instance.find_best() == kNone) return false;
  double total = 0;
  for (int64_t k = 0; k < width; ++k) {
    if (!(weights[k] > 0)) continue;
    instance.fill_next(codes + k * step);
    const double score = instance.score_next();
    if (!(score >= -instance.reach())) continue;
    const int64_t known = instance.support.compare_next();
    if (known < 0)
      instance.support.add_next(score, weights[k]);
    else
      instance.support.shift_weight(known, weights[k]);
    total += weights[k];
  }
  if (total > 0) {
    instance.support.scale_weights(1 / total);
    return true;
  }
  instance.fill_best();
  instance.support.compare_next();
  instance.support.add_next(0, 1);
  return true;
}

template <class Make>
class BatchSolver {
 public:
  BatchSolver(const Batch& batch, const Make& make, Interrupts& interrupts)
      : batch_(batch), instance_(make, batch.regularize, &interrupts), parts_(instance_.oracle().parts()),
        positions_(instance_.oracle().positions()) {
    scores_.resize(padded<double>(parts_));
    place_.resize(padded<double>(parts_));
    for (int64_t i = 0; i < parts_; ++i) iota_.push_back(static_cast<double>(i));
    max_extras_ = instance_.set(nullptr, nullptr, nullptr);
  }

  void describe(Solutions& solutions) const {
    solutions.positions = positions_, solutions.extras = max_extras_;
  }

  void solve(int64_t row, Solution& solution) {
    auto& oracle = instance_.oracle();
    const int64_t* lengths = batch_.lengths ? batch_.lengths + row * batch_.lengths_step : nullptr;
    oracle.resize(lengths);
    oracle.gather(batch_.scores + row * parts_, scores_.data());
    oracle.remove_offsets(oracle.choices(), oracle.rows(), oracle.columns(), scores_.data());
    const double* extra_scores = oracle.extras() ? batch_.extra_scores + row * batch_.extra_step : nullptr;
    instance_.set(scores_.data(), extra_scores, lengths);
    double* marginals = batch_.marginals + row * parts_;
    if (!is_solvable(scores_.data(), oracle.parts()) ||
        (extra_scores && !is_solvable(extra_scores, oracle.extras())))
      return leave_unsolved(row, std::numeric_limits<double>::quiet_NaN());
    const double* weights = batch_.start_weights + row * batch_.start_width;
    const int64_t known = std::count_if(weights, weights + batch_.start_width, [](double w) { return w > 0; });
    const int64_t width = known <= instance_.patience() ? batch_.start_width : 0;
    if (!start(instance_, batch_.start_codes + row * batch_.start_width * positions_, weights, width, positions_))
      return leave_unsolved(row, 0);
    const Limits limits{batch_.tol, batch_.max_iter};
    const auto method = static_cast<Method>(batch_.method);
    const Outcome outcome = solve_by(method, limits, known);
    oracle.scatter(instance_.marginals().data(), marginals);
    batch_.gaps[row] = outcome.gap;
    batch_.iterations[row] = outcome.iterations;
    batch_.converged[row] = outcome.converged;
    write(solution);
    if (batch_.wants_face)
      solution.has_face = solution.at_once ? instance_.decomposition.is_face_exact
                                           : outcome.gap <= kExactGap && spans_face(instance_, outcome.gap);
    batch_.sizes[row] = static_cast<int64_t>(solution.weights.size());
  }

 private:
  static constexpr double kExactGap = 1e-12;

  Outcome solve_by(Method method, Limits limits, int64_t known) {
    if (method == Method::kActiveSet) return active_set(instance_, limits, instance_.patience());
    if (method == Method::kFace) return span_face(instance_, limits, known);
    const Outcome outcome = conditional_gradient(instance_, limits, method);
    instance_.support.keep_independent();
    return outcome;
  }

  void leave_unsolved(int64_t row, double value) {
    std::fill_n(batch_.marginals + row * parts_, parts_, value);
    batch_.gaps[row] = value;
    batch_.converged[row] = value == 0;
    batch_.iterations[row] = batch_.sizes[row] = 0;
  }

  void write(Solution& solution) {
    const Support& support = instance_.support;
    const Decomposition& decomposition = instance_.decomposition;
    solution.at_once = !decomposition.empty();
    const int64_t size = solution.at_once ? decomposition.size() : support.size();
    const int64_t positions = instance_.oracle().positions();
    instance_.oracle().gather(iota_.data(), place_.data());
    solution.codes.assign(size * positions_, -1);
    solution.parts.assign(size * positions_, -1);
    solution.extras.assign(size * max_extras_, -1);
    solution.factor.assign(solution.at_once ? 0 : size * size, 0.0);
    solution.weights.resize(size);
    double total = 0;
    for (int64_t k = 0; k < support.size(); ++k) total += support.weight(k);
    for (int64_t k = 0; k < size; ++k) {
      if (solution.at_once) instance_.fill_next(decomposition.codes.data() + k * positions);
      const int64_t from = solution.at_once ? support.size() : k;
      solution.weights[k] = solution.at_once ? decomposition.weights[k] : support.weight(k) / total;
      std::copy_n(support.others(from), positions, solution.codes.data() + k * positions_);
      for (int64_t i = 0; i < positions; ++i) {
        const int32_t part = support.row(from)[i];
        if (part >= 0) solution.parts[k * positions_ + i] = static_cast<int32_t>(place_[part]);
      }
      instance_.copy_extras(from, solution.extras.data() + k * max_extras_);
      if (!solution.at_once) support.factor().copy_column(k, solution.factor.data() + k * size + k);
    }
    solution.groups.assign(decomposition.groups.empty() ? 0 : 3 * parts_, -1);
    for (size_t k = 0; k < decomposition.groups.size(); ++k)
      solution.groups[3 * static_cast<size_t>(place_[k / 3]) + k % 3] = decomposition.groups[k];
    solution.links = decomposition.links;
    for (size_t k = 0; k < solution.links.size(); ++k) {
      int32_t& slot = solution.links[k];
      if (k % 3 < 2 && slot >= 0) slot = 2 * static_cast<int32_t>(place_[slot / 2]) + slot % 2;
    }
  }

  const Batch& batch_;
  Instance<Make> instance_;
  int64_t parts_, positions_, max_extras_;
  Workspace scores_, place_;
  std::vector<double> iota_;
};

// `make` is an oracle_maker. Nothing is written to `out` and `shape` if a handler of a signal raises.
template <class Make>
int solve_batch(const Batch& batch, Make make, Solutions** out, int64_t* shape) {
  int status = kOk;
  Interrupts interrupts(batch.python);
  const int threads = static_cast<int>(std::max<int64_t>(1, std::min<int64_t>(batch.threads, batch.count)));
  try {
    auto solutions = std::make_unique<Solutions>();
    solutions->all.resize(static_cast<size_t>(batch.count));
    std::atomic<int64_t> finished{0}, next{0};  // supports differ in size, so each takes one when it is free
#pragma omp parallel for num_threads(threads) schedule(static, 1) if (threads > 1)
    for (int t = 0; t < threads; ++t) {
      try {
        BatchSolver<Make> solver(batch, make, interrupts);
        if (t == 0) solver.describe(*solutions);
        for (int64_t row; (row = next++) < batch.count; ++finished) solver.solve(row, solutions->all[row]);
        if (t == 0) interrupts.wait_until([&] { return finished == batch.count; });
      } catch (const Interrupted&) {
      } catch (const std::exception&) {  // only an allocation can fail
#pragma omp atomic write
        status = kOutOfMemory;
        interrupts.stop();
      }
    }
    if (interrupts.stopped()) return status;
    shape[0] = batch.count ? *std::max_element(batch.sizes, batch.sizes + batch.count) : 0;
    shape[1] = solutions->positions;
    shape[2] = solutions->extras;
    shape[3] = std::count(batch.converged, batch.converged + batch.count, false);
    std::fill_n(shape + 4, 4, 0);
    for (const Solution& one : solutions->all) {
      shape[4] = std::max<int64_t>(shape[4], one.at_once ? 0 : one.weights.size());
      shape[5] += one.at_once;
      shape[6] = std::max<int64_t>(shape[6], one.groups.size());
      shape[7] = std::max<int64_t>(shape[7], one.links.size());
    }
    *out = solutions.release();
  } catch (const std::exception&) {
    status = kOutOfMemory;
  }
  return status;
}

}  // namespace fenchel
