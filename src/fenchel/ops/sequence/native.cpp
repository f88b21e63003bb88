// The operators of sequences of tags: Viterbi's algorithm, and forward-backward.
#include "map.hpp"
#include "marginals.hpp"

FENCHEL_MAP(sequence, n * m * m, SequenceMap)
FENCHEL_INFERENCE(sequence, 8 * n * m * m, SequenceMarginals)
