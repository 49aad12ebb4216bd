"""Runs as folders or one archive: read like a store, and rejected if a byte was changed."""

import hashlib
import io
import json
import lzma
import os
import re
import tarfile
import tracemalloc
import zlib
from pathlib import Path

import mlflow
import pytest
from click.testing import CliRunner
from commands import run_command
from forked import run_forked
from hypothesis import given
from hypothesis import strategies as st
from kept_predictions import kept_run
from one_line_errors import check_error
from stored_runs import change, rows_folder, stored_run

import clear_mlflow
import clear_mlflow.api.bundle as bundle_module
from clear_mlflow.cli import main
from clear_mlflow.core.errors import ConfigError, RecordError
from clear_mlflow.journal.run_folder import RunFolder
from clear_mlflow.store import names


@pytest.fixture(params=["run", "run.tar.xz"])
def bundle(store, experiment_id, tmp_path, request):
    run = kept_run(store, experiment_id)
    store.set_tag(run.info.run_id, "strategy", "replay")
    path = tmp_path / "bundles" / request.param
    result = CliRunner().invoke(
        main, ["export", run.info.run_id, str(path), "--licence", "CC-BY-4.0"]
    )
    assert result.exit_code == 0, result.output
    return path, clear_mlflow.load(run.info.run_id)


def read_files(path):
    if path.is_dir():
        return {f.relative_to(path).as_posix(): f.read_bytes() for f in path.rglob("*.*")}
    with tarfile.open(path) as archive:
        return {name: archive.extractfile(name).read() for name in archive.getnames()}


