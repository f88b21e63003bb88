// The best projective dependency trees of a batch.
#include "oracle.hpp"

FENCHEL_MAP(eisner, n * n * n, fenchel::Eisner(static_cast<int>(n), option != 0))
