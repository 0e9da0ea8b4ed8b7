"""Network models: what a collective or message costs on a topology, and the time below which none can be.

`alpha_beta` charges the steps of `collectives` in closed form; `bound` knows only volumes and links.
"""
