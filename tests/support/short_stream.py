"""A stream of four buckets of few small images, for commands of which ten buckets prove no more."""

from pathlib import Path

import pytest
from released_layout import write_released

BUCKETS = 4
# So long on it that a bucket is still trained when the row of the one before has been seen.
SLOWLY = {"features": "pixels", "epochs": "75", "batch_size": "1"}


@pytest.fixture(scope="session")
def short_stream(tmp_path_factory) -> dict[str, str]:
    """The parameters that name the dataset, as a configuration has them."""
    folder: Path = tmp_path_factory.mktemp("short_stream")
    keys = [str(j + 1) for j in range(BUCKETS)]
    write_released(folder, buckets=keys, size=(32, 32), train=8, test=6)
    return {"dataset": "clear10", "data_root": str(folder)}


def options(parameters: dict[str, str]) -> list[str]:
    """Parameters as options of ``clear-mlflow train``."""
    return [f"--{name.replace('_', '-')}={value}" for name, value in parameters.items()]
