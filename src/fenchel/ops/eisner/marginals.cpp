// Log-partitions, marginals and their derivatives of projective trees of a batch of sentences.
#include "sums.hpp"

FENCHEL_INFERENCE(spans, 16 * n * n * n, fenchel::SpanSums(static_cast<int>(n), option != 0))
