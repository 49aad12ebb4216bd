"""The lists of strategies that are read without torch, compared with the classes."""

from clear_mlflow.learning.parameters.strategy_names import (
    WITHOUT_BUFFER,
    WITHOUT_STEPS,
    list_strategies,
)
from clear_mlflow.learning.strategies import load_strategy
from clear_mlflow.learning.strategies._statistics import ClosedFormStrategy


def test_ignored_parameters_are_those_of_the_class():
    assert set(list_strategies()) > WITHOUT_BUFFER | WITHOUT_STEPS
    for name in list_strategies():
        strategy_class = load_strategy(name)
        assert strategy_class.needs_memory == (name not in WITHOUT_BUFFER)
        assert issubclass(strategy_class, ClosedFormStrategy) == (name in WITHOUT_STEPS)
