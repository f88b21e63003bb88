"""A small HTTP service of a model; `fenchel serve` runs it."""
