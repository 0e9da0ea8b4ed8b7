"""ASTRA-sim's own inputs, answered exactly: its files and options to its nanoseconds.

`run` reads network.yml, system.json, communicator groups and the Chakra traces of all ranks, and follows the timing
rules of ASTRA-sim's two analytical back ends, *unaware* (no contention) and *aware* (links carry one message at a
time). It is there for comparison: the unaware back end can beat the wire. What ASTRA-sim takes in silence and
answers wrongly, or hangs on, is refused with a reason. Times are whole nanoseconds throughout, and names end in
`_ns`; the rest of scaleout counts in seconds and knows nothing of this package.

Source: ASTRA-sim 2.0 at commit 518bd51 (2026-03-26), behaviour as measured; none of its code.
"""

from scaleout.interop.astra.job import BACKENDS, Job, Options, load
from scaleout.interop.astra.run import History, Outcome, run, simulate

__all__ = ["BACKENDS", "History", "Job", "Options", "Outcome", "load", "run", "simulate"]
