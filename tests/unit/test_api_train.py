"""The Python interface: its parameters equal those of the configuration."""

import inspect
import re
from typing import Literal, get_args, get_origin, get_type_hints

import pytest

import clear_mlflow
from clear_mlflow.api.train import _format_options
from clear_mlflow.core.errors import ConfigError
from clear_mlflow.learning.parameters.config import TrainConfig, list_parameter_defaults
from clear_mlflow.learning.parameters.options import TrainOptions

# What an editor offers and a program may rely on; a name that goes breaks somebody's.
PUBLIC = [
    *("AccuracyMatrix", "AccuracyRow", "ClearError", "ComparedRuns", "MetricResult", "Run"),
    *("Score", "__version__", "clear", "compare", "download", "evaluate", "export"),
    *("identify", "import_runs", "load", "metrics", "renate", "runs"),
    *("scores", "sweep", "sync", "track", "train", "train_ensemble"),
]


def test_the_public_names_are_these():
    assert sorted(clear_mlflow.__all__) == PUBLIC
    assert dir(clear_mlflow) == PUBLIC


@pytest.mark.parametrize("function", [clear_mlflow.train, clear_mlflow.train_ensemble])
def test_the_signature_is_the_configuration(function):
    parameters = inspect.signature(function).parameters
    assert [*TrainOptions.__annotations__, "offline"] == [*list_parameter_defaults(), "offline"]
    assert [*TrainOptions.__annotations__, "offline"] == list(parameters)
    assert {p.kind for p in parameters.values()} == {inspect.Parameter.KEYWORD_ONLY}
    defaults = {name: p.default for name, p in parameters.items() if name != "offline"}
    assert _format_options(defaults) == {}


def test_defaults_are_values_of_python():
    parameters = inspect.signature(clear_mlflow.train).parameters
    values: dict[str, object] = {
        "momentum": 0.9,
        "compile": False,
        "resumable": True,
        "seed": 0,
        "seeds": None,
    }
    values |= {"features": None, "test_every": None, "epochs": "auto", "strategy": "naive"}
    for name, value in values.items():
        assert (parameters[name].default, type(parameters[name].default)) == (value, type(value))
    assert str(parameters["momentum"]) == "momentum: float = 0.9"
    assert parameters["batch_size"].annotation == int | Literal["auto", "full"]


def test_every_choice_of_a_type_is_one():
    for name, hint in get_type_hints(TrainOptions).items():
        for hint_type in (hint, *get_args(hint)):
            choices = get_args(hint_type) if get_origin(hint_type) is Literal else ()
            for choice in (True, False) if hint_type is bool else choices:
                TrainConfig.resolve(_format_options({name: choice}))


@pytest.mark.parametrize(
    ("value", "texts"),
    [
        ({"compile": True, "resumable": False}, {"compile": "on", "resumable": "off"}),
        ({"seeds": [0, 1]}, {"seeds": "0,1"}),
        ({"epochs": 5, "memory": 0.1, "lr": 1}, {"epochs": "5", "memory": "0.1", "lr": "1"}),
        ({"momentum": 0.9, "seed": 0, "resumable": True}, {}),
        ({"strategy_args": {"alpha": 0.5, "on": True}}, {"strategy_args": "alpha=0.5,on=yes"}),
        ({"compile": True, "split": 0}, {"compile": "on", "split": "0"}),
        ({"weights": None, "budget": None, "predictions": None}, {"predictions": "none"}),
    ],
)
def test_values_are_written_as_in_python(value, texts):
    assert _format_options(value) == texts


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"epochs": True}, "epochs is True; expected an integer or 'auto'"),
        ({"epochs": 0}, "epochs is '0'; expected a whole number of at least 1"),
        ({"momentum": "0.9"}, "momentum is '0.9'; expected a finite number"),
        ({"seed": "0"}, "seed is '0'; expected an integer"),
        ({"compile": "on"}, "compile is 'on'; expected True or False"),
        ({"compile": 1}, "compile is 1; expected True or False"),
        ({"memory": None}, "memory is None; expected a finite number or 'auto'"),
        ({"seeds": "0,1"}, "seeds is '0,1'; expected a list or None"),
        ({"strategy_args": "keep=0"}, "strategy_args is 'keep=0'; expected a dictionary or None"),
        ({"seeds": [0, 0]}, "expected distinct seeds"),
        ({"lr": float("nan")}, "lr is nan; expected a finite number or 'auto'"),
    ],
)
def test_a_wrong_value_is_one_clear_error(value, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        clear_mlflow.train(**value)


def test_an_unknown_parameter_is_a_type_error():
    with pytest.raises(TypeError, match=r"train\(\) has no option 'epoch'; did you mean epochs"):
        clear_mlflow.train(epoch=3)


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        ("compare", {"group_by": None}, "group_by is None; expected a string or a list"),
        ("compare", {"log": 1}, "log is 1; expected True or False"),
        ("compare", {"margin": float("inf")}, "margin is inf; expected a finite number or None"),
        ("evaluate", {"jobs": float("nan")}, "jobs is nan; expected an integer or"),
        ("evaluate", {"jobs": 1.5}, "jobs is 1.5; expected an integer or"),
        ("evaluate", {"filter": 5}, "filter is 5; expected a string or None"),
        ("export", {"to": None}, "to is None; expected a string or a path"),
        ("sweep", {"grid": 5}, "grid is 5; expected a dictionary or a string or a path or None"),
    ],
)
def test_an_argument_of_a_wrong_type_is_one_clear_error(function, arguments, message):
    runs = {} if function == "sweep" else {"runs": "e"}
    with pytest.raises(ConfigError, match=re.escape(message)):
        getattr(clear_mlflow, function)(**runs, **arguments)
