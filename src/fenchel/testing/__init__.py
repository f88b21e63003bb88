"""The contract of mappings and structures, for those who write their own."""

from ._enumeration import enumerate_codes, enumerate_members
from ._mapping import check_mapping
from ._structure import check_structure

__all__ = ["check_mapping", "check_structure", "enumerate_codes", "enumerate_members"]
