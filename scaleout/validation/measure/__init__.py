"""Measurements on the GPUs at hand: kernels, collectives, contention, whole steps, fused operators, and the host.

`experiments` lists what can be measured, `plans` and `shapes` which rows; `log` keeps rows as they come, `workers`
measures them, one process a GPU, and `machine_files` turns them into files that other verbs take. What imports PyTorch
(the extra `measure`) is imported only where a GPU is asked for.
"""
