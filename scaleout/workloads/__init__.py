"""Workloads: validated files, the programs they become, pipeline schedules, and memory."""
