"""Which groups are set against which."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb

from clear_mlflow.comparison.groups import Group, cut
from clear_mlflow.comparison.subjects import Setting
from clear_mlflow.core.errors import ConfigError
from clear_mlflow.core.text import safe_repr

# Groups of a setting that are all tested against each other: 15 sentences. Of more groups, each is
# tested against the leader.
ALL_PAIRS = 6

Pair = tuple[int, int]  # positions of groups, in the order of the leaderboard


@dataclass(frozen=True, kw_only=True)
class PairPlan:
    """Which pairs are tested."""

    pairs: tuple[Pair, ...]
    # How many further pairs are adjusted for, because the leader was found by looking.
    possible: int = 0
    baselines: tuple[int, ...] = ()  # that the others are set against; none: the leaders are
    leaders: tuple[int, ...] = ()  # found by looking, and set against all others of many


def plan_pairs(
    groups: Sequence[Group], settings: Sequence[Setting], baseline: str | None
) -> PairPlan:
    """All pairs of few groups (best first), each against the leader of many, or a baseline."""
    by_setting: dict[int, list[int]] = defaultdict(list)
    for position, group in enumerate(groups):
        if group.counted:
            by_setting[group.setting].append(position)
    pairs: list[Pair] = []
    possible = 0
    baselines, leaders = [], []
    for setting, positions in by_setting.items():
        if baseline is not None:
            found = _baseline(groups, positions, baseline, settings[setting])
            if found is not None:
                baselines.append(found)
                pairs += [(min(p, found), max(p, found)) for p in positions if p != found]
        elif len(positions) <= ALL_PAIRS:
            pairs += combinations(positions, 2)
        else:
            leaders.append(positions[0])
            pairs += [(positions[0], p) for p in positions[1:]]
            possible += comb(len(positions) - 1, 2)
    if baseline is not None and not baselines:
        names = ", ".join(safe_repr(cut(group.name)) for group in groups[:20])
        raise ConfigError(
            f"baseline is {safe_repr(baseline)}, which no group is; there are {names}"
        )
    return PairPlan(
        pairs=tuple(pairs),
        possible=possible,
        baselines=tuple(baselines),
        leaders=tuple(leaders),
    )


def _baseline(
    groups: Sequence[Group], positions: Sequence[int], baseline: str, setting: Setting
) -> int | None:
    named = [p for p in positions if groups[p].name == baseline]
    named = named or [p for p in positions if baseline in groups[p].labels.values()]
    if len(named) > 1:
        names = ", ".join(safe_repr(cut(groups[p].name)) for p in named[:20])
        raise ConfigError(
            f"baseline is {safe_repr(baseline)}, which {len(named)} groups on "
            f"{cut(setting.dataset)} are; name one of {names}"
        )
    return named[0] if named else None
