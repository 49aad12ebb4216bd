"""Commands that work on stored runs: compare, export, open and sync."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import webbrowser
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from clear_mlflow.api.verbs import compare as compare_runs
from clear_mlflow.api.verbs import export as export_runs
from clear_mlflow.cli import output
from clear_mlflow.cli.command import COMPARISON, METRICS, SELECTION, command
from clear_mlflow.core.disk import OFFLINE_VARIABLE
from clear_mlflow.core.errors import ConfigError, TrackingError, check_unused
from clear_mlflow.core.text import safe_repr
from clear_mlflow.process.signals import interrupt_on_signal

if TYPE_CHECKING:
    from clear_mlflow.scoring import ActionResult

_HOST = "127.0.0.1"
_START_SECONDS = 120.0  # on a busy machine; otherwise about five
_POLL_SECONDS = 0.25


@command(
    compare_runs,
    arguments={"runs": "[RUN|EXPERIMENT|BUNDLE]..."},
    headings={
        SELECTION: "runs filter",
        COMPARISON: "group_by rank_by baseline margin at_equal oracle across published",
        METRICS: "metrics",
    },
    options=[output.JSON_OPTION],
    omit=("log",),
    examples=(
        "clear-mlflow compare first",
        "clear-mlflow compare RUN_ID RUN_ID bundles/",
        "clear-mlflow compare first --group-by strategy,memory --baseline naive",
        "clear-mlflow compare first --margin 1",
    ),
    is_entry_point=True,
)
def compare(**options: Any) -> None:
    """Compare runs, store the comparison, and print it."""
    compared = compare_runs(**options)
    if output.wants_json():
        output.print_json(compared.to_dict())
    else:
        output.print_comparison(compared.comparison)
        click.echo()
    if compared.problem:
        raise TrackingError(compared.problem)
    if not output.wants_json():
        output.print_links(compared.links)


@command(
    export_runs,
    arguments={"runs": "[RUN|EXPERIMENT]...", "to": "DIR|FILE.tar.xz"},
    headings={SELECTION: "filter"},
    examples=(
        "clear-mlflow export RUN_ID bundles/replay-0",
        "clear-mlflow export paper supplement.tar.xz --licence CC-BY-4.0",
    ),
)
def export(**options: Any) -> None:
    """Export runs, and print the path that was written."""
    if options["runs"] is None and options["filter"] is None:
        raise ConfigError(
            f"no runs are chosen to write to {safe_repr(str(options['to']))}; pass ids of runs or "
            "the name of an experiment before the path, or filter=TEXT"
        )
    click.echo(f"written to {export_runs(**options)}")


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
    from clear_mlflow.store.offline import get_offline_folder
    from clear_mlflow.store.ui_urls import find_page_url, format_server_url

    client = open_store()
    store = client.tracking_uri
    if folder := get_offline_folder(store):
        raise ConfigError(
            f"MLflow cannot show the offline folder {folder}; print its runs with clear-mlflow "
            f"show or compare, or copy them to a store first: clear-mlflow sync {folder}"
        )
    has_server = is_server(store)
    if has_server:
        server_url = format_server_url(store)
        check_unused(
            {"port": (port, "auto")}, f", but the store is the server {server_url}; leave it out"
        )
    page = find_page_url(client, target)
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
    """Run an MLflow server on this machine, and yield its URL.

    store: URI of the tracking store. Raises ConfigError if the port is taken, and TrackingError if
    the server does not answer within two minutes.
    """
    import requests  # already loaded by MLflow

    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_HOST, 0 if requested_port == "auto" else requested_port))
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f"port is {requested_port}: {getattr(error, 'strerror', None) or error}; pass "
                "another one, or auto",
                parameter="port",
            ) from error
        port = probe.getsockname()[1]
    base = f"http://{_HOST}:{port}"
    server_command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", store]
    server_command += ["--host", _HOST, "--port", str(port), "--workers", "1"]
    # Else MLflow starts eight more processes, for jobs of evaluations of language models.
    environment = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", **os.environ}
    # In its own process group, which is ended with its workers; Ctrl-C reaches only this process.
    server = subprocess.Popen(  # noqa: S603
        server_command,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
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


@command(
    arguments={"folders": "[FOLDER]..."},
    examples=("clear-mlflow sync", "clear-mlflow sync offline_runs --experiment first"),
)
def sync(folders: Sequence[Path] | None = None, *, experiment: str | None = None) -> None:
    """Send runs recorded offline, or while their store was unreachable.

    FOLDER is an offline folder or the folder of one run, or contains several. Without it, all
    runs are sent that are in the cache folder (CLEAR_MLFLOW_CACHE), in unsent_rows and
    offline_runs of the working folder, or in the folder of CLEAR_MLFLOW_OFFLINE.

    Runs of an offline folder are copied to the store of MLFLOW_TRACKING_URI, with a new id and
    everything else as it was recorded, and scored. Other runs are sent to the store that their
    training wrote to; with FOLDER, MLFLOW_TRACKING_URI takes precedence. Runs whose training has
    ended are closed. Sending twice duplicates nothing, and a run that was resumed is updated.

    Args:
        folders: folders of one run or of several.
        experiment: experiment that gets the runs of offline folders; created if it does not exist.
            None: the experiment that each was recorded in, or, for Default, the one of
            MLFLOW_EXPERIMENT_NAME.
    """
    from clear_mlflow.store.client import open_store, set_up_mlflow
    from clear_mlflow.tracking.copy_runs import FAILED
    from clear_mlflow.tracking.sync import copy_offline_folders, list_sync_folders, sync_folders

    offline, waiting = list_sync_folders([Path(folder) for folder in folders or ()])
    if waiting and not offline:
        check_unused(
            {"experiment": (experiment, None)},
            ", but the runs that wait are in a store already, and stay in their experiments; "
            "leave it out",
        )
    os.environ.pop(OFFLINE_VARIABLE, None)  # it names where the runs are, not where they go
    set_up_mlflow()
    results: list[ActionResult] = []

    def print_result(result: ActionResult) -> None:
        results.append(result)
        with suppress(OSError):
            output.print_action(result)

    with interrupt_on_signal() as received, suppress(KeyboardInterrupt):
        for copied in copy_offline_folders(offline, experiment):
            print_result(copied)
        if copy_ids := [
            copied.run_id for copied in results if copied.run_id
        ]:  # before the other runs, which may belong to other stores
            with suppress(OSError):
                output.print_run_links(open_store(), copy_ids)
        for sent in sync_folders(waiting, use_recorded_store=not folders):
            print_result(sent)
    if received:
        output.print_error("stopped; what is left waits for the next sync")
        sys.exit(128 + received[0])
    if not results:
        click.echo("nothing waits for a store")
    with suppress(OSError):
        output.print_links(next((r.links for r in reversed(results) if r.links), ()))
    sys.exit(2 if any(result.action == FAILED for result in results) else 0)
