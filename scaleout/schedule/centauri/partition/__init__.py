"""Centauri's partition space, in the order of its passes: primitives and groups in `group`, then `workload`, `exchange`."""
