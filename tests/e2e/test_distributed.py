"""Several processes train one model: the matrix of one process, and no run that hangs."""

import json
import os
import signal
import subprocess
from pathlib import Path

import numpy as np
import psutil
import pytest
from commands import run_command
from distributed_worker import results
from forked import PIPED, ForkedPython, environment, run_python, run_shell
from ports import free_port
from short_stream import HELD, options
from stored_runs import build_stored_matrix, only_run, select_scores, wait_for_row
from waiting import LONG, finish

from clear_mlflow.core.distributed import SINGLE_PROCESS_ENV, DistributedEnv, read_dist_env
from clear_mlflow.core.errors import ConfigError
from clear_mlflow.learning.parameters.config import TrainConfig
from clear_mlflow.learning.progress import TrainingProgress
from clear_mlflow.learning.session import prepare_training, resolve_config
from clear_mlflow.learning.strategies import list_strategies, load_strategy
from clear_mlflow.learning.strategies._base import Strategy
from clear_mlflow.metrics import summarize
from clear_mlflow.store import names


class ForOne(Strategy):
    """A custom strategy that does not support several processes."""


WORKER = Path(__file__).parents[1] / "support" / "distributed_worker.py"
TOGETHER = [name for name in list_strategies() if load_strategy(name).supports_distributed]

SHORT = "batch_size=3 epochs=1"
ONES = "batch_size=1 epochs=1"
OF_FEATURES = "features=made_up epochs=1 batch_size=7"
GENTLY = "lr=0.01 momentum=0"  # others only forget where these amplify rounding
CASES = {
    # Every strategy that may, on what it may.
    **{
        f"{name} on images": f"strategy={name} {SHORT} {GENTLY if name == 'derpp' else ''}"
        for name in TOGETHER
        if not load_strategy(name).needs_features
    },
    **{f"{name} on features": f"strategy={name} {OF_FEATURES}" for name in TOGETHER},
    "full batches of features": "features=made_up epochs=1 batch_size=full predictions=probs",
    # One process has no image at all in each step, of the bucket or of the buffer.
    "batches of one": ONES,
    # Else torch's own normalisation would exchange two types, and all wait for ever.
    "batches of one in bfloat16": f"{ONES} precision=bf16 lr=0.000001",
    # With one scale of the loss in all processes.
    "float16": f"{SHORT} precision=fp16 lr=0.000001",
    "er_ace in batches of one": f"strategy=er_ace {ONES}",
    "agem in batches of one": f"strategy=agem {ONES}",
    "replay in balanced batches": (
        f"strategy=replay strategy_args=batches=balanced {SHORT} {GENTLY}"
    ),
    # Nor does the buffer hold as many as a batch; and what is kept of each is of the last epoch.
    "derpp, all else": (
        f"strategy=derpp {GENTLY} strategy_args=alpha=1 memory=2 batch_size=5 label_smoothing=0.1"
        " optimizer_state=keep"
    ),
    "adamw, all else": (
        "optimizer=adamw optimizer_state=keep lr=0.001 clip_norm=0.1 label_smoothing=0.1"
        " predictions=probs"
    ),
    "a frozen backbone": "freeze=backbone epochs=1",
    "a stream that does not wait": f"strategy=er_ace {SHORT} stream_rate=naive:1 {GENTLY}",
    "tests inside the buckets": f"{SHORT} test_every=1steps",
}
CASES = {name: dict(p.split("=", 1) for p in text.split()) for name, text in CASES.items()}
# Enough to see that nothing depends on there being two.
OF_THREE = {
    name: CASES[name]
    for name in (
        *("replay on images", "linear on features", "batches of one"),
        *("agem on images", "derpp on images", "er_ace on features", "cwr on images"),
    )
}


def rank_variables(rank, size, port):
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    numbers |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return environment(**{name: str(value) for name, value in numbers.items()})


