"""How often identify finds the right definition, and how often a wrong one.

    python benchmarks/identify.py

Each case is a random matrix of ten buckets that was tested on past buckets only, with 550 test
images per bucket. A number with two decimals, of one of six definitions after the last bucket, is
computed from it, and with several seeds a standard deviation; identify gets the matrices with their
cells rounded. A match is false if its value differs from that of the right definition in another
matrix. All matches of a number that is computed from another matrix are false.
"""

from __future__ import annotations

import numpy as np

from clear_mlflow import AccuracyMatrix, identify, scores
from clear_mlflow.api.identify import Match

NUM_CASES = 40
NUM_BUCKETS = 10
DEFINITIONS = (
    "renate/average_accuracy",
    "icarl/average_incremental_accuracy",
    "chaudhry/forgetting_since_trained",
    "renate/backward_transfer",
    "clear/accuracy",
    "published/forgetting_with_last",
)


def draw_matrix(generator: np.random.Generator) -> np.ndarray:
    """Return accuracies after each bucket that fall with the time since a bucket was trained."""
    learned = generator.uniform(0.7, 0.95, NUM_BUCKETS)
    lost = generator.uniform(0, 0.1, (NUM_BUCKETS, NUM_BUCKETS)).cumsum(axis=0)
    values = np.clip(learned - lost + np.diagonal(lost), 0.05, 1)
    values = generator.binomial(550, values) / 550
    values[np.triu_indices(NUM_BUCKETS, 1)] = np.nan
    return values


def compute(values: np.ndarray, name: str) -> float:
    """Return a metric in percent."""
    return 100 * scores(AccuracyMatrix(values), metrics=name.split("/")[0])[name].value


def draw_number(
    generator: np.random.Generator, num_seeds: int, name: str
) -> tuple[list[np.ndarray], str]:
    """Return the matrix of each seed, and the number that a paper would print."""
    mean = draw_matrix(generator)
    if num_seeds == 1:
        return [mean], f"{compute(mean, name):.2f}"
    noise = generator.normal(0, 0.01, (num_seeds, *mean.shape))
    seeds = [np.clip(mean + error, 0, 1) for error in noise]
    values = [compute(cells, name) for cells in seeds]
    return seeds, f"{np.mean(values):.2f} +- {np.std(values, ddof=1):.2f}"


def is_right(match: Match, name: str, others: np.ndarray) -> bool:
    """Return True if a match is the definition, or is equal to it in other matrices, too."""
    if (match.step, match.orientation, match.scale) != (NUM_BUCKETS, "rows", "percent"):
        return False
    return (
        name in match.names or abs(compute(others, match.names[0]) - compute(others, name)) < 1e-9
    )


def measure(num_seeds: int, decimals: int) -> str:
    """Return a row of the table."""
    generator = np.random.default_rng([num_seeds, decimals])
    counts = np.zeros(6)
    for case in range(NUM_CASES):
        name = DEFINITIONS[case % len(DEFINITIONS)]
        seeds, number = draw_number(generator, num_seeds, name)
        others, unrelated = draw_number(generator, num_seeds, name)
        rounded = [AccuracyMatrix(cells.round(2 + decimals)) for cells in seeds]
        results = identify(rounded, [number, unrelated])
        right = [match for match in results[0].matches if is_right(match, name, others[0])]
        chances = [r.expected_by_chance + r.expected_within_cells for r in results]
        counts += (
            any(match.rounding != "within cells" for match in right),
            bool(right),
            len(results[0].matches) - len(right),
            chances[0],
            len(results[1].matches),
            chances[1],
        )
    found = [f"{count:.0f} of {NUM_CASES}" for count in counts[:2]]
    means = [f"{count / NUM_CASES:.2f}" for count in counts[2:]]
    return f"| {num_seeds} | {decimals} | {' | '.join(found + means)} |"


def main() -> None:
    """Print the table."""
    print(
        "| seeds | decimals of the cells | found exactly | found | false matches | by chance "
        "| matches of an unrelated number | by chance |\n|" + "---:|" * 8
    )
    for num_seeds, decimals in ((1, 1), (1, 2), (1, 3), (3, 1), (5, 1), (10, 1), (3, 2), (10, 2)):
        print(measure(num_seeds, decimals), flush=True)


if __name__ == "__main__":
    main()
