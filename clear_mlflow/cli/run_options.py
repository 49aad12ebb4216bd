"""Where a run is kept, and what it is called: options of the commands that open runs.

``mlflow run`` has options of its own for these, and opens the run itself: they are no parameters
of MLproject.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence

import click

from clear_mlflow.cli.help import Option
from clear_mlflow.cli.options import option, together
from clear_mlflow.core.errors import ConfigError

RUN = "Run"
# Options of the terminal alone, by the names of their parameters.
NAMES = ("experiment", "run_name", "tag")

# As experiment, run_name and tag.
run_options = together(
    option(
        "--experiment",
        "NAME",
        "MLflow experiment; created where there is none. none: that of MLFLOW_EXPERIMENT_NAME, "
        "else Default.",
        under=RUN,
    ),
    option("--run-name", "NAME", "Name of the run; none: made of what it trains.", under=RUN),
    click.option(
        "--tag",
        cls=Option,
        group=RUN,
        multiple=True,
        metavar="KEY=TEXT",
        help="A tag of each run that is opened; may be given several times.",
    ),
)


def apply_run_options(
    experiment: str | None, run_name: str | None, tag: Sequence[str], *, resume: str | None = None
) -> None:
    """Have MLflow open this process's runs as the options say."""
    given = [
        f"{name} is {value!r}"
        for name, value in (("experiment", experiment), ("run_name", run_name))
        if value
    ] + [f"tag is {text!r}" for text in tag]
    named = resume or os.environ.get("MLFLOW_RUN_ID")
    if given and named:
        raise ConfigError(
            f"{given[0]}, and run {named} is there already, with an experiment, a name and tags of "
            "its own; leave the option out"
        )
    tags = dict(_key_and_text(text) for text in tag)
    # MLflow's own variables: every run that is opened from here on follows them.
    if experiment:
        os.environ.pop("MLFLOW_EXPERIMENT_ID", None)
        os.environ["MLFLOW_EXPERIMENT_NAME"] = experiment
    if tags:
        others = json.loads(os.environ.get("MLFLOW_RUN_CONTEXT") or "{}")
        os.environ["MLFLOW_RUN_CONTEXT"] = json.dumps({**others, **tags})


def _key_and_text(tag: str) -> tuple[str, str]:
    key, sign, text = tag.partition("=")
    if not key.strip() or not sign:
        raise ConfigError(f"tag is {tag!r}; expected a key, = and a text, for example paper=draft")
    if key.startswith(("mlflow.", "clear_mlflow.")):
        raise ConfigError(
            f"tag is {tag!r}; names that begin with mlflow. or clear_mlflow. are the programs' own"
        )
    return key.strip(), text
