"""Predictions held against measurements: our own, published tables, and the figures of papers."""
