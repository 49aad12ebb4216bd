"""One of two processes that train together, stop after row 1, and resume.

The state is stored in a file that only the first process knows.
"""

import sys
from pathlib import Path

from learning_streams import config, random_stream
from safetensors.numpy import load_file

from clear_mlflow.core.distributed import read_dist_env
from clear_mlflow.learning.checkpoint import read_state
from clear_mlflow.learning.process_group import process_group
from clear_mlflow.learning.progress import TrainingProgress
from clear_mlflow.learning.session import StreamTraining, check


def read_labels(folder, measured):
    """Return the predicted classes, which only the first process has."""
    if measured.predictions is None:
        return None
    file = folder / "predictions.safetensors"
    file.write_bytes(measured.predictions)
    return load_file(file)["labels"].tolist()


def read_weights(state):
    """Return the weights of a state."""
    return {
        name: value.numpy().tobytes() for name, value in read_state(state).snapshot.model.items()
    }


def main():
    folder, dist_env = Path(sys.argv[1]), read_dist_env()
    stream, _ = random_stream(
        folder / f"images{dist_env.rank}", train=(11, 8, 9), test=(5, 3, 7), side=8
    )
    settings = check(config(strategy="replay", optimizer_state="keep"), dist_env)
    with process_group(dist_env, "cpu") as group:

        def rows(saved=None):
            made = StreamTraining(
                settings, stream, "here", TrainingProgress(), group=group, saved=saved
            )
            states = {}

            def keep(made):
                states[made.row] = made.file

            return list(made.rows(on_state=keep)), states

        full_run, states = rows()
        state = folder / "state.safetensors"
        if dist_env.rank == 0:
            state.write_bytes(states[1])
        again, states_again = rows(state if dist_env.rank == 0 else None)
    assert [trained_bucket.row for trained_bucket in again] == [
        trained_bucket.row for trained_bucket in full_run[1:]
    ]
    assert [read_labels(folder, trained_bucket) for trained_bucket in again] == [
        read_labels(folder, o) for o in full_run[1:]
    ]
    if dist_env.rank == 0:
        assert read_weights(states_again[2]) == read_weights(states[2])
    (folder / f"{dist_env.rank}.txt").write_text("the same")


if __name__ == "__main__":
    main()
