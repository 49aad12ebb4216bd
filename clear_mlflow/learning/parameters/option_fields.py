"""How an option of a training run is declared, as a field of :class:`.config.TrainConfig`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, ParamSpec

from clear_mlflow.learning.parameters.recipes import AUTO, NONE
from clear_mlflow.learning.parameters.values import OFF

DATA, METHOD, MODEL = "Data", "Method", "Model"
OPTIMISATION, HARDWARE, RECORD = "Optimisation of each bucket", "Hardware", "Record"

_P = ParamSpec("_P")


@dataclass(frozen=True)
class Option:
    """How an option is read, described and used.

    Args:
        group: heading in the help. Options of HARDWARE and RECORD do not affect results, and all of
            OPTIMISATION are tuned and ignored by strategies without steps.
        parse: function from a text to the value; raises ValueError with what was expected.
        help: sentences for the help and docs/parameters.md.
        default: text of the default.
        choices: all valid texts, or () if *parse* checks them.
        python_type: type in Python without None, if it does not follow from the field's type.
        is_ignored: function of the TrainConfig that returns True if this one is ignored.
        is_tuned: True if the value is usually chosen by its results, such as a learning rate.
        is_path: True if the value may be a path.
        resolved_by_process: True if only the training process can resolve ``auto``.
        changeable_on_resume: True if a resumed run may have another value.
    """

    group: str
    parse: Callable[[str], Any] = str
    _: KW_ONLY
    help: str
    default: str = AUTO
    choices: tuple[str, ...] = ()
    python_type: str = ""
    is_ignored: Callable[[Any], bool] = lambda config: False
    is_tuned: bool = False
    is_path: bool = False
    resolved_by_process: bool = False
    changeable_on_resume: bool = False

    @property
    def is_switch(self) -> bool:
        """True if the value may be on or off."""
        return {"on", "off"} <= {*self.choices}

    @property
    def python_default(self) -> object:
        """The default in Python: number, bool, None, names, or text."""
        if self.is_switch:
            return self.default == "on"
        if self.default in (NONE, OFF):
            return None
        if "Sequence" in self.python_type:
            return tuple(self.default.split(","))
        value = AUTO if self.default == AUTO else self.parse(self.default)
        return value if isinstance(value, (int, float)) else self.default


def _as_field(declare: Callable[_P, Option]) -> Callable[_P, Any]:
    """Return a function that stores *declare*'s Option in a field."""
    return lambda *args, **kwargs: field(metadata={"option": declare(*args, **kwargs)})


declare_option = _as_field(Option)
