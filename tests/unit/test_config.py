"""Parameters: texts become a checked configuration, and back."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from one_line_errors import check_error

from clear_mlflow.core.errors import ConfigError
from clear_mlflow.core.record import is_training
from clear_mlflow.data.embedded import EMBEDDED
from clear_mlflow.data.sources import DATASETS
from clear_mlflow.learning.parameters.config import (
    PARAMETERS,
    TrainConfig,
    list_parameter_defaults,
    list_result_parameters,
)
from clear_mlflow.learning.parameters.logged import (
    describe_parameters,
    read_config_file,
    select_parameters_to_log,
    select_training_parameters,
)

ASKED = [
    {},
    {"dataset": "clear10", "data_root": "/somewhere", "strategy": "replay", "lr": "0.10"},
    {"dataset": "clear100", "data_root": "/somewhere", "protocol": "streaming"},
    {"dataset": "clear10", "data_root": "/somewhere", "features": "moco_b0", "split": "3"},
]


@pytest.mark.parametrize("parameters", ASKED)
def test_a_configuration_read_back_is_the_same(parameters, tmp_path):
    config = TrainConfig.resolve(parameters)
    file = tmp_path / "config.json"
    file.write_text(config.to_json())
    assert TrainConfig.resolve(read_config_file(file)) == config


@pytest.mark.parametrize("dataset", [*DATASETS, "lab.photos:by_year"])
def test_a_recipe_names_every_value_that_is_auto(dataset):
    parameters = {"dataset": dataset} | ({} if dataset in EMBEDDED else {"data_root": "/somewhere"})
    texts = TrainConfig.resolve(parameters).as_text()
    auto_names = {name for name, text in texts.items() if text == "auto"}
    assert auto_names <= {"data_root", "split", "device", "precision"}


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"epoch": "3"}, "unknown parameter 'epoch'; did you mean epochs?"),
        ({"epochs": "0"}, "at least 1"),
        ({"epochs": "three"}, "at least 1"),
        ({"epochs": ""}, "at least 1"),
        ({"seed": str(2**64)}, "below 2**63"),
        ({"lr": "inf"}, "finite"),
        ({"lr": "0"}, "above 0"),
        ({"weight_decay": "-1"}, "at least 0"),
        ({"dataset": "clear10", "data_root": "~nobody-of-this-name/x"}, "no home folder"),
        ({"dataset": "clear10", "data_root": "a\0b"}, "printable"),
        *(
            ({"features": name}, "features is")
            for name in ("../x", "a/b", ".", "", "a b", "x" * 65, "..", "/etc")
        ),
    ],
)
def test_an_invalid_value_is_a_one_line_error(parameters, message):
    check_error(ConfigError, message, TrainConfig.resolve, parameters)


@pytest.mark.parametrize("content", [b"", b"[1]", b'{"seed": 3}', b"\xff", b"[" * 100_000], ids=len)
def test_a_damaged_configuration_file_is_reported_with_its_path(tmp_path, content):
    file = tmp_path / "config.json"
    file.write_bytes(content)
    check_error(ConfigError, "config.json", read_config_file, file)


VALUES = {
    "strategy": ["naive", "replay", "ncm"],
    "memory": ["auto", "500"],
    "lr": ["auto", "0.10", "0.3"],
    "optimizer": ["sgd", "adam"],
    "momentum": ["0.9", "0.5"],
    "schedule": ["step", "cosine"],
    "lr_gamma": ["0.1", "0.2"],
    "epochs": ["auto", "3"],
    "device": ["auto", "cpu"],
    "seed": ["0", "1"],
}
CHOICES = {name: st.sampled_from(values) for name, values in VALUES.items()}
SOME_ASKED = st.fixed_dictionaries({}, optional=CHOICES)


@given(SOME_ASKED, st.sampled_from(["alone", "mlflow run", "all were logged"]))
def test_logged_parameters_include_the_requested_values(requested, how):
    """So that a sweep finds its runs again."""
    config = TrainConfig.resolve(requested)
    trained = replace(config, device="cpu", precision="off")
    if how == "alone":
        logged = select_parameters_to_log(trained, requested, {})
        again = select_parameters_to_log(trained, requested, logged)
        assert again == {}
    else:
        expected = requested if how == "mlflow run" else {**list_parameter_defaults(), **requested}
        logged = {**expected, **select_parameters_to_log(trained, requested, expected)}
    assert is_training(logged)
    assert TrainConfig.resolve(select_training_parameters(logged)) == config


def test_a_logged_parameter_is_the_effective_value():
    parameters = {"memory": "500", "lr": "auto", "momentum": "0.5", "optimizer": "adam"}
    parameters |= {"epochs": "3"}
    config = TrainConfig.resolve(parameters)
    logged = select_parameters_to_log(config, parameters, {})
    assert (logged["lr"], logged["epochs"]) == ("0.02", "3")
    assert {"memory", "momentum", "asked/lr", "asked/epochs", "used/lr"}.isdisjoint(logged)
    assert (logged["asked/memory"], logged["asked/momentum"]) == ("500", "0.5")
    assert {"weights", "features", "budget", "seeds", "compile"}.isdisjoint(logged)
    of_project = select_parameters_to_log(config, parameters, parameters)
    assert of_project["used/lr"] == "0.02"
    assert {"lr", "epochs", "used/epochs", "used/memory", "asked/lr"}.isdisjoint(of_project)
    others = select_parameters_to_log(config, parameters, {"epochs": "12 of mine", "lr": "0.020"})
    assert others["used/epochs"] == "3"
    assert {"epochs", "used/lr", "asked/epochs"}.isdisjoint(others)


def test_a_training_describes_the_parameters_that_affect_its_result():
    config = TrainConfig.resolve({"optimizer": "adam", "strategy": "naive", "device": "cpu"})
    described = json.loads(describe_parameters(config))
    assert described["tuned"]["momentum"] is described["method"]["memory"] is None
    assert (described["tuned"]["lr"], described["method"]["budget"]) == ("0.02", "off")
    assert described["unlogged"]["compile"] == "off"
    assert "device" not in {name for part in described.values() for name in part}
    replaced = replace(config, strategy="lab:Own", replaced=frozenset({"epochs"}))
    described = json.loads(describe_parameters(replaced))
    assert described["tuned"]["epochs"] == "set by lab:Own"
    described = describe_parameters(replace(config, model="m" * 6000, weights="w" * 6000))
    assert len(described) < 8000


def test_values_are_passed_to_another_process_unchanged():
    strategy = {"strategy": "replay", "strategy_args": "buffer=reservoir, alpha=0.5"}
    parameters = {**strategy, "lr": "0.10"}
    config = TrainConfig.resolve(parameters)
    assert config.strategy_args == {"buffer": "reservoir", "alpha": "0.5"}
    assert TrainConfig(**json.loads(json.dumps(config.values()))) == config
    assert TrainConfig.resolve(config.as_text()) == config
    assert config.as_text()["strategy_args"] == "buffer=reservoir,alpha=0.5"
    with pytest.raises(ConfigError, match="alpha is given twice"):
        TrainConfig.resolve({"strategy_args": "alpha=1,alpha=2"})


def test_images_are_cropped_as_the_clear_authors_do_and_digits_not_at_all():
    clear = {"dataset": "clear10", "data_root": "/d"}
    assert TrainConfig.resolve(clear).augment == "random_crop"
    assert TrainConfig.resolve({**clear, "dataset": "clear100"}).augment == "random_crop"
    assert TrainConfig.resolve({}).augment == "none"
    head = TrainConfig.resolve({**clear, "features": "moco_b0"})
    assert (head.augment, head.weight_decay) == ("none", 0)  # no weight of a head decays
    assert TrainConfig.resolve(clear).weight_decay == TrainConfig.resolve({}).weight_decay == 1e-5
    with pytest.raises(ConfigError, match="used as they are"):
        TrainConfig.resolve({**clear, "features": "moco_b0", "augment": "random_crop"})


def test_all_parameters_but_these_affect_results():
    """Runs that differ in others are not seeds of one method."""
    of_test_set = {"dataset", "data_root", "protocol", "split"}
    of_machine = {"precision", "compile", "device"}
    of_record = {"predictions", "test_every", "prequential", "metrics", "log_models", "resumable"}
    compared_by_argument = {"dataset_args", "scenario_args", "strategy_args"}
    others = of_test_set | of_machine | of_record | compared_by_argument
    others |= {"strategy", "seed", "seeds"}
    assert PARAMETERS.keys() - {*list_result_parameters()} == others
