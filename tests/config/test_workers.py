"""Processes that start others."""

import os
import signal

import pytest

from scaleout.config.workers import signals_held


def test_an_interrupt_waits_until_processes_are_started():
    """In what Python calls around a fork it was printed as an exception that is ignored, and lost."""
    started = []

    def start():
        with signals_held():
            os.kill(os.getpid(), signal.SIGINT)
            started.append(True)

    with pytest.raises(KeyboardInterrupt):
        start()
    assert started
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_handlers_that_are_replaced_meanwhile_come_back():
    """dask-jobqueue replaces that of an interrupt when it is imported, by one that exits as if all were well."""
    with signals_held():
        signal.signal(signal.SIGINT, lambda *_: None)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
