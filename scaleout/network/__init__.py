"""Network models: the time of a collective or message on a topology, and a lower bound to it.

`alpha_beta` costs the rounds of `collectives` in closed form. `flow` routes their messages over the links of `routes`,
which all that is in flight shares max-min fairly.
"""