@pytest.fixture(scope="module")
def by_processes(tmp_path_factory):
    rows_by_count = {}
    for size, cases in ((2, CASES), (3, OF_THREE)):
        folder = tmp_path_factory.mktemp(f"of{size}")
        (folder / "cases.json").write_text(json.dumps(cases))
        port = free_port()
        ranks = [
            ForkedPython(str(WORKER), str(folder), env=rank_variables(rank, size, port))
            for rank in range(size)
        ]
        assert [process.wait(LONG) for process in ranks] == [0] * size
        rows_by_count[size] = [dict(np.load(folder / f"{rank}.npz")) for rank in range(size)]
    rows_by_count[1] = [results(CASES, tmp_path_factory.mktemp("of1") / "images")]
    return rows_by_count


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "case"), [*((2, case) for case in CASES), *((3, case) for case in OF_THREE)]
)
def test_several_processes_compute_the_matrix_of_one(by_processes, size, case):
    """Counts and predictions are equal, weights up to rounding, and all ranks agree to the bit.

    So few steps do not amplify rounding until a prediction changes.
    """
    (alone,) = by_processes[1]
    keys = [key for key in alone if key.startswith(f"{case}/")]
    assert len([key for key in keys if "/correct" in key]) == 4
    assert bool(len(alone[f"{case}/tests"])) == ("test_every" in CASES[case])
    for ranks in by_processes[size]:
        for key in keys:
            np.testing.assert_array_equal(ranks[key], by_processes[size][0][key], err_msg=key)
            if any(part in key for part in ("/correct", "/labels", "/tests")):
                np.testing.assert_array_equal(ranks[key], alone[key], err_msg=key)
            else:
                np.testing.assert_allclose(
                    ranks[key].astype(float), alone[key], rtol=2e-3, atol=2e-4, err_msg=key
                )


def start(project, *command):
    """Start a launcher as a user does. Only its own signals are ours; the rest may be forked."""
    # Rank 0 looks into the environments of the others, which of forked ones says nothing.
    options = {"cwd": project, "env": environment(MLFLOW_EXPERIMENT_NAME="test"), **PIPED}
    if command[0] == "-m":
        return ForkedPython(*command, **options, start_new_session=True)
    return subprocess.Popen(command, text=True, **options, start_new_session=True)


TORCHRUN = ("torchrun", "--standalone", "--nproc-per-node", "2", "-m", "clear_mlflow", "train")
OURS = ("-m", "clear_mlflow", "train-distributed", "--processes", "2")


@pytest.mark.slow
def test_mlflow_run_trains_in_two_processes(project, store, experiment_id):
    options = "-P processes=2 -P device=cpu -P features=pixels -P epochs=1"
    command = f"mlflow run '{project}' --env-manager local -e train_distributed {options}"
    done = run_shell(command, env=environment(MLFLOW_EXPERIMENT_NAME="test"), timeout=LONG)
    output = done.stdout + done.stderr
    two = only_run(store, experiment_id)
    assert (two.info.status, two.data.tags[names.ROWS_TAG]) == ("FINISHED", "complete")
    assert two.data.params["processes"] == two.data.tags[names.PROCESSES_TAG] == "2"
    assert output.count("bucket 10/10") == 1
    assert output.count("clear/in_domain_accuracy") == 1
    matrix = build_stored_matrix(two)
    assert select_scores(two) == summarize(matrix)
    settings = resolve_config(
        TrainConfig.resolve({"features": "pixels", "epochs": "1", "device": "cpu"})
    )
    alone = [
        measured.row.cells for measured in prepare_training(settings, TrainingProgress()).rows()
    ]
    np.testing.assert_array_equal(matrix.values, alone[1:])


def rank_1(process, module):
    for child in psutil.Process(process.pid).children(recursive=True):
        if child.environ().get("RANK") == "1" and module in " ".join(child.cmdline()):
            return child
    raise AssertionError(f"rank 1 does not run {module}")


def kill_second_training(process):
    rank_1(process, "clear_mlflow.process.child").kill()


