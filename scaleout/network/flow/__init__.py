"""Collectives and messages as flows that share single links max-min fairly; all numba code lies here."""
