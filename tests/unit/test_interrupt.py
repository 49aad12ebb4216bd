"""Ctrl-C for a command that works through a list."""

import signal

import pytest

from clear_mlflow.cli.interrupt import stoppable


def test_the_first_signal_stops_and_its_repeats_are_ignored():
    """A Ctrl-C under mlflow run arrives twice: what is done after the first is not disturbed."""
    before = signal.getsignal(signal.SIGINT)
    with stoppable() as received:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
    assert received == [signal.SIGINT, signal.SIGTERM]
    assert signal.getsignal(signal.SIGINT) is before
