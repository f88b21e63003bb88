"""Natural language inference with latent alignments, and with regularized attention."""
