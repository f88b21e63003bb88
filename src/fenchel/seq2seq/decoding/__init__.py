"""Decoding: search with certificates, scores of given outputs, and measures of outputs."""
