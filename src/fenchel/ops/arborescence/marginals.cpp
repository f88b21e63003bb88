// Log-partitions, marginals and their derivatives of a batch of sentences.
#include "trees.hpp"

FENCHEL_INFERENCE(trees, 4 * n * n * n, fenchel::Trees(static_cast<int>(n), option != 0))
