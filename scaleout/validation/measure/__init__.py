"""Measurements on GPUs: kernels, collectives, contention, whole steps, fused operators, and the host.

`experiments` lists what can be measured and the rows of each, `shapes` those of kernels, `machine` has them measured by
`workers`, a process per GPU, `checkpoint` keeps them, and `machine_files` turns them into files of devices and
topologies.
Modules that need PyTorch (the extra `measure`) are imported only when GPUs are used.
"""
