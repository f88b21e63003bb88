"""Pairs of texts: vocabularies, readers, and batches."""
