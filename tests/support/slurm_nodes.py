"""A job of a real Slurm whose node dies is started on another node, and its run is resumed.

Needs slurmctld, slurmd and munge, and root, as Slurm does itself. Each node has its own host name
and process ids by namespaces. ``.ci/nightly slurm``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from mlflow import MlflowClient
from ports import free_port
from stored_runs import history, read_comparable_rows, read_stored_rows, rows_folder
from waiting import wait_until

from clear_mlflow.store import names

ROOT = Path(__file__).parents[2]
NODES = ("node1", "node2")
OPTIONS = ["--features", "pixels", "--strategy", "naive", "--epochs", "20", "--device", "cpu"]
CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmctldPort={port}
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
GresTypes=gpu
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdTimeout=5
ReturnToService=2
PartitionName=all Nodes=ALL Default=YES
"""


class Cluster:
    """A context with a controller, and nodes that are a namespace each."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._stack = folder, ExitStack()
        (folder / "state").mkdir()
        host = os.uname().nodename
        lines = CONFIGURATION.format(folder=folder, port=free_port(), host=host)
        for name in NODES:
            (folder / name).mkdir()
            lines += f"NodeName={name} NodeAddr=127.0.0.1 Port={free_port()} CPUs=1 Gres=gpu:1\n"
        (folder / "slurm.conf").write_text(lines)
        (folder / "gres.conf").write_text("Name=gpu File=/dev/null\n")
        os.environ["SLURM_CONF"] = str(folder / "slurm.conf")
        self.nodes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Cluster:
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        socket = self.folder / "munge.socket"
        files = [f"--{name}-file={self.folder}/munge.{name}" for name in ("key", "pid", "seed")]
        self._start("munged", "--foreground", "--force", f"--socket={socket}", *files)
        wait_until(socket.exists)
        self._start("slurmctld", "-D")
        for name in NODES:
            spaces = ["unshare", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]
            words = ["sh", "-c", 'hostname "$0" && exec slurmd -D -N "$0"', name]
            self.nodes[name] = self._start(*spaces, *words)
        wait_until(lambda: run_slurm("sinfo", "-h", "-o", "%T").split() == ["idle"])
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _start(self, *words: str) -> subprocess.Popen[bytes]:
        log = self._stack.enter_context((self.folder / "said").open("ab"))
        process = subprocess.Popen(words, stdout=log, stderr=log)
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        return process


def run_slurm(*words: str) -> str:
    return subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False).stdout.strip()


def submit(folder: Path) -> str:
    options = ["--parsable", "--cpus-per-task=1", "--mem=0"]
    job = run_slurm("sbatch", *options, str(ROOT / "examples/slurm/train.sbatch"), *OPTIONS)
    assert job, "sbatch did not take the job"
    wait_until((folder / f"clear-{job}.run").exists)
    return job


def main() -> None:
    """Kill a node under a job. Compare its run with that of an uninterrupted job."""
    with tempfile.TemporaryDirectory(prefix="slurm") as name:
        folder = Path(name)
        os.chdir(folder)
        uri = f"sqlite:///{folder / 'mlflow.db'}"
        os.environ |= {"MLFLOW_TRACKING_URI": uri, "CLEAR_MLFLOW_CACHE": str(folder / "cache")}
        os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        client = MlflowClient(uri)
        try:
            with Cluster(folder) as cluster:
                undisturbed = submit(folder)
                wait_until(lambda: has_finished(client, folder, undisturbed))
                job = submit(folder)
                run_id = read_run_id(folder, job)
                row = rows_folder(client.get_run(run_id)) / "row_002.json"
                wait_until(row.exists)
                node = run_slurm("squeue", "-h", "-o", "%N", "-j", job)
                cluster.nodes[node].kill()
                wait_until(lambda: has_finished(client, folder, job))
        except BaseException:
            for file in (*folder.glob("clear-*.out"), folder / "said"):
                print(file.read_text(errors="replace")[-4000:])
            raise
        run, other = client.get_run(run_id), client.get_run(read_run_id(folder, undisturbed))
        assert run.data.tags[names.RESUMES_TAG] == "1"
        assert read_comparable_rows(run) == read_comparable_rows(other)
        assert history(client, run_id) == history(client, other.info.run_id)
        count = len(read_stored_rows(run))
        print(f"a job whose node died was resumed on the other: {count} rows, all equal")


def read_run_id(folder: Path, job: str) -> str:
    return (folder / f"clear-{job}.run").read_text().strip()


def has_finished(client: MlflowClient, folder: Path, job: str) -> bool:
    """Return True if a job's run is complete. Raises AssertionError if only the job ended."""
    is_done = client.get_run(read_run_id(folder, job)).info.status == "FINISHED"
    assert is_done or run_slurm("squeue", "-h", "-j", job), f"job {job} is over, and its run is not"
    return is_done


if __name__ == "__main__":
    if missing := [name for name in ("slurmctld", "slurmd", "munged") if not shutil.which(name)]:
        sys.exit(f"error: {' and '.join(missing)} missing; apt-get install slurmctld slurmd munge")
    if os.geteuid():
        sys.exit("error: Slurm's own processes need root; start this with sudo")
    if os.environ.get("SLURM_NODES_WITHIN") is None:  # so that nothing outlives it
        os.environ["SLURM_NODES_WITHIN"] = "yes"
        spaces = ["--pid", "--fork", "--kill-child", "--mount-proc"]
        os.execvp("unshare", ["unshare", *spaces, sys.executable, *sys.argv])
    main()
