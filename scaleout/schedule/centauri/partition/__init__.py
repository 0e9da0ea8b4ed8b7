"""The partition space of communication: primitives, groups and workloads, each a pass from program to program.

`primitive` substitutes a collective by others with the same effect, `group` carries one out level by level of the
network, `workload` cuts one and the kernels next to it into chunks. They are applied in this order.

Source: Chen et al., Centauri, ASPLOS 2024, Sec. 3.1.
"""
