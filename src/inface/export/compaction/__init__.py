"""Compaction: remove the channels that zeros make superfluous, and keep the outputs."""