def write(path, files):
    if path.is_dir():
        for name, content in files.items():
            (path / name).write_bytes(content)
        return
    with tarfile.open(path, "w:xz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


@pytest.mark.slow
def test_bundles_are_read_like_a_store(bundle):
    path, run = bundle
    read = clear_mlflow.load(path)
    read_values, stored_values = read.to_dict(), run.to_dict()
    assert read_values.pop("links") == [f"bundle   {path}"]
    stored_values.pop("links")
    assert read_values == stored_values
    assert read.predictions.images.digest == run.predictions.images.digest
    assert json.loads(read_files(path)["run.json"])["licence"] == "CC-BY-4.0"
    result = CliRunner().invoke(main, ["show", str(path), "--json"])
    assert json.loads(result.stdout)["metrics"] == read_values["metrics"]


@pytest.mark.slow
def test_bundles_are_compared_with_runs_and_with_each_other(store, experiment_id, bundle):
    path, _ = bundle
    other = kept_run(store, experiment_id)
    clear_mlflow.export(other.info.run_id, path.parent / "other.tar.xz")
    compared = clear_mlflow.compare(path.parent, group_by=(), log=False)
    assert len(compared.comparison.runs) == 2
    mixed = clear_mlflow.compare([path, other.info.run_id], group_by=(), log=False)
    assert mixed.to_dict()["groups"] == compared.to_dict()["groups"]
    assert mixed.comparison.image_intervals
    result = CliRunner().invoke(main, ["compare", str(path.parent), "--group-by", "none", "--json"])
    assert result.exit_code == 0, result.output
    stored = store.get_run(json.loads(result.stdout)["run_id"])
    assert stored.data.tags[names.KIND_TAG] == names.KIND_COMPARE
    (refused,) = clear_mlflow.evaluate(path)
    assert (refused.action, "is a bundle" in refused.detail) == ("failed", True)


@pytest.mark.slow
def test_an_experiment_takes_precedence_over_a_folder(store, experiment_id, bundle, monkeypatch):
    """A text is an experiment if it exists, otherwise a path. A Path is never an experiment."""
    path, run = bundle
    monkeypatch.chdir(path.parent.parent)
    stored_run(store, store.create_experiment("bundles"), seed=3)
    (Path("only_bundles")).symlink_to("bundles")

    def find_compared_id(of):
        (compared_run,) = clear_mlflow.compare(of, group_by=(), log=False).comparison.runs
        return compared_run.run_id

    assert find_compared_id("bundles") == clear_mlflow.runs("bundles")[0].run_id != run.run_id
    assert find_compared_id(Path("bundles")) == find_compared_id("only_bundles") == run.run_id


@pytest.mark.parametrize("content", [{"schema": 1}, {}, {"row": 2}])
@pytest.mark.parametrize("is_named", [False, True])
def test_a_run_with_a_damaged_row_is_not_exported(
    store, experiment_id, tmp_path, content, is_named
):
    """Nobody could read its bundle."""
    stored_run(store, experiment_id, seed=1)
    damaged_id = store.create_run(experiment_id).info.run_id
    store.log_dict(damaged_id, content, "accuracy_matrix/rows/row_001.json")
    name = damaged_id if is_named else experiment_id
    message = f"run {damaged_id} cannot be read: row_001.json"
    check_error(RecordError, message, clear_mlflow.export, name, tmp_path / "x")
    assert list(tmp_path.glob("x*")) == []


def test_a_changed_byte_is_rejected(bundle):
    path, _ = bundle
    files = read_files(path)
    entries = {re.sub(r"^[0-9]{8}-|/[^/]*$", "", name) for name in files}
    assert entries == {
        *("run.json", "params.json", "tags.json", "inputs.json", "info.json"),
        *("artifacts/accuracy_matrix/rows", "artifacts/predictions"),
    }
    for name, content in files.items():
        for changed in (content[:-1] + bytes([content[-1] ^ 1]), content + b" "):
            write(path, files | {name: changed})
            check_error(RecordError, str(path), clear_mlflow.load, path)
    write(path, files)
    assert clear_mlflow.load(path).matrix.num_rows
    (row_0,) = (name for name in files if name.endswith("row_000.json"))
    for name in (row_0, row_0.replace("row_000", "row_009"), "00000099-tags.json"):
        write(path, {**files, name: b"{}"})
        with pytest.raises(RecordError):
            clear_mlflow.load(path)


@pytest.mark.parametrize("name", ["params.json", "row_002.json", "row_001.safetensors", "pipe"])
def test_a_pipe_in_a_bundle_does_not_wait(store, experiment_id, tmp_path, name):
    path = clear_mlflow.export(kept_run(store, experiment_id).info.run_id, tmp_path / "bundle")
    file = next((file for file in path.rglob("*") if file.name.endswith(name)), path / name)
    file.unlink(missing_ok=True)
    os.mkfifo(file)
    assert "is not a " in run_command("show", path, code=2)


@pytest.mark.slow
def test_an_experiment_is_one_archive(store, experiment_id, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runs = [kept_run(store, experiment_id) for _ in range(8)]
    store.create_run(experiment_id)  # contains no rows
    (name,) = (e.name for e in store.search_experiments() if e.experiment_id == experiment_id)
    result = CliRunner().invoke(main, ["export", name, "paper.tar.xz"])
    assert (result.exit_code, result.output) == (0, "written to paper.tar.xz\n")
    single = clear_mlflow.export(runs[0].info.run_id, tmp_path / "single.tar.xz")
    assert Path("paper.tar.xz").stat().st_size < 4 * single.stat().st_size
    stored, read = (
        clear_mlflow.compare(of, group_by=(), log=False) for of in (name, "paper.tar.xz")
    )
    stored_ids, read_ids = (
        [member_run.run_id for member_run in c.comparison.runs] for c in (stored, read)
    )
    assert sorted(stored_ids) == sorted(read_ids) == sorted(run.info.run_id for run in runs)
    with pytest.raises(ConfigError, match="contains 8 runs; name one, for example") as several:
        clear_mlflow.load("paper.tar.xz")
    member = re.findall(r"example (paper\.tar\.xz/\S+), or", str(several.value))[0]
    member_run = clear_mlflow.load(member)
    assert member_run.matrix.to_dict() == clear_mlflow.load(member_run.run_id).matrix.to_dict()
    assert member_run.name in CliRunner().invoke(main, ["show", member]).output
    assert sorted(run.run_id for run in clear_mlflow.runs("paper.tar.xz")) == sorted(stored_ids)
    for path, problem in (
        ("paper.tar.xz/none", "is not in its archive"),
        ("other.tar.xz/none", "is neither a bundle nor a folder that contains any"),
        ("other.tar.xz", "is neither a bundle"),
        (Path("other"), "is neither a bundle"),
    ):
        with pytest.raises((ConfigError, RecordError), match=problem):
            clear_mlflow.load(path)
    folder = clear_mlflow.export(name, tmp_path / "paper")
    of_one = clear_mlflow.load(next(folder.iterdir()))
    assert of_one.run_id in stored_ids
    for problem in (["export", "x.tar.xz"], ["export", name, "paper.zip"]):
        assert CliRunner().invoke(main, problem).exit_code == 2


def test_runs_with_any_names_are_read_from_an_archive(store, experiment_id, tmp_path):
    """Folders in an archive are named after runs, of whose names they contain only ASCII."""
    run_ids = [stored_run(store, experiment_id).info.run_id for _ in range(4)]
    for run_id, name in zip(run_ids, ("日本語", "../..", "-x", "再演 replay"), strict=True):
        store.update_run(run_id, name=name)
    archive = clear_mlflow.export(run_ids, tmp_path / "runs.tar.xz")
    assert sorted(run.run_id for run in clear_mlflow.runs(archive)) == sorted(run_ids)


@pytest.mark.fast_cases(4)
@pytest.mark.parametrize("ending", [".gz", ".tar", ".tar.gz", ".tgz", ".zip"])
def test_an_archive_of_another_format_is_rejected(store, experiment_id, tmp_path, ending):
    run = kept_run(store, experiment_id)
    target = tmp_path / f"paper{ending}"
    with pytest.raises(ConfigError, match=r"name a folder, or a file in \.tar\.xz"):
        clear_mlflow.export(run.info.run_id, target)
    assert not target.exists()


def pack_archive(path, *members):
    with tarfile.open(path, "w:xz") as archive:
        for member, content in members:
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def build_member(name, member_type, link=""):
    member = tarfile.TarInfo(name)
    member.type, member.linkname = member_type, link
    return member, b""


@pytest.mark.parametrize(
    "member",
    [
        (tarfile.TarInfo("../00000001-tags.json"), b"x"),
        (tarfile.TarInfo("/etc/00000001-tags.json"), b"x"),
        (tarfile.TarInfo("run.sh"), b"x"),
        (tarfile.TarInfo("a/b.json"), b"x"),
        (tarfile.TarInfo("../run.json"), b"x"),
        (tarfile.TarInfo(".hidden/run.json"), b"x"),
        (tarfile.TarInfo("a/a/run.json"), b"x"),
        build_member("run.json", tarfile.SYMTYPE, "/etc/passwd"),
        build_member("run.json", tarfile.LNKTYPE, "../x"),
        build_member("a", tarfile.SYMTYPE, "/tmp"),
        build_member("run.json", tarfile.FIFOTYPE),
    ],
)
def test_an_archive_writes_nowhere_else(tmp_path, member):
    with pytest.raises(RecordError, match="which is not a file of a run"):
        clear_mlflow.load(pack_archive(tmp_path / "x.tar.xz", member))


@pytest.mark.slow
def test_an_archive_bomb_is_rejected(tmp_path, monkeypatch):
    monkeypatch.setattr(bundle_module, "_MAX_BYTES", 2**24)
    path = pack_archive(tmp_path / "x.tar.xz", (tarfile.TarInfo("run.json"), bytes(2**25)))
    assert path.stat().st_size < 2**14
    with pytest.raises(RecordError, match="over 8 GiB; unpack it yourself"):
        clear_mlflow.load(path)


@pytest.mark.slow
def test_an_announced_size_takes_no_memory(tmp_path):
    name = build_member("run.json", tarfile.GNUTYPE_LONGNAME)[0], bytes(2**27)
    long_name = pack_archive(tmp_path / "name.tar.xz", name)
    content = bytearray(lzma.compress(bytes(2**10)))
    header = content[12 : 12 + 4 * content[12]]
    header[4] = 40  # a dictionary of 4 GiB
    content[12 : 16 + len(header)] = header + zlib.crc32(header).to_bytes(4, "little")
    dictionary = tmp_path / "dictionary.tar.xz"
    dictionary.write_bytes(content)
    with pytest.raises(RecordError):
        clear_mlflow.load(long_name)  # imports what it needs
    tracemalloc.start()
    for path, problem in ((long_name, "not a file of a run"), (dictionary, "emory usage limit")):
        with pytest.raises(RecordError, match=problem):
            clear_mlflow.load(path)
    assert tracemalloc.get_traced_memory()[1] < 2**25
    tracemalloc.stop()


def test_extra_bytes_in_an_archive_are_rejected(store, experiment_id, tmp_path):
    run_id = stored_run(store, experiment_id).info.run_id
    path = clear_mlflow.export(run_id, tmp_path / "run.tar.xz")
    content, files = path.read_bytes(), read_files(path)
    tar = lzma.decompress(content)
    later = [(tarfile.TarInfo(name), content) for name, content in files.items()]
    for member, _ in later:
        member.mtime = 1
    padding = tar.index(bytes(8), 512 + len(next(iter(files.values()))))
    changed = {
        "byte after the stream": content + b"x",
        "second stream": content + lzma.compress(b""),
        "cut off": content[:-1],
        "bytes after the archive": lzma.compress(tar + bytes(512)),
        "last byte": lzma.compress(tar[:-1] + b"x"),
        "padding": lzma.compress(tar[:padding] + b"x" + tar[padding + 1 :]),
        "times": pack_archive(tmp_path / "x.tar.xz", *later).read_bytes(),
        "order": pack_archive(tmp_path / "x.tar.xz", *later[::-1]).read_bytes(),
    }
    for name, other in changed.items():
        path.write_bytes(other)
        with pytest.raises(RecordError):
            pytest.fail(f"{name}: {clear_mlflow.load(path)}")
    path.write_bytes(content)
    assert clear_mlflow.load(path).run_id == run_id


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["", ".tar.xz"])
def test_of_two_copies_of_a_run_the_more_complete_is_used(store, experiment_id, tmp_path, ending):
    run = stored_run(store, experiment_id)
    run_id, last_row = run.info.run_id, rows_folder(run) / "row_004.json"
    complete = clear_mlflow.export(run_id, tmp_path / f"b_complete{ending}")
    content = last_row.read_bytes()
    last_row.unlink()
    partial = clear_mlflow.export(run_id, tmp_path / f"a_partial{ending}")
    for copies in ([complete, partial], [partial, complete], [complete, run_id], tmp_path):
        compared = clear_mlflow.compare(copies, log=False).comparison.runs
        assert [len(compared_run.record.rows) for compared_run in compared] == [5]
    assert [run.matrix.num_rows for run in clear_mlflow.runs(tmp_path)] == [4]
    last_row.write_bytes(content)
    change(last_row, correct=[71, *json.loads(content)["correct"][1:]])
    other = clear_mlflow.export(run_id, tmp_path / f"c_other{ending}")
    for copies in ([complete, other], [other, complete]):
        with pytest.raises(ConfigError, match=f"different rows of run {run_id}") as refusal:
            clear_mlflow.compare(copies, log=False)
        assert {str(complete), str(other)} <= set(re.findall(r"'([^']+)'", str(refusal.value)))
    with pytest.raises(ConfigError, match="the tracking store"):
        clear_mlflow.compare([complete, run_id], log=False)


def test_links_to_the_folder_itself_are_not_followed(store, tmp_path, monkeypatch):
    """Two links to the folder itself would never end."""
    monkeypatch.chdir(tmp_path)
    folder = Path("study", "deep")
    folder.mkdir(parents=True)
    for name in "ab":
        (folder / name).symlink_to(".")
    done = run_forked("show", "study", timeout=60)
    assert done.returncode == 2
    assert "study" in done.stderr


@pytest.mark.slow
def test_reading_creates_no_store(store, experiment_id, tmp_path, monkeypatch):
    bundle = clear_mlflow.export(stored_run(store, experiment_id).info.run_id, tmp_path / "b")
    missing = tmp_path / "nope" / "x.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{missing}")
    monkeypatch.setattr(mlflow.tracking._tracking_service.utils, "_tracking_uri", None)
    for words in (
        ["show", "0" * 32],
        ["evaluate", "--runs", "x"],
        ["compare", "0" * 32],
        ["export", "0" * 32, str(tmp_path / "to")],
        ["open"],
        ["train", "--resume", "0" * 32],
    ):
        done = CliRunner().invoke(main, words)
        assert (done.exit_code, "does not exist" in done.output) == (2, True), done.output
    run_command("show", bundle)
    assert clear_mlflow.runs(str(bundle))
    assert not missing.parent.exists()
    run_command("compare", bundle)  # it stores a run
    assert missing.exists()


