"""Drop-in surfaces of the libraries that users come from: only the import line changes."""

from . import entmax

__all__ = ["entmax"]
