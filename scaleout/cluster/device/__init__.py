"""Devices: their file, the time of a kernel on them, power, the host that issues calls, work-groups."""
