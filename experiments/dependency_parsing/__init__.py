"""Dependency parsing with the structured losses (section 5.1 of the SparseMAP paper)."""
