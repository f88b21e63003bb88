// The best sequences of a batch.
#include "oracle.hpp"

FENCHEL_MAP(viterbi, n * m * m,
            fenchel::Viterbi<Num>(static_cast<int>(n), static_cast<int>(m), fenchel::Ends(option)))