def interrupt(process):
    """Press Ctrl-C in a terminal: send SIGINT to the foreground process group."""
    os.killpg(process.pid, signal.SIGINT)


def runs_still(process):
    """Return True unless a process has ended, also if it was not waited for."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE and process.is_running()
    except psutil.NoSuchProcess:
        return False


@pytest.mark.slow
@pytest.mark.parametrize(
    ("launcher", "end", "status", "message"),
    [
        (TORCHRUN, kill_second_training, "FAILED", "another process of this training has ended"),
        (OURS, interrupt, "KILLED", "stopped by SIGINT"),
    ],
    ids=["training of rank 1 killed", "interrupted"],
)
def test_an_interrupted_distributed_run_is_scored_and_closed(
    project, store, experiment_id, short_stream, hold, launcher, end, status, message
):
    parameters = {**short_stream, **HELD, "batch_size": "2", "device": "cpu"}
    process = start(project, *launcher, *options(parameters))
    run = wait_for_row(store, experiment_id, 1, process)
    started = psutil.Process(process.pid).children(recursive=True)
    hold.unlink()  # only a training that goes on notices that the other one has ended
    end(process)
    code, output = finish(process)
    assert code != 0
    _, alive = psutil.wait_procs(started, 30)
    assert not [child for child in alive if runs_still(child)]
    run = store.get_run(run.info.run_id)
    assert run.info.status == status, output
    assert message in run.data.tags[names.ERROR_TAG]
    assert run.data.tags[names.ROWS_TAG] == "partial"
    assert select_scores(run) == summarize(build_stored_matrix(run))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--strategy", f"{__name__}:ForOne", "--processes", "2"], "ForOne trains in one process"),
        (["--processes", "0"], "processes is 0; expected a whole number of at least 1"),
        (["--lr", "-1"], "lr is '-1'"),
    ],
)
def test_invalid_options_are_rejected_before_any_process_starts(arguments, message):
    output = run_command("train-distributed", "--device", "cpu", *arguments, code=2)
    (line,) = output.splitlines()
    assert line.startswith("error: ")
    assert message in line


def test_strategies_that_need_one_process_are_rejected():
    two = DistributedEnv(rank=0, size=2, local_rank=0, local_size=2)
    resolve_config(TrainConfig.resolve({"device": "cpu"}), two)
    with pytest.raises(ConfigError, match="ForOne trains in one process and this is one of 2"):
        resolve_config(
            TrainConfig.resolve({"device": "cpu", "strategy": f"{__name__}:ForOne"}), two
        )


def test_rank_and_size_are_those_of_torchrun():
    environment = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    environment |= {"MASTER_ADDR": "a", "MASTER_PORT": "1"}
    assert read_dist_env(environment) == DistributedEnv(rank=3, size=4, local_rank=1, local_size=2)
    assert read_dist_env({}) is SINGLE_PROCESS_ENV
    assert read_dist_env({"WORLD_SIZE": "8"}) is SINGLE_PROCESS_ENV
    assert read_dist_env({**environment, "RANK": "0", "WORLD_SIZE": "1"}).size == 1
    for changes in ({"RANK": "4"}, {"RANK": "x"}, {"LOCAL_RANK": "2"}):
        with pytest.raises(ConfigError, match="RANK"):
            read_dist_env({**environment, **changes})
    del environment["MASTER_PORT"]
    with pytest.raises(ConfigError, match="MASTER_PORT missing"):
        read_dist_env(environment)


def test_train_in_python_rejects_several_processes():
    """Otherwise each process would train its own run."""
    code = (
        "import clear_mlflow\n"
        "try:\n    clear_mlflow.train(epochs=1)\n"
        "except clear_mlflow.core.errors.ConfigError as error:\n"
        "    assert 'one of 2' in str(error)\n"
        "else:\n    raise SystemExit('trained')\n"
    )
    run_python("-c", code, check=True, env=rank_variables(1, 2, 1))
