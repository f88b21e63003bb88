"""The contract of mappings and structures, for those who write their own."""

from ._enumeration import enumerate_codes, enumerate_members

__all__ = ["enumerate_codes", "enumerate_members"]
