"""The environment of a training process: memory allocation and threads."""

import os
import subprocess
import sys

import pytest

from clear_mlflow.core.distributed import count_usable_cores
from clear_mlflow.process.training_process import build_child_environment

FAULTS = """
import resource
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        b"x" * (64 << 20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
print(faults())
"""


def faults(environment):
    command = [sys.executable, "-c", FAULTS]
    return int(subprocess.check_output(command, env=environment, text=True))


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the variables are glibc's")
def test_memory_that_is_freed_is_reused():
    assert faults(build_child_environment(os.environ)) < faults(dict(os.environ)) / 10


@pytest.mark.parametrize("name", ["OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "MALLOC_MMAP_MAX_"])
def test_a_users_settings_are_kept(name):
    environment = build_child_environment({name: "7"})
    assert environment[name] == "7"
    if name.startswith("MALLOC"):
        assert environment["GOMP_SPINCOUNT"] == "3000"
    else:
        assert len({"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & set(environment)) == 1


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="cgroups are Linux's")
@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        ("0::/", {"cpu.max": "150000 100000"}, 2),
        ("0::/", {"cpu.max": "max 100000"}, 64),
        ("0::/pod/one", {"pod/cpu.max": "400000 100000", "pod/one/cpu.max": "max 100000"}, 4),
        ("0::/not/mounted/here", {"cpu.max": "50000 100000"}, 1),
        ("0::/", {"cpu.max": "9900000 100000"}, 64),
        (
            "4:memory:/pod\n3:cpu,cpuacct:/pod\n0::/",
            {"cpu/pod/cpu.cfs_quota_us": "300000", "cpu/pod/cpu.cfs_period_us": "100000"},
            3,
        ),
        ("1:cpu:/", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 64),
        ("0::/", {"cpu.max": "damaged"}, 64),
        ("", {}, 64),
    ],
)
def test_cores_are_limited_by_a_containers_quota(tmp_path, monkeypatch, groups, files, expected):
    """As by docker run --cpus and Kubernetes."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    for name, content in files.items():
        (tmp_path / "root" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "root" / name).write_text(f"{content}\n")
    (tmp_path / "groups").write_text(groups)
    assert count_usable_cores(tmp_path / "groups", tmp_path / "root") == expected
    assert count_usable_cores(tmp_path / "missing", tmp_path / "root") == 64
