"""``mlflow run . -P dataset=clear10``: a missing dataset is downloaded.

The hub is a server of this test with small archives in the released layout, whose checksums replace
the authors' in each process that starts.
"""

import hashlib
import json
import os
import signal

import pytest
from file_server import Hub, serving
from forked import PIPED, ForkedPython, run_forked
from released_layout import write_released, zip_folder
from stored_runs import only_run
from waiting import finish, finish_well, wait_until

from clear_mlflow.data.download import RELEASES, WORK_FOLDER

CLEAR10 = RELEASES["clear10"]
TRAIN, TEST = (archive.file for archive in CLEAR10.archives)
# CLEAR's own recipe, except for what takes hours.
SHORT = ("model=small_cnn", "image_size=32", "epochs=1")
PATCH = """
import dataclasses
from clear_mlflow.data import download
known = download.RELEASES["clear10"]
archives = tuple(
    dataclasses.replace(a, md5=md5) for a, md5 in zip(known.archives, {md5s!r}, strict=True)
)
download.RELEASES["clear10"] = dataclasses.replace(known, archives=archives)
"""


@pytest.fixture(scope="module")
def archives(tmp_path_factory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("archives")
    tree = write_released(folder / "tree", train_folder="train_image_only", size=(32, 32))
    return {archive.file: zip_folder(tree, archive.folder) for archive in CLEAR10.archives}


@pytest.fixture
def hub(archives):
    with serving(Hub(files=dict(archives), repository=f"datasets/{CLEAR10.repository}")) as hub:
        yield hub


@pytest.fixture
def start_download(project, experiment_id, hub, archives, tmp_path):
    begun = []
    patched = tmp_path / "patched"
    patched.mkdir()
    md5s = [hashlib.md5(content).hexdigest() for content in archives.values()]
    (patched / "sitecustomize.py").write_text(PATCH.format(md5s=md5s))

    parameters = [word for option in ("dataset=clear10", *SHORT) for word in ("-P", option)]
    command = ("-m", "mlflow", "run", ".", "--env-manager", "local", "--experiment-name", "test")
    variables = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(patched), str(project)]),
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(tmp_path / "home"),
        "CLEAR_MLFLOW_DATA": str(tmp_path / "data"),
    }

    def start_download(**environment: str) -> ForkedPython:
        options = {"cwd": project, "env": variables | environment, **PIPED}
        begun.append(ForkedPython(*command, *parameters, **options, start_new_session=True))
        return begun[-1]

    yield start_download
    for process in begun:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.slow
def test_killed_while_downloading_and_run_again(
    start_download, hub, store, experiment_id, archives, tmp_path
):
    hub.moods = ["stall", "good"]
    first = start_download()
    part = tmp_path / "data" / "clear10" / WORK_FOLDER / f"{TRAIN}.part"
    wait_until(lambda: part.is_file() and part.stat().st_size, first)
    os.killpg(first.pid, signal.SIGKILL)
    finish(first)

    output = finish_well(start_download())
    assert f"clear10 to {tmp_path / 'data' / 'clear10'}: " in output
    assert f"downloading {TEST}\n" in output
    assert hub.ranges == [None, f"bytes={len(archives[TRAIN]) // 2}-", None]
    run = only_run(store, experiment_id, "tags.`clear_mlflow.rows` = 'complete'")
    assert run.info.status == "FINISHED"
    assert run.data.params["data_root"] == "auto"
    assert {"clear/in_domain_accuracy", "renate/forgetting"} <= set(run.data.metrics)
    (data,) = run.inputs.dataset_inputs
    assert json.loads(data.dataset.source) == {"uri": str(tmp_path / "data" / "clear10")}

    hub.requests.clear()
    offline = {**os.environ, "CLEAR_MLFLOW_DATA": str(tmp_path / "data"), "HF_HUB_OFFLINE": "1"}
    # Its marker has the small archives' checksums, which are not the authors'.
    for word, message in (("download", "was not unpacked from"), ("check", "nothing is wrong")):
        done = run_forked("data", word, "clear10", env=offline)
        assert message in done.stdout + done.stderr
    assert hub.requests == []


@pytest.mark.slow
@pytest.mark.parametrize("cause", ["no network", "offline", "disk"])
def test_a_failed_download_is_a_one_line_error(
    start_download, hub, store, experiment_id, cause, tmp_path
):
    if cause == "disk":
        hub.sizes = {TRAIN: 10**18}
    variables = {
        "no network": {"HF_ENDPOINT": "http://127.0.0.1:9"},
        "offline": {"HF_HUB_OFFLINE": "1"},
        "disk": {},
    }
    code, output = finish(start_download(**variables[cause]))
    assert code != 0
    (line,) = (line for line in output.splitlines() if line.startswith("error: "))
    assert "Traceback" not in output.partition("error: ")[0]
    assert str(tmp_path / "data" / "clear10") in line
    if cause == "disk":
        assert "2000000000.0 GB of disk needed" in line
    else:
        assert "run 'clear-mlflow data download clear10 DIR' on another machine" in line
        assert ("HF_HUB_OFFLINE forbids it" in line) == (cause == "offline")
    assert hub.ranges == []
    assert only_run(store, experiment_id).info.status == "FAILED"  # which MLflow opened
