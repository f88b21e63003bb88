// The best matchings of a batch.
#include "oracle.hpp"

FENCHEL_MAP(assignment, 4 * n * m, fenchel::Assignment<Num>(static_cast<int>(n), static_cast<int>(m)))
