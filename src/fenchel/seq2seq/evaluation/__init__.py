"""Evaluation: measures of a model's outputs, its sparsity and its certificates."""
