"""Links and ports of a topology, the routes of messages over them, and their symmetry."""
