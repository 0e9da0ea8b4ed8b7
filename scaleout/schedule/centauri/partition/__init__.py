"""Centauri's partition space, in the order of its passes: `primitive`, `group`, `workload`."""
