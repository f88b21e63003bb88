// The operators of choices of at most, or exactly, k of d entries: sorting, and counting.
#include "map.hpp"
#include "marginals.hpp"

FENCHEL_MAP(budget, 8 * n, fenchel::BudgetMap<Num>(static_cast<int>(n), static_cast<int>(option / 2), option % 2))
FENCHEL_INFERENCE(budget, 8 * n * (option / 2 + 1),
                  fenchel::BudgetMarginals(static_cast<int>(n), static_cast<int>(option / 2), option % 2))
