"""Smaller networks that compute the same."""
