"""The text of docs/parameters.md, from the fields of ``TrainConfig`` and the recipes.

``python tools/generate.py`` writes it.
"""

from __future__ import annotations

from collections.abc import Iterator

from clear_mlflow.learning.parameters.config import (
    PARAMETERS,
    auto_values,
    parameter_defaults,
)
from clear_mlflow.learning.parameters.recipes import RECIPES

_FEATURES = "features"

_HEAD = """# Parameters, and what `auto` means

Written by `python tools/generate.py` from the program's own declarations. A parameter is an
option of `clear-mlflow train` (`--batch-size 64`), a parameter of `mlflow run` (`-P
batch_size=64`), a keyword of `clear_mlflow.train(batch_size=64)`, a key in the `grid` of a
[sweep](sweeps.md), and a logged parameter of the run. [Training](training.md) explains them.

## What `auto` means

`auto` takes the value of the dataset's recipe, which the run logs as the parameter
([what is in MLflow](tracking.md)).

"""
_AFTER = """
"As without" means that the recipe of the dataset holds on features, too. `device` is `cuda` where
there is a GPU that torch can use, else `cpu`. `precision` is decided by the device where the
table says so: `bf16` if it has instructions for it, else `off`. `split=auto` is described in
[datasets](datasets.md#protocols).

Sources: the recipe of CLEAR's images is that of the CLEAR authors' example in Avalanche, the
challenge's starter kit and Renate's benchmark; that of features is the linear protocol of the
[CLEAR paper](https://arxiv.org/abs/2201.06289), with the epochs, weight decay and step of the
authors' `clear100_feature_*.yaml`. Those of the embedded datasets are ours. Two published settings
differ: the authors' file for CLEAR-10 features has 1 epoch and batch 1024
(`clear10_feature_res50_moco_public_private.yaml`), and Renate gives CLEAR-100 a memory of 10,000
images (`offline-er-clear100.json`); pass `epochs`, `batch_size` and `memory` to follow them.

## All parameters
"""


def parameters_page() -> str:
    """The whole page."""
    return _HEAD + "\n".join((*_recipes(), _AFTER, *_all())) + "\n"


def _recipes() -> Iterator[str]:
    alike: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for dataset, recipe in RECIPES.items():
        alike.setdefault(tuple(recipe.items()), []).append(dataset)
    columns = list(alike.values())
    heads = [", ".join(d if " " in d else f"`{d}`" for d in group) for group in columns]
    yield f"| parameter | {' | '.join(heads)} | with `features=NAME` |"
    yield "|---" * (len(columns) + 2) + "|"
    for name in parameter_defaults():
        values = auto_values(name)
        if values:
            cells = [f"`{values[d]}`" if d in values else "by the device" for d, *_ in columns]
            on_features = f"`{values[_FEATURES]}`" if _FEATURES in values else "as without"
            if name == "image_size":
                on_features = "not used"
            yield f"| `{name}` | {' | '.join(cells)} | {on_features} |"


def _all() -> Iterator[str]:
    for group in dict.fromkeys(about["group"] for about in PARAMETERS.values()):
        yield f"### {group}\n"
        for name, about in PARAMETERS.items():
            if about["group"] == group:
                choices = "".join(f"|{choice}" for choice in about["choices"])[1:]
                values = f"={choices}" if choices else ""
                text = about["help"].replace("<", "&lt;")
                yield f"- `{name}{values}` (`{about['default']}`): {text}"
        yield ""
