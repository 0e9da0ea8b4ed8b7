"""ASTRA-sim's own input files and options to the exact times of its two analytical back ends, in whole nanoseconds.

*unaware* has no contention, so that a collective can take less time than its bytes need on the links; on *aware* a link
carries one message at a time. Inputs on which ASTRA-sim hangs, or silently answers wrongly, are refused with a reason.

Source: ASTRA-sim 2.0 at commit 518bd51 (2026-03-26), behaviour as measured; none of its code.
"""

from scaleout.interop.astra.job import BACKENDS, Job, Options, load
from scaleout.interop.astra.run import History, Outcome, run, simulate

__all__ = ["BACKENDS", "History", "Job", "Options", "Outcome", "load", "run", "simulate"]
