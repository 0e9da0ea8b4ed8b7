"""Network models: what a collective or message costs on a topology, and the time below which none can be.

`alpha_beta` costs the rounds of `collectives` in closed form. `flow` routes their messages over the links of `routes`,
and all that is in flight shares them max-min fairly; messages that are alike by a symmetry of the links are one flow.
"""