@pytest.mark.parametrize("content", [b"", b"text", lzma.compress(b"text")])
def test_a_file_that_is_no_archive_cannot_be_read(tmp_path, content):
    path = tmp_path / "x.tar.xz"
    path.write_bytes(content)
    check_error(RecordError, f"the bundle '{path}' cannot be read: ", clear_mlflow.load, path)


@pytest.mark.slow
@given(content=st.binary(max_size=2000), is_packed=st.booleans())
def test_an_invalid_archive_is_a_one_line_error(tmp_path_factory, content, is_packed):
    path = tmp_path_factory.mktemp("x") / "x.tar.xz"
    path.write_bytes(lzma.compress(content) if is_packed else content)
    check_error(RecordError, "", clear_mlflow.load, path)


def sign(bundle, change):
    header = json.loads((bundle / "run.json").read_text())
    change(header)
    del header["digest"]
    text = json.dumps(header, indent=2, sort_keys=True) + "\n"
    header["digest"] = f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
    (bundle / "run.json").write_text(json.dumps(header, indent=2, sort_keys=True) + "\n")


@pytest.mark.parametrize(
    ("path", "value"), [("files", None), ("run_id", 3), ("files/00000001-params.json", 3)]
)
def test_a_forged_header_is_a_one_line_error(store, experiment_id, tmp_path, path, value):
    bundle = clear_mlflow.export(stored_run(store, experiment_id).info.run_id, tmp_path / "b")
    *outer, last = path.split("/")
    sign(bundle, lambda header: (header[outer[0]] if outer else header).update({last: value}))
    with pytest.raises(RecordError, match=rf"run.json.{outer[0] if outer else path}.*: (exp|inv)"):
        clear_mlflow.load(bundle)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("00000001-params.json", {"epochs": 3}),
        ("00000002-tags.json", []),
        ("00000003-inputs.json", [{"name": "x"}]),
        ("00000004-info.json", {"name": 3, "status": "FINISHED", "start_time": 0}),
        ("00000004-info.json", {"name": "x", "status": "x", "start_time": 0}),
    ],
)
def test_forged_json_is_a_one_line_error(store, experiment_id, tmp_path, name, content):
    bundle = clear_mlflow.export(stored_run(store, experiment_id).info.run_id, tmp_path / "b")
    (bundle / name).write_text(json.dumps(content))
    sha256 = hashlib.sha256((bundle / name).read_bytes()).hexdigest()
    sign(bundle, lambda header: header["files"].update({name: sha256}))
    check_error(RecordError, f"{name} is damaged: ", clear_mlflow.load, bundle)


