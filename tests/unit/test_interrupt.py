"""Ctrl-C at a moment in which Python forgets what is raised."""

import signal
import time
import weakref

import pytest

from clear_mlflow.cli.interrupt import stoppable

LONG = 60  # seconds: a bound against hangs


class Signals:
    """An object that a signal comes in the way of when it is taken away."""

    def __del__(self):
        signal.raise_signal(signal.SIGINT)


class Plain:
    pass


def take_away_and_wait(objects):
    objects.clear()
    until = time.monotonic() + LONG
    while time.monotonic() < until:
        time.sleep(0.01)


def test_a_signal_is_not_lost_while_an_object_is_taken_away(capfd):
    """What is raised in __del__ is printed and forgotten; it is raised a moment later."""
    objects = [Signals()]
    with pytest.raises(KeyboardInterrupt), stoppable() as received:
        take_away_and_wait(objects)
    assert received == [signal.SIGINT]
    assert not capfd.readouterr().err


def test_a_signal_is_not_lost_in_the_callback_of_a_weak_reference():
    """The same of the callbacks that weak dictionaries and finalizers have."""
    objects = [Plain()]
    weakref.finalize(objects[0], signal.raise_signal, signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), stoppable() as received:
        take_away_and_wait(objects)
    assert received == [signal.SIGTERM]


def test_a_repeat_that_was_postponed_harms_nobody():
    """The first comes through, the one that waits is called off with the block."""

    def both():
        Signals()  # gone at once
        signal.raise_signal(signal.SIGHUP)

    with pytest.raises(KeyboardInterrupt), stoppable() as received:
        both()
    time.sleep(0.1)
    assert received == [signal.SIGHUP]
