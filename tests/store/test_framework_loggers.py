"""Scripts that use a framework's own MLflow logger next to our adapter."""

import json
import os
import subprocess
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from itertools import product
from unittest.mock import ANY

import numpy as np
import pytest
from forked import ForkedPython
from mlflow.entities import ViewType

import clear_mlflow
from clear_mlflow.importers import load_file, parse_runs
from clear_mlflow.store import names

# Imports a framework, and then runs each script that is requested in a fork of itself.
FORKING = """
import importlib, json, os, runpy, sys
importlib.import_module(sys.argv[1])
for line in sys.stdin:
    path, options, environment, errors = json.loads(line)
    if not (child := os.fork()):
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(os.path.dirname(path))
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
        sys.argv = [path, *options]
        runpy.run_path(path, run_name="__main__")
        sys.exit()
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@contextmanager
def script_runner(framework):
    """Yield a function that runs a script of a framework, which is imported only once."""
    process = ForkedPython(
        *("-c", FORKING, framework), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )

    def run_script(path, *options, **environment):
        errors = path.with_name("errors.txt")
        request = [str(path), options, {**os.environ, **environment}, str(errors)]
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        return int(process.stdout.readline()), errors.read_text()

    try:
        yield run_script
    finally:
        process.stdin.close()
        process.wait()
        process.stdout.close()


HUGGING_FACE = """
import contextlib, os, sys
import mlflow
import torch
from transformers import Trainer, TrainingArguments
from transformers.integrations import MLflowCallback
from clear_mlflow.adapters.transformers import MLflowAccuracyMatrix

options = set(sys.argv[1:])
KEYS = ["1", "2", "3"]

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(3, 3)
    def forward(self, x, labels):
        logits = self.layer(x)
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}

def bucket(count):
    y = torch.arange(count) % 3
    x = torch.nn.functional.one_hot(y, 3).float()
    return [{"x": x[i], "labels": y[i]} for i in range(count)]

def accuracy(p):
    return {"accuracy": float((p.predictions.argmax(1) == p.label_ids).mean())}

def make_trainer(data):
    arguments = TrainingArguments(
        output_dir="out", num_train_epochs=1, use_cpu=True, save_strategy="no",
        report_to="none" if "by-hand" in options else "mlflow", disable_tqdm=True,
    )
    at_once = {} if "add-callback" in options else {"callbacks": [matrix]}
    trainer = Trainer(model, arguments, train_dataset=data, compute_metrics=accuracy, **at_once)
    if "add-callback" in options:
        trainer.add_callback(matrix)
    if "by-hand" in options:
        trainer.add_callback(MLflowCallback())
    return trainer

def loop():
    global model, matrix
    train, test = [bucket(8) for _ in KEYS], {key: bucket(6) for key in KEYS}
    model, matrix = Model(), MLflowAccuracyMatrix(KEYS, dataset="toy", seed=0)
    if "TRAINED" in os.environ:
        matrix.trained = int(os.environ["TRAINED"])
    trainer = make_trainer(train[0])
    if "row-0" in options:
        trainer.evaluate(test)
    for k, data in list(enumerate(train))[matrix.trained :]:
        if "one-trainer" in options:
            trainer.train_dataset = data
        else:
            trainer = make_trainer(data)
        trainer.train()
        if "crash" in options:
            raise ValueError("broke")
        if "kill" in options and k == 1:
            os.kill(os.getpid(), 9)
        trainer.evaluate(test)
    if "late" in options:
        trainer.evaluate(test["1"])
        trainer.predict(test["1"])
"""

LIGHTNING = """
import contextlib, os, sys
import mlflow
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers import MLFlowLogger
from torch.utils.data import DataLoader, TensorDataset
from clear_mlflow.adapters.lightning import MLflowAccuracyMatrix

options = set(sys.argv[1:])
store = mlflow.MlflowClient()

class Model(LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(3, 3)
        self.fits = 0
    def on_fit_start(self):
        self.fits += 1
        if "crash" in options or ("interrupt" in options and self.fits == 2):
            raise ValueError("broke") if "crash" in options else KeyboardInterrupt
    def training_step(self, batch, _):
        loss = torch.nn.functional.cross_entropy(self.layer(batch[0]), batch[1])
        self.log("train_loss", loss)
        return loss
    def test_step(self, batch, batch_idx, dataloader_idx=0):
        correct = (self.layer(batch[0]).argmax(1) == batch[1]).float()
        self.log("test_acc", correct.mean(), batch_size=len(correct))
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.5)

