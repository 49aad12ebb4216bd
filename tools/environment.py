"""The text of docs/environment.md: variables that are read or set, and exit codes of all commands.

``python tools/generate.py`` writes it; a test holds the variables against the package's code.
"""

from __future__ import annotations

from collections.abc import Iterator

import click

from clear_mlflow.cli import main
from clear_mlflow.cli.help import EXIT_CODES

# Name to what it does, part by part.
VARIABLES = {
    "Of this program": {
        "CLEAR_MLFLOW_CACHE": "The [cache folder](cache.md): decoded images, embedded datasets, "
        "features, and journals of rows that the store does not have yet. Without it "
        "`clear_mlflow` in `XDG_CACHE_HOME`, else `~/.cache/clear_mlflow`.",
        "CLEAR_MLFLOW_EXIT_WAIT": "Seconds that the end of a training waits for a store that does "
        "not answer: 60, and 10 where training failed or was stopped "
        "([when the server goes away](tracking.md#when-the-server-goes-away)).",
        "CLEAR_MLFLOW_SERVER_APP": "The app of MLflow's server that the [pages](server.md) are "
        "added to, for example `basic-auth`.",
    },
    "Of MLflow, with its meaning": {
        "MLFLOW_TRACKING_URI": "The tracking store. Without it MLflow's default: `mlflow.db` in "
        "the working folder.",
        "MLFLOW_EXPERIMENT_NAME": "The experiment of new runs.",
        "MLFLOW_EXPERIMENT_ID": "The same by its id. `mlflow run` sets it.",
        "MLFLOW_RUN_ID": "The run to train into. `mlflow run` sets it. An interrupted run is "
        "[resumed](resume.md).",
        "MLFLOW_RUN_CONTEXT": "Tags of new runs, as JSON. `--tag` adds to it.",
        "MLFLOW_WORKSPACE": "The workspace of a server that has several.",
        "MLFLOW_TRACKING_USERNAME": "User name for a server with accounts.",
        "MLFLOW_TRACKING_PASSWORD": "Password for a server with accounts.",
        "MLFLOW_TRACKING_TOKEN": "Token for a server with accounts.",
        "MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING": "`false`: log no CPU, memory and GPU metrics.",
        "MLFLOW_DISABLE_TELEMETRY": "`true`: MLflow sends no usage data "
        "([what is sent where](faq.md#does-anything-leave-my-machine)).",
        "DO_NOT_TRACK": "`true`: the same.",
    },
    "Of MLflow, with another default here": {
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3, where MLflow has 7.",
        "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1, where MLflow has 2.",
        "MLFLOW_HTTP_REQUEST_TIMEOUT": "30 seconds, where MLflow has 120.",
        "MLFLOW_HTTP_RESPECT_RETRY_AFTER_HEADER": "`false`: a server cannot ask for an hour.",
        "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "`true`: this program prints links without "
        "credentials.",
        "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "`false`.",
    },
    "Of other programs": {
        "HF_ENDPOINT": "A mirror of the Hugging Face hub, for `data download`.",
        "HF_TOKEN": "A token of the hub.",
        "HF_HUB_OFFLINE": "`1`: the hub is not asked.",
        "TORCH_HOME": "Folder of torchvision's downloaded weights.",
        "OMP_NUM_THREADS": "Threads of a training on a CPU. Several trainings on one machine get "
        "their share of the cores unless you set it.",
        "OMP_WAIT_POLICY": "Whether threads of a training on a CPU spin or sleep while they wait. "
        "Unless you set it, or `GOMP_SPINCOUNT`, they spin while they have the cores to "
        "themselves, and sleep while something else wants them, too.",
        "GOMP_SPINCOUNT": "How long they spin. Set to 3000 for the training process where the "
        "kernel does not say how long a thread waited for a core.",
        "CUDA_VISIBLE_DEVICES": "GPUs that may be used. A local sweep gives each training one of "
        "them.",
        "NCCL_SOCKET_IFNAME": "Network interface of NCCL: the loopback one where all processes are "
        "on one machine, unless you set it.",
        "GLOO_SOCKET_IFNAME": "The same of gloo.",
        "RANK": "Set by torchrun, with `WORLD_SIZE`, `LOCAL_RANK`, `LOCAL_WORLD_SIZE`, "
        "`MASTER_ADDR` and `MASTER_PORT`: this is one of several processes "
        "([distributed](distributed.md)).",
        "RAY_USAGE_STATS_ENABLED": "Set to `0` where this program starts Ray, unless you set it.",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "Set to `0` where this program starts Ray, unless "
        "you set it.",
    },
}

_HEAD = """# Environment variables and exit codes

Written by `python tools/generate.py`.

## Environment variables
"""
_CODES = """## Exit codes

An error that you can mend is one line on standard error, `error: ...`, and exit code 2.
[Troubleshooting](troubleshooting.md) has those that need more than their line.

| exit code | of every command |
|---|---|"""
_OWN = """
Commands for which a code means more:

| command | exit code | what it means |
|---|---|---|"""


def environment_page() -> str:
    """The whole page."""
    lines = [_HEAD]
    for title, variables in VARIABLES.items():
        lines += [f"### {title}\n", "| variable | what it does |", "|---|---|"]
        lines += [f"| `{name}` | {text} |" for name, text in variables.items()]
        lines += [""]
    lines += [_CODES, *(f"| {code} | {text} |" for code, text in EXIT_CODES.items())]
    lines += [_OWN, *_own_codes("", main)]
    return "\n".join(lines) + "\n"


def _own_codes(before: str, group: click.Group) -> Iterator[str]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from _own_codes(f"{before}{name} ", command)
            continue
        for code, text in getattr(command, "exit_codes", {}).items():
            if EXIT_CODES.get(code) != text:
                yield f"| `{before}{name}` | {code} | {text} |"
