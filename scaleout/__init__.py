"""scaleout."""
