"""Decoding: search with certificates, and the evaluation of what it finds."""
