"""Fenchel-Young losses: of mappings, alone or fused with a linear layer, and of structures."""
