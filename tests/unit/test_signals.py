"""Signals: the first is forwarded, at any time."""

import os
import signal

import pytest
from closed_streams import run_without_stderr

from clear_mlflow.process.signals import StoppingSignals, interrupt_on_signal


def test_the_first_signal_is_forwarded_and_repeats_are_ignored():
    stopped = []
    with StoppingSignals() as signals:
        signals.hand_to(lambda: stopped.append(1))
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
    assert stopped == [1]
    assert signals.received == [signal.SIGTERM, signal.SIGINT]
    with StoppingSignals() as signals:  # before there is anything to stop
        os.kill(os.getpid(), signal.SIGTERM)
        signals.hand_to(lambda: stopped.append(2))
    assert stopped == [1, 2]


def test_an_ignored_signal_stays_ignored():
    """As nohup requests."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StoppingSignals() as signals:
            os.kill(os.getpid(), signal.SIGHUP)
        assert signals.received == []
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_signal_is_forwarded_if_standard_error_is_closed():
    code = """
import os, signal, sys
from clear_mlflow.process.signals import StoppingSignals
with StoppingSignals() as signals:
    signals.hand_to(lambda: os.write(1, b"stopped"))
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGTERM)
os._exit(0)
"""
    assert run_without_stderr(code) == (b"stopped", 0)


def test_the_first_signal_stops_and_its_repeats_are_ignored():
    """A Ctrl-C under mlflow run arrives twice, and must not disturb the end."""
    before = signal.getsignal(signal.SIGINT)
    with interrupt_on_signal() as received:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
    assert received == [signal.SIGINT, signal.SIGTERM]
    assert signal.getsignal(signal.SIGINT) is before
