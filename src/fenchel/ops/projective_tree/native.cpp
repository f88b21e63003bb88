// The operators of projective dependency trees: Eisner's algorithm, and inside-outside.
#include "map.hpp"
#include "marginals.hpp"

FENCHEL_MAP(projective_tree, n * n * n, ProjectiveTreeMap)
FENCHEL_INFERENCE(projective_tree, 16 * n * n * n, ProjectiveTreeMarginals)
