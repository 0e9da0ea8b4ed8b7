"""Studies: one job compared under several schedules, strategies, bucket sizes, back ends, and the search for plans."""
