// The best projective dependency trees of a batch.
#include "oracle.hpp"

FENCHEL_MAP(eisner, n * n * n, fenchel::Eisner<Num>(static_cast<int>(n), option != 0))
