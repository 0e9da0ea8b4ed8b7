"""The search for plans: the space, estimates block by block, lower bounds, and the best of all."""
