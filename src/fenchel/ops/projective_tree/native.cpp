// The operators of projective dependency trees: Eisner's algorithm, inside and outside.
#include "map.hpp"
#include "marginals.hpp"

FENCHEL_MAP(projective_tree, n * n * n, fenchel::ProjectiveTreeMap<Num>(static_cast<int>(n), option != 0))
FENCHEL_INFERENCE(projective_tree, 16 * n * n * n, fenchel::ProjectiveTreeMarginals(static_cast<int>(n), option != 0))
