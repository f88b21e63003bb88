// The operator of matchings: the algorithm of Jonker and Volgenant.
#include "map.hpp"

FENCHEL_MAP(matching, 4 * n * m, MatchingMap)
