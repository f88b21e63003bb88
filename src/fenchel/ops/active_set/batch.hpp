// SparseMAP of a batch: instances are independent, and each thread keeps one workspace for its own.
#pragma once

#include <atomic>
#include <memory>

#include "conditional_gradient.hpp"
#include "structure.hpp"

namespace fenchel {

// As the C ABI passes it. Additional scores and starts may be null.
struct Batch {
  const double *scores, *additional;
  int64_t extra_step;                        // 0 where instances share the additional scores
  const int64_t* lengths;                    // null, or `lengths_step` for each instance
  int64_t lengths_step, count;
  const int32_t* start_codes;                // (count, start_width, positions)
  const double* start_weights;               // (count, start_width)
  int64_t start_width, method, regularize, max_iter;
  double tol;
  double *marginals, *gaps;                  // (count, parts), (count)
  int64_t *iterations, *sizes;               // (count)
  bool* converged;                           // (count)
  int64_t threads;
};

// What remains of an instance: its structures as codes, parts and additional parts, their weights
// and the factor of their Gram matrix plus one, by columns.
struct Solution {
  std::vector<int32_t> codes, parts, extras;
  std::vector<double> weights, factor;
};

struct Solutions {
  int64_t positions, extras;
  std::vector<Solution> all;
};

// Starts the support from what the caller knows, or from the best structure for the scores alone.
// False if there is none without a part of score −inf.
template <class Oracle>
bool start(Instance<Oracle>& instance, const int32_t* codes, const double* weights, int64_t width,
           int64_t step) {
  double total = 0;
  for (int64_t k = 0; k < width; ++k) {
    if (!(weights[k] > 0)) continue;
    instance.fill_next(codes + k * step);
    const double score = instance.score_next(total == 0);
    if (!std::isfinite(score)) continue;
    const int64_t known = instance.support.meet_next();
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
  instance.update_marginals();
  if (instance.find_next() == kNone) return false;
  instance.support.meet_next();
  instance.support.add_next(instance.score_next(true), 1);
  return true;
}

template <class Oracle>
class BatchSolver {
 public:
  BatchSolver(const Batch& batch, Oracle oracle)
      : batch_(batch), oracle_(std::move(oracle)), parts_(oracle_.parts()),
        positions_(oracle_.positions()) {
    scores_.resize(padded<double>(parts_));
    place_.resize(padded<double>(parts_));
    for (int64_t i = 0; i < parts_; ++i) iota_.push_back(static_cast<double>(i));
    most_extras_ = instance_.set(&oracle_, nullptr, nullptr, batch.regularize);
  }

  void describe(Solutions& solutions) const {
    solutions.positions = positions_, solutions.extras = most_extras_;
  }

  void solve(int64_t row, Solution& solution) {
    oracle_.resize(batch_.lengths ? batch_.lengths + row * batch_.lengths_step : nullptr);
    oracle_.gather(batch_.scores + row * parts_, scores_.data());
    const double* additional = oracle_.extras() ? batch_.additional + row * batch_.extra_step : nullptr;
    instance_.set(&oracle_, scores_.data(), additional, batch_.regularize);
    double* marginals = batch_.marginals + row * parts_;
    if (!is_solvable(scores_.data(), oracle_.parts()) ||
        (additional && !is_solvable(additional, oracle_.extras())))
      return leave_unsolved(row, std::numeric_limits<double>::quiet_NaN());
    const int64_t width = batch_.start_width;
    if (!start(instance_, batch_.start_codes + row * width * positions_,
               batch_.start_weights + row * width, width, positions_))
      return leave_unsolved(row, 0);
    const Limits limits{batch_.tol, batch_.max_iter};
    const auto method = static_cast<Method>(batch_.method);
    const Outcome outcome = method == Method::kActiveSet
                                ? active_set(instance_, limits)
                                : conditional_gradient(instance_, limits, method);
    if (method != Method::kActiveSet) instance_.support.settle();
    oracle_.scatter(instance_.marginals().data(), marginals);
    batch_.gaps[row] = outcome.gap;
    batch_.iterations[row] = outcome.iterations;
    batch_.converged[row] = outcome.converged;
    batch_.sizes[row] = instance_.support.size();
    write(solution);
  }

 private:
  void leave_unsolved(int64_t row, double value) {
    std::fill_n(batch_.marginals + row * parts_, parts_, value);
    batch_.gaps[row] = value;
    batch_.converged[row] = value == 0;
    batch_.iterations[row] = batch_.sizes[row] = 0;
  }

  void write(Solution& solution) {
    const Support& support = instance_.support;
    const int64_t size = support.size(), positions = oracle_.positions();
    oracle_.gather(iota_.data(), place_.data());
    solution.codes.assign(size * positions_, -1);
    solution.parts.assign(size * positions_, -1);
    solution.extras.assign(size * most_extras_, -1);
    solution.factor.assign(size * size, 0.0);
    solution.weights.resize(size);
    double total = 0;
    for (int64_t k = 0; k < size; ++k) total += support.weight(k);
    for (int64_t k = 0; k < size; ++k) {
      solution.weights[k] = support.weight(k) / total;
      std::copy_n(support.others(k), positions, solution.codes.data() + k * positions_);
      for (int64_t i = 0; i < positions; ++i) {
        const int32_t part = support.row(k)[i];
        if (part >= 0) solution.parts[k * positions_ + i] = static_cast<int32_t>(place_[part]);
      }
      instance_.copy_extras(k, solution.extras.data() + k * most_extras_);
      support.factor().copy_column(k, solution.factor.data() + k * size + k);
    }
  }

  const Batch& batch_;
  Oracle oracle_;
  int64_t parts_, positions_, most_extras_;
  Workspace scores_, place_;
  std::vector<double> iota_;
  Instance<Oracle> instance_;
};

// make() builds the oracle of a thread.
template <class Make>
int solve_batch(const Batch& batch, Make make, Solutions** out, int64_t* shape) {
  using Oracle = decltype(make());
  int status = kOk;
  const int threads = static_cast<int>(std::max<int64_t>(1, std::min(batch.threads, batch.count)));
  try {
    auto solutions = std::make_unique<Solutions>();
    solutions->all.resize(static_cast<size_t>(batch.count));
    std::atomic<int64_t> next{0};  // supports differ in size, so each takes one when it is free
#pragma omp parallel for num_threads(threads) schedule(static, 1) if (threads > 1)
    for (int t = 0; t < threads; ++t) {
      try {
        BatchSolver<Oracle> solver(batch, make());
        if (t == 0) solver.describe(*solutions);
        for (int64_t row; (row = next++) < batch.count;) solver.solve(row, solutions->all[row]);
      } catch (const std::exception&) {  // only an allocation can fail
#pragma omp atomic write
        status = kOutOfMemory;
      }
    }
    if (status != kOk) return status;
    shape[0] = batch.count ? *std::max_element(batch.sizes, batch.sizes + batch.count) : 0;
    shape[1] = solutions->positions;
    shape[2] = solutions->extras;
    shape[3] = std::count(batch.converged, batch.converged + batch.count, false);
    *out = solutions.release();
  } catch (const std::exception&) {
    status = kOutOfMemory;
  }
  return status;
}

}  // namespace fenchel
