// SparseMAP in rounds for an oracle outside of the library: begin, then ask and tell until all instances have
// ended, then finish, collect and free.
#include "rounds.hpp"

namespace fenchel {
namespace {

struct Rounds {
  Query query;
  std::vector<std::unique_ptr<RoundSolver>> solvers;  // null where there is no structure

  template <class Work>
  int each(int64_t num, int threads, Work work) {
    return parallel_rows(num, 16 * query.features(), threads, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) work(i);
    });
  }

  // Row i of tensors (…, parts) and (…, extras).
  template <class T>
  PairOf<T> row(T* parts, T* extras, int64_t i) const {
    return {parts + i * query.parts, extras + i * query.extras};
  }
};

}  // namespace
}  // namespace fenchel

using fenchel::Rounds;

// `best_…` are the best structures for the scores alone, where `found` says that there is one; `start_…` are
// (count, start_width, …), or null.
FENCHEL_API int fenchel_sparsemap_begin(
    const double* scores, const double* extra_scores, int64_t count, int64_t parts, int64_t extras, int64_t method,
    int64_t regularize, int64_t max_iter, double tol, const double* best_parts, const double* best_extras,
    const bool* found, const double* start_parts, const double* start_extras, const double* start_weights,
    int64_t start_width, void** out, int threads) {
  try {
    auto rounds = std::make_unique<Rounds>();
    rounds->query = {scores,          extra_scores, count, parts, extras, regularize != 0,
                     static_cast<fenchel::Method>(method), {tol, max_iter}};
    rounds->solvers.resize(static_cast<size_t>(count));
    const int status = rounds->each(count, threads, [&](int64_t b) {
      if (!found[b]) return;
      rounds->solvers[b] =
          std::make_unique<fenchel::RoundSolver>(rounds->query, b, rounds->row(best_parts, best_extras, b));
      for (int64_t k = b * start_width; k < (b + 1) * start_width; ++k)
        rounds->solvers[b]->start_from(rounds->row(start_parts, start_extras, k), start_weights[k]);
      rounds->solvers[b]->start();
    });
    if (status != fenchel::kOk) return status;
    *out = rounds.release();
  } catch (const std::exception&) {
    return fenchel::kOutOfMemory;
  }
  return fenchel::kOk;
}
FENCHEL_SIGNATURE(sparsemap_begin,
                  "scores, extra_scores, count, parts, extras, method, regularize, max_iter, tol, best_parts, "
                  "best_extras, found, start_parts, start_extras, start_weights, start_width, rounds, threads")

// Writes the scores (num, …) for which `num` of the instances want the best structure.
FENCHEL_API int fenchel_sparsemap_ask(void* self, const int64_t* instances, int64_t num, double* parts,
                                      double* extras, int threads) {
  auto& rounds = *static_cast<Rounds*>(self);
  return rounds.each(num, threads,
                     [&](int64_t i) { rounds.solvers[instances[i]]->ask(rounds.row(parts, extras, i)); });
}
FENCHEL_SIGNATURE(sparsemap_ask, "rounds, instances, num, parts, extras, threads")

// Takes these structures (num, …); see `RoundSolver::tell`.
FENCHEL_API int fenchel_sparsemap_tell(void* self, const int64_t* instances, int64_t num, const double* parts,
                                       const double* extras, bool* going, double* shortfalls, int threads) {
  auto& rounds = *static_cast<Rounds*>(self);
  return rounds.each(num, threads, [&](int64_t i) {
    going[i] = rounds.solvers[instances[i]]->tell(rounds.row(parts, extras, i), shortfalls[i]);
  });
}
FENCHEL_SIGNATURE(sparsemap_tell, "rounds, instances, num, parts, extras, going, shortfalls, threads")

FENCHEL_API int fenchel_sparsemap_finish(void* self, double* gaps, int64_t* iterations, int64_t* sizes,
                                         bool* converged, int threads) {
  auto& rounds = *static_cast<Rounds*>(self);
  return rounds.each(rounds.query.count, threads, [&](int64_t b) {
    fenchel::Outcome outcome;
    auto& solver = rounds.solvers[b];
    if (solver) solver->finish(), outcome = solver->outcome();
    gaps[b] = outcome.gap, iterations[b] = outcome.iterations, converged[b] = outcome.converged;
    sizes[b] = solver ? solver->support().size() : 0;
  });
}
FENCHEL_SIGNATURE(sparsemap_finish, "rounds, gaps, iterations, sizes, converged, threads")

// Writes the marginals, and the supports, padded to `width` structures each.
FENCHEL_API int fenchel_sparsemap_collect(void* self, int64_t width, double* marginals, double* parts, double* extras,
                                          double* weights, double* factor, int threads) {
  auto& rounds = *static_cast<Rounds*>(self);
  const fenchel::Query& query = rounds.query;
  return rounds.each(query.count, threads, [&](int64_t b) {
    const fenchel::DenseSupport* support = rounds.solvers[b] ? &rounds.solvers[b]->support() : nullptr;
    const int64_t size = support ? support->size() : 0;
    const double total = support ? support->total_weight() : 1;
    double* u = std::fill_n(marginals + b * query.parts, query.parts, 0.0) - query.parts;
    for (int64_t k = 0; k < width; ++k) {
      const bool inside = k < size;
      const int64_t at = b * width + k;
      for (int64_t j = 0; j < width; ++j)
        factor[at * width + j] = inside && k <= j && j < size ? support->factor(k, j) : k == j;
      const auto to = rounds.row(parts, extras, at);
      weights[at] = inside ? support->weight(k) / total : 0;
      if (inside) {
        std::copy_n(support->row(k), query.parts, to.parts);
        std::copy_n(query.regularize ? support->row(k) + query.parts : support->others(k), query.extras, to.extras);
        fenchel::add_multiple(weights[at], to.parts, u, query.parts);
      } else {
        std::fill_n(to.parts, query.parts, 0.0);
        std::fill_n(to.extras, query.extras, 0.0);
      }
    }
  });
}
FENCHEL_SIGNATURE(sparsemap_collect, "rounds, width, marginals, parts, extras, weights, factor, threads")

FENCHEL_API int fenchel_sparsemap_free(void* self) {
  delete static_cast<Rounds*>(self);
  return fenchel::kOk;
}
FENCHEL_SIGNATURE(sparsemap_free, "rounds")
