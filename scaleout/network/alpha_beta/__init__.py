"""Collectives and messages in closed form, and the lower bound that no algorithm can beat."""
