// The best dependency trees of a batch.
#include "oracle.hpp"

FENCHEL_MAP(arborescence, 4 * n * n, fenchel::Arborescence<Num>(static_cast<int>(n), option != 0))