def bucket(count):
    y = torch.arange(count) % 3
    return DataLoader(TensorDataset(torch.nn.functional.one_hot(y, 3).float(), y), batch_size=4)

def make_logger():
    if "no-logger" in options:
        return False
    run_id = os.environ.get("LOGGER_RUN_ID")
    uri = os.environ["MLFLOW_TRACKING_URI"]
    return MLFlowLogger("lightning", tracking_uri=uri, log_model="model" in options, run_id=run_id)

def make_trainer(logger):
    return Trainer(
        max_epochs=1, accelerator="cpu", logger=logger, enable_checkpointing="model" in options,
        enable_progress_bar=False, enable_model_summary=False, log_every_n_steps=1,
        callbacks=[matrix],
    )

def loop():
    global matrix
    train, test = [bucket(8) for _ in range(3)], [bucket(6) for _ in range(3)]
    model, matrix = Model(), MLflowAccuracyMatrix(dataset="toy", seed=0)
    if "TRAINED" in os.environ:
        matrix.trained = int(os.environ["TRAINED"])
    logger = make_logger()
    trainer = make_trainer(logger)
    if "row-0" in options:
        trainer.test(model, test, verbose=False)
    for k, data in list(enumerate(train))[matrix.trained :]:
        if "one-trainer" in options:
            trainer.fit_loop.max_epochs = k + 1
        else:
            trainer = make_trainer(logger if "one-logger" in options else make_logger())
        trainer.fit(model, data)
        if "kill" in options and k == 1:
            os.kill(os.getpid(), 9)
        trainer.test(model, test, verbose=False)
        run_id = matrix.run_id
        status = store.get_run(run_id).info.status
        if status != ("RUNNING" if k < 2 or "active" in options else "FINISHED"):
            sys.exit(f"bucket {k}: {status}")
    if "late" in options:
        trainer.test(model, test, verbose=False)

if "autolog" in options:
    mlflow.pytorch.autolog(log_models=False)
if "experiment" in options:
    mlflow.set_experiment("another")
"""

AVALANCHE = """
import os, sys
import torch
from avalanche.benchmarks import benchmark_from_datasets
from avalanche.benchmarks.utils import as_classification_dataset
from avalanche.evaluation.metrics import accuracy_metrics
from avalanche.logging import CSVLogger
from avalanche.training.plugins import EvaluationPlugin
from avalanche.training.supervised import Naive
from torch.utils.data import TensorDataset
from clear_mlflow.adapters.avalanche import MLflowAccuracyMatrix

size, order, *options = sys.argv[1:]
size = int(size)

def experience(j):
    data = TensorDataset(torch.eye(size)[[j] * (4 + j)], torch.full((4 + j,), j))
    data.targets = data.tensors[1]
    return as_classification_dataset(data)

streams = [[experience(j) for j in range(size)] for _ in range(2)]
stream = benchmark_from_datasets(train=streams[0], test=streams[1])
# Each experience has its own weights: it is wrong until it is trained, and then never forgotten.
model = torch.nn.Linear(size, size, bias=False)
model.weight.data = torch.eye(size).roll(1, 0)
if os.path.exists("model.pt") and "again" not in options:
    model.load_state_dict(torch.load("model.pt"))
matrix = MLflowAccuracyMatrix(dataset="toy", seed=0)
plugin = EvaluationPlugin(
    accuracy_metrics(experience=True), loggers=[matrix, CSVLogger("logs" + order)]
)
optimizer = torch.optim.SGD(model.parameters(), lr=5.0)
strategy = Naive(
    model=model, optimizer=optimizer, train_mb_size=2, train_epochs=9, evaluator=plugin
)
if "row-0" in options:
    strategy.eval(stream.test_stream)
