// The operators of dependency trees: Chu-Liu/Edmonds, and the matrix-tree theorem.
#include "inference.hpp"
#include "map.hpp"
#include "marginals.hpp"

FENCHEL_MAP(tree, 4 * n * n, TreeMap)

#define FENCHEL_TREES(suffix, T)                                                                    \
  FENCHEL_API int fenchel_tree_marginals_##suffix(                                                  \
      const T* scores, const T*, int64_t, const int64_t* lengths, int64_t batch, int64_t n,         \
      int64_t, int64_t single, double* values, T* u, T*, int threads) {                             \
    return fenchel::infer_trees<T>({scores, lengths, batch, n, single != 0, nullptr, values, u}, threads);\
  }                                                                                                 \
  FENCHEL_API int fenchel_tree_product_##suffix(                                                    \
      const T* scores, const T*, int64_t, const int64_t* lengths, int64_t batch, int64_t n,         \
      int64_t, int64_t single, const T* of_u, const T*, T* u, T*, int threads) {                    \
    return fenchel::infer_trees<T>({scores, lengths, batch, n, single != 0, of_u, nullptr, u}, threads);\
  }                                                                                                 \
  FENCHEL_INFERENCE_SIGNATURES(tree, suffix)

FENCHEL_TREES(f32, float)
FENCHEL_TREES(f64, double)
