import numpy as np
import pandas as pd
import pytest
import torch

from clear_mlflow.core.errors import RecordError
from clear_mlflow.learning.inference.description import ModelDescription
from clear_mlflow.learning.inference.served import ServedModel


@pytest.fixture
def model():
    description = ModelDescription(
        model="linear", num_classes=2, class_names=("a", "b"), width=2, image_size=24,
        augment="none", precision="off", strategy="naive", dataset="digits",
        bucket="1", requirements=(),
    )  # fmt: skip
    return ServedModel(torch.nn.Linear(2, 2), description, torch.device("cpu"))


@pytest.mark.parametrize(
    ("features", "problem"),
    [
        ([["a", "b"]], "got features [['a', 'b']]; expected (N, 2) finite numbers"),
        ([[1], [1, 2]], "got features [[1], [1, 2]]; expected (N, 2) finite numbers"),
        (pd.DataFrame({"x": [pd.NA], "y": [1]}), "; expected (N, 2) finite numbers"),
        ({"x": 1}, "got features {'x': 1}; expected (N, 2) finite numbers"),
        ([[1, 2, 3]], "got features of shape (1, 3); expected (N, 2) finite numbers"),
        ([[1, 2], [np.nan, 1]], "in the features of input 2 of 2; expected (N, 2) finite"),
        (pd.DataFrame({"x": [1.0], "y": [np.inf]}), "in the features of input 1 of 1"),
        ([[None, 1]], "got NaN, inf, or more than 32-bit floats can store in the features of"),
        (np.array([[1e300, 1]]), "got NaN, inf, or more than 32-bit floats can store"),
    ],
    ids=str,
)
def test_features_that_are_not_numbers_are_an_error_of_one_line(model, features, problem):
    with pytest.raises(RecordError) as raised:
        model.predict(features)
    assert problem in str(raised.value)
    assert "\n" not in str(raised.value)


def test_any_table_of_finite_numbers_is_predicted(model):
    for features in ([[1, 2]], [[True, False]], pd.DataFrame({"x": [1], "y": [2.5]})):
        assert model.predict(features)["probability"].between(0.5, 1).all()
    assert model.predict(np.zeros((0, 2))).empty
