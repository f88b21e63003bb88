// The best choices of a batch; the option is twice the number, plus one if that is exact.
#include "oracle.hpp"

FENCHEL_MAP(budget, 8 * n, fenchel::Budget<Num>(static_cast<int>(n), static_cast<int>(option / 2), option % 2))
