"""Network models: what a collective or message costs on a topology, and the time below which none can be.

`alpha_beta` charges the steps of `collectives` in closed form (`load`). `link` routes their messages over `links`, in
closed form along `even` dimensions and by `routing` along others, and all that is in flight (`traffic`) shares them
max-min fairly (`sharing`); messages that are alike by a `symmetry` are one flow of a `demand`, and `meetings` shows it
all to the clock. `bound` knows only volumes and links.
"""
