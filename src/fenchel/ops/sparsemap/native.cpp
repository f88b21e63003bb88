// SparseMAP of every structure with an oracle of the library.
#include "../tree/map.hpp"
#include "../matching/map.hpp"
#include "../budget/map.hpp"
#include "../projective_tree/map.hpp"
#include "../sequence/map.hpp"
#include "batch.hpp"
#include "choice.hpp"

// `shape` gets the size of the largest support, how many positions and extra parts its structures have, how many
// instances did not converge, the size of the largest factor, how many instances were solved at once, and how
// many numbers the groups and the links of one have at most. Only if `wants_face` is it known which of them have
// structures that span their faces. Map is the oracle of the structure's MAP operator.
#define FENCHEL_SPARSEMAP(name, Map)                                                               \
  FENCHEL_API int fenchel_sparsemap_##name(                                                        \
      const double* scores, const double* extra_scores, int64_t extra_step,                        \
      const int64_t* lengths, int64_t lengths_step, int64_t count, int64_t n, int64_t m,           \
      int64_t option, const int32_t* start_codes, const double* start_weights,                     \
      int64_t start_width, int64_t method, int64_t regularize, int64_t wants_face, int64_t max_iter, double tol, \
      double* marginals, double* gaps, int64_t* iterations, int64_t* sizes, bool* converged,       \
      fenchel::Solutions** solutions, int64_t* shape, void* const* python, int threads) {          \
    const fenchel::Batch batch{scores,        extra_scores, extra_step, lengths,    lengths_step,  \
                               count,         start_codes,  start_weights, start_width, method,    \
                               regularize,    wants_face,   max_iter,   tol,        marginals,  gaps, \
                               iterations,    sizes,        converged,  python,     threads};      \
    return fenchel::solve_batch(batch, fenchel::oracle_maker<fenchel::Map>(n, m, option),          \
                                solutions, shape);                                                 \
  }                                                                                                \
  FENCHEL_SIGNATURE(                                                                               \
      sparsemap_##name,                                                                            \
      "scores, extra_scores, extra_step, lengths, lengths_step, count, n, m, option, "             \
      "start_codes, start_weights, start_width, method, regularize, wants_face, max_iter, tol, marginals, "    \
      "gaps, iterations, sizes, converged, solutions, shape, python, threads")

FENCHEL_SPARSEMAP(sequence, SequenceMap)
FENCHEL_SPARSEMAP(matching, MatchingMap)
FENCHEL_SPARSEMAP(tree, TreeMap)
FENCHEL_SPARSEMAP(projective_tree, ProjectiveTreeMap)
FENCHEL_SPARSEMAP(choice, ChoiceMap)
FENCHEL_SPARSEMAP(budget, BudgetMap)

// Writes the solutions, padded to `width` structures each, and frees them. Factors are padded to `factor_width`;
// at_once is null if no instance was solved so; groups and links are null if they have no numbers.
FENCHEL_API int fenchel_sparsemap_take(fenchel::Solutions* solutions, int64_t width, int64_t factor_width,
                                       int64_t groups_width, int64_t links_width, int32_t* codes, int32_t* parts,
                                       int32_t* extras, double* weights, double* factor,
                                       bool* has_face, bool* at_once, int32_t* groups, int32_t* links) {
  const int64_t positions = solutions->positions, max_extras = solutions->extras;
  for (const fenchel::Solution& one : solutions->all) {
    const int64_t size = one.at_once ? 0 : static_cast<int64_t>(one.weights.size());
    const auto put = [&](const auto& from, auto*& to, int64_t all, auto filling) {
      to = std::fill_n(std::copy(from.begin(), from.end(), to),
                       all - static_cast<int64_t>(from.size()), filling);
    };
    put(one.codes, codes, width * positions, -1);
    put(one.parts, parts, width * positions, -1);
    put(one.extras, extras, width * max_extras, -1);
    put(one.weights, weights, width, 0.0);
    *has_face++ = one.has_face;
    if (at_once) *at_once++ = one.at_once;
    if (groups) put(one.groups, groups, groups_width, -1);
    if (links) put(one.links, links, links_width, -1);
    for (int64_t k = 0; k < factor_width; ++k) {
      const bool inside = k < size;
      if (inside) std::copy_n(one.factor.data() + k * size, size, factor);
      std::fill_n(factor + (inside ? size : 0), inside ? factor_width - size : factor_width, 0.0);
      if (!inside) factor[k] = 1;
      factor += factor_width;
    }
  }
  delete solutions;
  return fenchel::kOk;
}
FENCHEL_SIGNATURE(sparsemap_take,
                  "solutions, width, factor_width, groups_width, links_width, codes, parts, extras, weights, "
                  "factor, has_face, at_once, groups, links")
