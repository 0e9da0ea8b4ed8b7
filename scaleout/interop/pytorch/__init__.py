"""Recordings of PyTorch: Kineto traces of the profiler and execution traces of the host, read into programs."""
