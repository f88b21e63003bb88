// The operators of sequences of tags: Viterbi and forward-backward.
#include "map.hpp"
#include "marginals.hpp"

FENCHEL_MAP(sequence, n * m * m,
            fenchel::SequenceMap<Num>(static_cast<int>(n), static_cast<int>(m), fenchel::Ends(option)))
FENCHEL_INFERENCE(sequence, 8 * n * m * m,
                  fenchel::SequenceMarginals(static_cast<int>(n), static_cast<int>(m), fenchel::Ends(option)))
