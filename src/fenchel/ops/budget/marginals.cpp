// Log-partitions, marginals and their derivatives of a batch of choices.
#include "counts.hpp"

FENCHEL_INFERENCE(counts, 8 * n * (option / 2 + 1),
                  fenchel::Counts(static_cast<int>(n), static_cast<int>(option / 2), option % 2))
