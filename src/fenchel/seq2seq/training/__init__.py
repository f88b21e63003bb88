"""Training: steps, validation, checkpoints, and several processes."""
