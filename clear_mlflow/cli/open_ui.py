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
from contextlib import contextmanager, nullcontext, suppress
from typing import Literal

import click

from clear_mlflow.cli.command import command
from clear_mlflow.core.errors import ConfigError, TrackingError
from clear_mlflow.process.signals import interrupt_on_signal

_HOST = "127.0.0.1"
_START_SECONDS = 120.0  # on a busy machine; otherwise about five
_POLL_SECONDS = 0.25


@command(
    name="open",
    arguments={"target": "[RUN|EXPERIMENT|COMPARISON]"},
    examples=("clear-mlflow open", "clear-mlflow open RUN_ID", "clear-mlflow open first"),
)
def open_ui(
    target: str | None = None, *, port: int | Literal["auto"] = "auto", browser: bool = True
) -> None:
    """Open a run's report, an experiment's leaderboard or a comparison's page in MLflow.

    Without an argument, it opens the leaderboard of the newest run's experiment. If the store is a
    server, the page is opened there. Otherwise a server is started on this machine and runs until
    Ctrl-C.

    Args:
        target: id of a run, or name or id of an experiment.
        port: port of a server that is started. auto: a free port.
        browser: open a browser. The address is printed in any case.
    """
    from clear_mlflow.store.client import is_server, open_store
    from clear_mlflow.store.ui_urls import find_page_url, format_server_url

    client = open_store()
    page = find_page_url(client, target)
    store = client.tracking_uri
    has_server = is_server(store)
    server = nullcontext(format_server_url(store)) if has_server else _run_server(store, port)
    with suppress(KeyboardInterrupt), interrupt_on_signal(), server as base:
        click.echo(f"{base}/{page}")
        sys.stdout.flush()
        if browser:
            webbrowser.open(f"{base}/{page}")
        if not has_server:
            click.echo("the server runs until Ctrl-C")
            signal.pause()


@contextmanager
def _run_server(store: str, requested_port: int | Literal["auto"]) -> Iterator[str]:
    """Start an MLflow server on this machine, yield its URL when it answers, and end it.

    store: URI of the tracking store. Raises TrackingError if the server does not answer.
    """
    import requests  # already loaded by MLflow

    port = _find_free_port(0 if requested_port == "auto" else requested_port)
    base = f"http://{_HOST}:{port}"
    server_command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", store]
    server_command += ["--host", _HOST, "--port", str(port), "--workers", "1"]
    # In its own process group, which is ended with its workers; Ctrl-C reaches only this process.
    server = subprocess.Popen(  # noqa: S603
        server_command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        deadline = time.monotonic() + _START_SECONDS
        is_ready = False
        while not is_ready:
            if server.poll() is not None or time.monotonic() > deadline:
                raise TrackingError(
                    f"the server at {base} does not answer; start it by hand to see why: "
                    f"mlflow server --backend-store-uri {store} --port {port}"
                )
            time.sleep(_POLL_SECONDS)
            with suppress(requests.RequestException):
                is_ready = requests.get(f"{base}/health", timeout=2).ok
        yield base
    finally:
        if server.poll() is None:
            os.killpg(server.pid, signal.SIGTERM)
            server.wait()


def _find_free_port(requested: int) -> int:
    """Return the requested port, or any free one if it is 0.

    Raises ConfigError if the port is taken.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_HOST, requested))
        except (OSError, OverflowError) as error:
            raise ConfigError(f"port is {requested}: {error}; pass another one, or auto") from error
        return int(probe.getsockname()[1])
