"""Sparse and low-rank layers, which skip zeros."""
