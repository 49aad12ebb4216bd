"""One of two processes that train together, stop after row 1, and resume.

The state is stored in a file that only the first process knows.
"""

import sys
from pathlib import Path

from learning_streams import config, random_stream

from clear_mlflow.core.distributed import read_dist_env
from clear_mlflow.learning.checkpoint import parse_state
from clear_mlflow.learning.process_group import process_group
from clear_mlflow.learning.progress import TrainingProgress
from clear_mlflow.learning.session import StreamTraining, resolve_config


def read_weights(state):
    model = parse_state(state).snapshot.model
    return {name: value.numpy().tobytes() for name, value in model.items()}


def main():
    folder, dist_env = Path(sys.argv[1]), read_dist_env()
    images = folder / f"images{dist_env.rank}"
    stream, _ = random_stream(images, train=(11, 8, 9), test=(5, 3, 7), side=8)
    settings = resolve_config(config(strategy="replay", optimizer_state="keep"), dist_env)
    with process_group(dist_env, "cpu") as group:

        def train(saved=None):
            options = {"group": group, "saved": saved}
            training = StreamTraining(settings, stream, TrainingProgress(), **options)
            states = []
            rows = training.rows(states.append)
            # Only the first process has predictions and states.
            return [(measured.row, measured.predictions) for measured in rows], states

        rows, states = train()
        state = folder / "state.safetensors"
        if dist_env.rank == 0:
            state.write_bytes(states[1].state)
        again, states_again = train(state if dist_env.rank == 0 else None)
    assert again == rows[1:]
    if dist_env.rank == 0:
        assert read_weights(states_again[-1].state) == read_weights(states[-1].state)
    (folder / f"{dist_env.rank}.txt").write_text("the same")


if __name__ == "__main__":
    main()