def test_the_same_run_is_the_same_archive(store, experiment_id, tmp_path):
    """So that a repository sees no change. Nothing is overwritten."""
    run_id = stored_run(store, experiment_id).info.run_id
    first, other = (clear_mlflow.export(run_id, tmp_path / f"{n}.tar.xz") for n in (1, 2))
    assert first.read_bytes() == other.read_bytes()
    with pytest.raises(ConfigError, match="exists already"):
        clear_mlflow.export(run_id, first)
    with pytest.raises(RecordError, match="contains no rows"):
        clear_mlflow.export(store.create_run(experiment_id).info.run_id, tmp_path / "none")
    assert sorted(path.name for path in Path(tmp_path).glob("*.xz")) == ["1.tar.xz", "2.tar.xz"]


@pytest.mark.parametrize("name", ["run", "run.tar.xz"])
@pytest.mark.parametrize("files", [0, 3])
def test_an_interrupted_export_leaves_no_part(
    store, experiment_id, tmp_path, monkeypatch, name, files
):
    """Whatever exists under the name of a bundle is a complete one."""
    run_id = stored_run(store, experiment_id).info.run_id
    written = []

    def interrupt(_, entry, *__):
        written.append(entry)
        if len(written) > files:
            assert not (tmp_path / name).exists()
            raise KeyboardInterrupt

    if name == "run":
        monkeypatch.setattr(RunFolder, "append", interrupt)
    else:
        monkeypatch.setattr(tarfile.TarFile, "addfile", interrupt)
    with pytest.raises(KeyboardInterrupt):
        clear_mlflow.export(run_id, tmp_path / name)
    assert len(written) == files + 1
    assert not (tmp_path / name).exists()
