"""Scripts that use a framework's own MLflow logger next to our adapter."""

import json
import os
import subprocess
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from unittest.mock import ANY

import pytest
from forked import ForkedPython
from mlflow.entities import ViewType

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
        """Run a script in its own process and return its exit code and standard error."""
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
import os, sys
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
    trainer = make_trainer(train[0])
    if "row-0" in options:
        trainer.evaluate(test)
    for k, data in enumerate(train):
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

if "active" in options:
    with mlflow.start_run():
        loop()
else:
    loop()
if "twice" in options:
    loop()
"""

LIGHTNING = """
import os, sys
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
    logger = make_logger()
    trainer = make_trainer(logger)
    if "row-0" in options:
        trainer.test(model, test, verbose=False)
    for k, data in enumerate(train):
        if "one-trainer" in options:
            trainer.fit_loop.max_epochs = k + 1
        else:
            trainer = make_trainer(logger if "one-logger" in options else make_logger())
        trainer.fit(model, data)
        if "kill" in options and k == 1:
            os.kill(os.getpid(), 9)
        trainer.test(model, test, verbose=False)
        run_id = trainer.logger.run_id
        status = store.get_run(run_id).info.status
        if status != ("RUNNING" if k < 2 or "active" in options else "FINISHED"):
            sys.exit(f"bucket {k}: {status}")
    if "late" in options:
        trainer.test(model, test, verbose=False)

if "experiment" in options:
    mlflow.set_experiment("another")
if "active" in options:
    with mlflow.start_run():
        loop()
else:
    loop()
if "twice" in options:
    loop()
"""

SCRIPTS = {"lightning.pytorch": LIGHTNING, "transformers.trainer": HUGGING_FACE}


@pytest.fixture(scope="module")
def start_runner():
    """Start the process of a framework at its first test, and return how to run a script."""
    with ExitStack() as stack:
        yield cache(lambda framework: stack.enter_context(script_runner(framework)))


@pytest.fixture(params=SCRIPTS)
def framework(request):
    """The module of a framework to import."""
    return request.param


@pytest.fixture
def run_script(start_runner, framework, tmp_path, store):
    """Run a loop over three buckets in its own process."""
    path = tmp_path / "loop.py"
    path.write_text(SCRIPTS[framework])
    return partial(start_runner(framework), path)


def list_runs(store):
    """Return all runs of a store, deleted ones included."""
    experiments = [e.experiment_id for e in store.search_experiments()]
    return list(store.search_runs(experiments, run_view_type=ViewType.ALL))


OF_LIGHTNING = pytest.mark.parametrize("framework", ["lightning.pytorch"])
OF_TRANSFORMERS = pytest.mark.parametrize("framework", ["transformers.trainer"])


@pytest.mark.parametrize(
    ("framework", "options"),
    [
        ("lightning.pytorch", ""),
        ("lightning.pytorch", "row-0 one-logger"),
        ("lightning.pytorch", "one-trainer"),
        ("lightning.pytorch", "late model"),
        ("lightning.pytorch", "active"),
        ("lightning.pytorch", "experiment"),
        ("lightning.pytorch", "twice"),
        ("transformers.trainer", ""),
        ("transformers.trainer", "row-0"),
        ("transformers.trainer", "one-trainer"),
        ("transformers.trainer", "one-trainer row-0"),
        ("transformers.trainer", "add-callback"),
        ("transformers.trainer", "by-hand"),
        ("transformers.trainer", "active"),
        ("transformers.trainer", "twice late"),
    ],
)
def test_one_loop_with_a_logger_is_one_run(store, run_script, options):
    """The run has the numbers of both and ends FINISHED."""
    assert run_script(*options.split()) == (0, ANY)
    runs = list_runs(store)
    assert len(runs) == (2 if "twice" in options else 1)
    for run in runs:
        assert run.info.status == "FINISHED"
        assert run.data.tags[names.ROWS_TAG] == "complete"
        assert {"train_loss", "clear/accuracy"} <= run.data.metrics.keys()


def test_a_killed_loop_with_a_logger_continues_in_its_run(store, run_script):
    """A second process finds the run by ``MLFLOW_RUN_ID`` and stores its first row once."""
    assert run_script("kill")[0] == -9
    (run,) = list_runs(store)
    assert run.info.status == "RUNNING"
    assert run_script(MLFLOW_RUN_ID=run.info.run_id) == (0, ANY)
    (run,) = list_runs(store)
    assert (run.info.status, run.data.tags[names.ROWS_TAG]) == ("FINISHED", "complete")


def test_a_loop_with_a_logger_that_fails_before_its_first_row_is_failed(store, run_script):
    """The logger opened the run, and the adapter ends it."""
    assert run_script("crash")[0] == 1
    (run,) = list_runs(store)
    assert run.info.status == "FAILED"
    assert run.data.tags[names.ERROR_TAG] == "ValueError: broke"


@OF_LIGHTNING
def test_the_run_that_a_logger_names_is_joined(store, run_script, experiment_id):
    """A run that was closed is open during the loop of ``MLFlowLogger(run_id=...)``."""
    run_id = store.create_run(experiment_id).info.run_id
    store.set_terminated(run_id, "KILLED")
    assert run_script(LOGGER_RUN_ID=run_id) == (0, ANY)
    (run,) = list_runs(store)
    assert (run.info.run_id, run.info.status) == (run_id, "FINISHED")


@OF_LIGHTNING
def test_an_interrupted_loop_is_killed(store, run_script):
    """The logger would end the run as failed."""
    assert run_script("interrupt")[0] == 1
    (run,) = list_runs(store)
    assert run.info.status == "KILLED"


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
