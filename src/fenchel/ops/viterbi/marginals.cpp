// Log-partitions, marginals and their derivatives of a batch of sequences.
#include "chain.hpp"

FENCHEL_INFERENCE(chain, 8 * n * m * m,
                  fenchel::Chain(static_cast<int>(n), static_cast<int>(m), fenchel::Ends(option)))
