"""The cost of a network before and after export: bytes, operations and time."""
