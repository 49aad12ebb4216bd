"""Fixtures of all tests: the checkout, a cache folder, and a terminal's signal handlers.

Nothing here imports torch or MLflow, since the tests in unit/ run without them.
"""

import atexit
import fcntl
import gc
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import settings

# On a developer's machine, every run tries other examples. In CI, the same change has the same
# result. Examples run without a deadline, since their time depends on the machine's load.
settings.register_profile("here", deadline=None)
settings.register_profile("ci", settings.get_profile("here"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "here")

# Threads that spin while they wait would take cores from the processes that they wait for. Torch
# reads this when it is loaded, here and in processes that tests start.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# More threads cost more than they save: the models and images of tests are small.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Tests report nothing to MLflow's developers.
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")

# ``pytest &`` ignores Ctrl-C, and ``nohup`` ignores a hang-up, and so would all processes that are
# started here. Tests of these signals need the default handlers.
for _signal, _default in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGHUP, signal.SIG_DFL),
    (signal.SIGTERM, signal.SIG_DFL),
):
    if signal.getsignal(_signal) is signal.SIG_IGN:
        signal.signal(_signal, _default)

# Files whose tests start programs and wait for them, the longest first. They come before the other
# files, so that none of them is left to the end.
_LONGEST = (
    "test_examples.py",
    "test_sweep.py",
    "test_end_to_end.py",
    "test_distributed.py",
    "test_real_servers.py",
    "test_resume.py",
    "test_folder_names.py",
    "test_outages.py",
    "test_readme.py",
    "test_docs.py",
    "test_clusters.py",
    "test_process_streams.py",
    "test_framework_loggers.py",
    "test_preloaded.py",
    "test_faults.py",
    "test_notebook.py",
    "test_power_cut.py",
    "test_clear10_command.py",
    "test_logged_models.py",
    "test_fuzz.py",
)

# A test that takes longer, without a load, has to be marked as slow.
_MAX_SECONDS = 5.0
_IS_CHECKED_ALONE = "CLEAR_TESTS_ALONE"  # set where a test that took longer is run again
_too_long: dict[str, float] = {}  # seconds by test
_MOST_WORKERS = 8  # each loads torch and MLflow, and so does its fork server


def pytest_xdist_auto_num_workers(config):
    """Return one more than there are cores, as some wait, or 0 for tests that are named."""
    if config.args and all("::" in argument for argument in config.args):
        config.option.dist = "no"
        return 0
    return min((os.cpu_count() or 1) + 1, _MOST_WORKERS)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark the further cases of a test as slow, and begin with the files that take longest."""
    cases = Counter()
    for item in items:
        if marker := item.get_closest_marker("fast_cases"):
            test = (item.path, item.originalname)
            cases[test] += 1
            if cases[test] > marker.args[0]:
                item.add_marker("slow")
    order = {name: number for number, name in enumerate(_LONGEST)}
    items.sort(key=lambda item: order.get(item.path.name, len(_LONGEST)))


def pytest_runtest_logreport(report):
    """Note the tests that take long and are not marked as slow or as a program."""
    is_exempt = "slow" in report.keywords or "program" in report.keywords
    if report.when == "call" and report.duration > _MAX_SECONDS and not is_exempt:
        _too_long[report.nodeid] = report.duration


def pytest_sessionfinish(session):
    """In CI, fail if a test that is not marked as slow takes long, also without other tests."""
    if "CI" not in os.environ or "PYTEST_XDIST_WORKER" in os.environ:
        return
    for test, seconds in _too_long.items():
        if _IS_CHECKED_ALONE not in os.environ:
            command = [sys.executable, "-m", "pytest", "-n0", test]
            environment = os.environ | {_IS_CHECKED_ALONE: "1"}
            if not subprocess.run(command, env=environment, check=False).returncode:
                continue
        print(f"\n{test} took {seconds:.1f} s, more than {_MAX_SECONDS:g}: mark it as slow")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_collection_finish():
    """Exclude what is loaded by now from garbage collections, which would traverse all of it."""
    gc.collect()
    gc.freeze()
    atexit.register(gc.unfreeze)  # Triton's bindings complain about frozen objects at the exit


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory):
    """A cache folder for the session, shared with the processes that tests start."""
    patch = pytest.MonkeyPatch()
    folder = tmp_path_factory.mktemp("cache")
    patch.setenv("CLEAR_MLFLOW_CACHE", str(folder))
    yield folder
    patch.undo()


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory) -> Path:
    """A folder that all workers of this pytest share."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


@pytest.fixture(scope="session")
def digits_cache(shared_folder) -> Path:
    """A cache folder that contains only the embedded dataset, written once for all workers."""
    from clear_mlflow.data.embedded import write_embedded

    folder = shared_folder / "digits"
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the other workers wait
        write_embedded("digits", folder)
    return folder


@pytest.fixture(scope="session")
def project() -> Path:
    """The checkout."""
    return Path(__file__).parent.parent
