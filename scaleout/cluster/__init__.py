"""The machine: devices, the topology that joins them, and where process groups lie in it."""
