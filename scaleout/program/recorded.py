"""Words by which nodes of a recording are known, in programs and in traces."""

HOST = "host"
"""Name of nodes in which the host computes between its calls."""
UNTOLD = "untold wait"
"""Name of nodes in which a stream waited for what the recording does not tell."""
BEFORE = "before the first step"
"""Phase of kernels that were launched before the recording began: the rest of a step that was not recorded."""
