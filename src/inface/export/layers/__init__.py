"""Layers that compute with their zeros left out."""
