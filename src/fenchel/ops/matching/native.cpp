// The best matchings of a batch.
#include "map.hpp"

FENCHEL_MAP(matching, 4 * n * m, fenchel::MatchingMap<Num>(static_cast<int>(n), static_cast<int>(m)))
