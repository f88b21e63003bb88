// The operators of choices of at most, or exactly, k of d entries: selection, and dynamic programming.
#include "map.hpp"
#include "marginals.hpp"

FENCHEL_MAP(budget, 8 * n, BudgetMap)
FENCHEL_INFERENCE(budget, 8 * n * (option / 2 + 1), BudgetMarginals)
