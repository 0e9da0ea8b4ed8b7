"""Centauri's partition space, in the order of its passes: primitives and groups, the workload of GEMMs, all-to-alls."""