for number, digit in enumerate(order):
    if "kill" in options and number == 2:
        os.kill(os.getpid(), 9)
    strategy.train(stream.train_stream[int(digit) - 1])
    strategy.eval(stream.test_stream)
    if "again" not in options:
        torch.save(model.state_dict(), "model.pt")
    print("done with", digit, file=sys.stderr)
"""

LOOP = """
with mlflow.start_run() if "active" in options else contextlib.nullcontext():
    loop()
if "twice" in options:
    loop()
"""

SCRIPTS = {
    "lightning.pytorch": LIGHTNING + LOOP,
    "transformers.trainer": HUGGING_FACE + LOOP,
    "avalanche.training.supervised": AVALANCHE,
}


@pytest.fixture(scope="module")
def start_runner():
    """Start the process of a framework at its first test, and return how to run a script."""
    with ExitStack() as stack:
        yield cache(lambda framework: stack.enter_context(script_runner(framework)))


@pytest.fixture(params=["lightning.pytorch", "transformers.trainer"])
def framework(request):
    return request.param


@pytest.fixture
def run_script(start_runner, framework, tmp_path, store):
    path = tmp_path / "loop.py"
    path.write_text(SCRIPTS[framework])
    return partial(start_runner(framework), path)


def list_runs(store):
    experiments = [e.experiment_id for e in store.search_experiments()]
    return list(store.search_runs(experiments, run_view_type=ViewType.ALL))


OF_LIGHTNING = pytest.mark.parametrize("framework", ["lightning.pytorch"])
OF_AVALANCHE = pytest.mark.parametrize("framework", ["avalanche.training.supervised"])
OF_TRANSFORMERS = pytest.mark.parametrize("framework", ["transformers.trainer"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("framework", "options"),
    [
        *product(
            ["lightning.pytorch"],
            [
                *("", "row-0 one-logger", "one-trainer", "late model", "active", "experiment"),
                *("twice", "autolog", "autolog no-logger", "autolog no-logger row-0"),
                "autolog no-logger active",
            ],
        ),
        *product(
            ["transformers.trainer"],
            [
                *("", "row-0", "one-trainer", "one-trainer row-0", "add-callback", "by-hand"),
                *("active", "twice late"),
            ],
        ),
    ],
)
def test_one_loop_with_a_logger_is_one_run(store, run_script, options):
    assert run_script(*options.split()) == (0, ANY)
    runs = list_runs(store)
    assert len(runs) == (2 if "twice" in options else 1)
    for run in runs:
        assert run.info.status == "FINISHED"
        assert run.data.tags[names.ROWS_TAG] == "complete"
        assert {"train_loss", "clear/accuracy"} <= run.data.metrics.keys()


@pytest.mark.slow
@pytest.mark.parametrize("trained", ["0", "1"])
def test_a_killed_loop_with_a_logger_continues_in_its_run(store, run_script, trained):
    assert run_script("kill")[0] == -9
    (run,) = list_runs(store)
    assert run.info.status == "RUNNING"
    code, errors = run_script(MLFLOW_RUN_ID=run.info.run_id)
    assert (code, errors.count("this adapter cannot know which bucket is trained next")) == (1, 1)
    assert "has rows up to row 1," in errors
    (refused,) = list_runs(store)
    assert refused.data.metrics == run.data.metrics  # nothing was trained
    assert run_script(MLFLOW_RUN_ID=run.info.run_id, TRAINED=trained) == (0, ANY)
    (run,) = list_runs(store)
    assert (run.info.status, run.data.tags[names.ROWS_TAG]) == ("FINISHED", "complete")
    assert names.ERROR_TAG not in run.data.tags


def check_in_order(run, order, num_rows):
    assert run.matrix.buckets[:num_rows] == tuple(order)[:num_rows]
    assert run.matrix.values.tolist() == np.tri(num_rows, run.matrix.num_buckets).tolist()
    assert [4 + int(key) - 1 for key in run.matrix.buckets] == run.matrix.num_instances.tolist()


@pytest.mark.slow
@OF_AVALANCHE
@pytest.mark.parametrize("order", ["321", "132", "2413"])
def test_avalanches_experiences_are_rows_in_the_order_of_their_training(
    store, run_script, tmp_path, order
):
    assert run_script(str(len(order)), order, "row-0") == (0, ANY)
    (run,) = map(clear_mlflow.load, (run.info.run_id for run in list_runs(store)))
    (imported,) = parse_runs(load_file(tmp_path / f"logs{order}" / "eval_results.csv"))
    assert run.status == "FINISHED"
    for done in (run, imported):
        assert done.matrix.buckets == tuple(order)
        assert done.matrix.values.tolist() == np.tri(len(order)).tolist()
        assert done.matrix.initial.tolist() == [0] * len(order)
    check_in_order(run, order, len(order))
    assert run.metrics["renate/forgetting"].value == 0
    # The history was computed while the order was still a guess.
    history = store.get_metric_history(run.run_id, "clear/next_domain_accuracy")
    assert {point.step: point.value for point in history if point.step < 3} == {1: 0, 2: 0}


@pytest.mark.slow
@OF_AVALANCHE
@pytest.mark.parametrize(("order", "first", "trained"), [("1213", "12", 2), ("3223", "32", 2)])
def test_an_experience_that_is_trained_again_is_refused_before_its_training(
    store, run_script, order, first, trained
):
    code, errors = run_script("3", order)
    assert (code, errors.count("done with")) == (1, trained)
    assert f"is trained again, after {', '.join(first)}; an accuracy matrix" in errors
    (run,) = map(clear_mlflow.load, (run.info.run_id for run in list_runs(store)))
    assert run.status == "FAILED"
    check_in_order(run, first, trained)


@pytest.mark.slow
@OF_AVALANCHE
@pytest.mark.parametrize(
    ("order", "rest"), [("123", "3 row-0"), ("321", "1 row-0"), ("321", "321 again")]
)
def test_a_killed_avalanche_loop_continues_with_its_next_experience(store, run_script, order, rest):
    assert run_script("3", order, "kill")[0] == -9
    (run,) = list_runs(store)
    join = {"MLFLOW_RUN_ID": run.info.run_id}
    code, errors = run_script("3", order[0] + order[2], "again", **join)
    assert (code, errors.count("done with")) == (1, 1)
    assert f"on experiences {order[0]}, {order[1]}, but now {order[0]}, {order[2]} are" in errors
    assert run_script("3", *rest.split(), **join) == (0, ANY)
    stored = clear_mlflow.load(run.info.run_id)
    assert stored.status == "FINISHED"
    check_in_order(stored, order, 3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("framework", "end", "status", "error"),
    [
        ("lightning.pytorch", "crash", "FAILED", "ValueError: broke"),
        ("transformers.trainer", "crash", "FAILED", "ValueError: broke"),
        ("lightning.pytorch", "interrupt", "KILLED", "KeyboardInterrupt: "),
    ],
)
def test_a_loop_with_a_logger_that_ends_early_has_its_status(store, run_script, end, status, error):
    """The adapter ends the run that the logger opened, which would end an interrupt as failed."""
    assert run_script(end)[0] == 1
    (run,) = list_runs(store)
    assert (run.info.status, run.data.tags[names.ERROR_TAG]) == (status, error)


@pytest.mark.slow
@OF_LIGHTNING
def test_the_run_that_a_logger_names_is_joined(store, run_script, experiment_id):
    run_id = store.create_run(experiment_id).info.run_id
    store.set_terminated(run_id, "KILLED")
    assert run_script(LOGGER_RUN_ID=run_id) == (0, ANY)
    (run,) = list_runs(store)
    assert (run.info.run_id, run.info.status) == (run_id, "FINISHED")


@pytest.mark.slow
@OF_TRANSFORMERS
def test_a_nested_run_is_one_child_run(store, run_script):
    """``MLFLOW_NESTED_RUN`` asks for it, and a new Trainer does not open another one."""
    assert run_script("active", "row-0", MLFLOW_NESTED_RUN="1") == (0, ANY)
    child, parent = list_runs(store)
    assert child.data.tags["mlflow.parentRunId"] == parent.info.run_id
    assert child.data.tags[names.ROWS_TAG] == "complete"
    assert names.ROWS_TAG not in parent.data.tags
    assert {child.info.status, parent.info.status} == {"FINISHED"}
    assert run_script(MLFLOW_NESTED_RUN="1") == (0, ANY)
    assert len(list_runs(store)) == 3
