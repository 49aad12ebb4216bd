"""``clear-mlflow open``: a run's report, an experiment's leaderboard or a comparison, in MLflow."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import click

from clear_mlflow.cli.help import Command
from clear_mlflow.cli.options import option
from clear_mlflow.core.errors import ConfigError, TrackingError
from clear_mlflow.learning.parameters.recipes import AUTO
from clear_mlflow.learning.parameters.values import whole
from clear_mlflow.process.signals import interrupt_on_signal

_HOST = "127.0.0.1"
_START_SECONDS = 120.0  # on a machine with much else to do; five otherwise
_BETWEEN_LOOKS = 0.25


@click.command(
    name="open",
    cls=Command,
    examples=("clear-mlflow open", "clear-mlflow open RUN_ID", "clear-mlflow open first"),
)
@click.argument("target", required=False, metavar="[RUN|EXPERIMENT|COMPARISON]")
@option(
    "--port",
    "PORT",
    "Port of the server that is started where the store has none; auto: a free port.",
    default=AUTO,
    parse=whole(least=1),
)
@option("--browser", ["yes", "no"], "Open a browser; the address is printed in any case.")
def open_ui(target: str | None, port: int | None, browser: str) -> None:
    """Open a run's report, an experiment's leaderboard or a comparison's page in MLflow.

    Without an argument, it opens the leaderboard of the newest run's experiment. A store that is a
    server is opened there; for any other, a server is started on this machine and runs until
    Ctrl-C.
    """
    from clear_mlflow.api.load import open_store
    from clear_mlflow.store.client import is_server
    from clear_mlflow.store.ui_urls import find_page_url, format_server_url

    client = open_store()
    page = find_page_url(client, target)
    store = client.tracking_uri
    if is_server(store):
        _show(f"{format_server_url(store)}/{page}", browser == "yes")
        return
    with (
        suppress(KeyboardInterrupt),
        interrupt_on_signal(),
        _server(store, _free_port(port or 0)) as base,
    ):
        _show(f"{base}/{page}", browser == "yes")
        click.echo("the server runs until Ctrl-C")
        signal.pause()


def _show(address: str, in_browser: bool) -> None:
    click.echo(address)
    sys.stdout.flush()
    if in_browser:
        webbrowser.open(address)


@contextmanager
def _server(store: str, port: int) -> Iterator[str]:
    """An MLflow server over a store, and its address; it ends with this command."""
    base = f"http://{_HOST}:{port}"
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", store]
    command += ["--host", _HOST, "--port", str(port), "--workers", "1"]
    # A group of its own: it is ended with its workers, and a Ctrl-C comes to this process alone.
    server = subprocess.Popen(  # noqa: S603
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        deadline = time.monotonic() + _START_SECONDS
        while not _answers(base):
            if server.poll() is not None or time.monotonic() > deadline:
                raise TrackingError(
                    f"the server at {base} does not answer; start it by hand to see why: "
                    f"mlflow server --backend-store-uri {store} --port {port}"
                )
            time.sleep(_BETWEEN_LOOKS)
        yield base
    finally:
        if server.poll() is None:
            os.killpg(server.pid, signal.SIGTERM)
            server.wait()


def _answers(base: str) -> bool:
    import requests  # which MLflow has loaded by now

    try:
        return bool(requests.get(f"{base}/health", timeout=2).ok)
    except requests.RequestException:
        return False


def _free_port(wanted: int) -> int:
    """The port that is wanted, or any for 0; a ConfigError where another program has it."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_HOST, wanted))
        except (OSError, OverflowError) as error:
            raise ConfigError(f"port is {wanted}: {error}; pass another one, or auto") from error
        return int(probe.getsockname()[1])
