"""``clear-mlflow import``: files of other programs become runs."""

import json
import os

import numpy as np
import pytest
import result_files as files
from commands import invoke

from clear_mlflow import compare, load, track
from clear_mlflow.api.rescore import rescore_runs
from clear_mlflow.core.record import assemble
from clear_mlflow.store import names
from clear_mlflow.store import rows as rows_module
from clear_mlflow.store.rows import read_rows

SQUARE = [[0.75, 0.5, 0.25], [0.625, 0.875, 0.375], [0.5, 0.5625, 0.9375]]
HALF = np.array(SQUARE) / 2
NAN = float("nan")
PAST_ONLY = [[0.75, NAN, NAN], [0.625, 0.875, NAN], [0.5, 0.5625, 0.9375]]


def run_import(*arguments):
    return invoke("import", *arguments)


def find_runs_by_name(store, experiment="test"):
    experiment_id = store.get_experiment_by_name(experiment).experiment_id
    return {run.info.run_name: run for run in store.search_runs([experiment_id])}


def load_record(store, run):
    return assemble(read_rows(store, run))


@pytest.fixture
def matrix_file(tmp_path):
    path = tmp_path / "acc.csv"
    path.write_text(files.savetxt(SQUARE, delimiter=",", header="average accuracy: 0.6667"))
    return path


def test_a_file_becomes_a_run_with_rows_and_scores(store, matrix_file):
    done = run_import(
        matrix_file, "--dataset", "clear10", "--strategy", "replay", "--seed", 3,
        "--num-instances", "560,544,528", "--buckets", "2004,2005,2006",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    text = "3 of 3 rows; rows as training: fits average accuracy 0.6667"
    assert text in " ".join(done.output.split())
    run = find_runs_by_name(store)["acc"]
    assert run.info.status == "FINISHED"
    record = load_record(store, run)
    np.testing.assert_array_equal(record.matrix.values, SQUARE)
    assert record.matrix.num_instances.tolist() == [560, 544, 528]
    assert record.matrix.buckets == ("2004", "2005", "2006")
    assert (record.dataset.name, record.dataset.digest) == ("clear10", "unknown")
    assert (record.seed, record.dataset.protocol) == (3, "iid")
    metadata = {"dataset": "clear10", "strategy": "replay", "seed": "3", "protocol": "iid"}
    metadata["split"] = "test"
    assert run.data.params == metadata
    own_tags = {names.KIND_TAG: names.KIND_TRAIN, names.ROWS_TAG: "complete"}
    own_tags |= {names.IMPORTED_FROM_TAG: "acc.csv", names.IMPORT_FORMAT_TAG: "text"}
    assert (metadata | own_tags).items() <= run.data.tags.items()
    assert run.data.tags[names.IMPORTED_DIGEST_TAG].startswith("sha256:")
    assert run.data.metrics["clear/in_domain_accuracy"] == np.mean([0.75, 0.875, 0.9375])
    assert "renate/forward_transfer" not in run.data.metrics
    assert str(matrix_file.parent) not in json.dumps(run.to_dictionary()["data"])
    (verdict,) = rescore_runs(store, [run])
    assert (verdict.action, verdict.detail) == ("unchanged", "3 of 3 rows")
    assert not verdict.is_problem


def test_the_runs_of_a_table_are_imported(store, tmp_path):
    (tmp_path / "export.csv").write_text(
        "run,step,metric,value\n"
        + "".join(
            f"{run},{step},{name},{value}\n"
            for run, last in (("s0", 67.3), ("s1", 66.0))
            for step, name, value in ((0, "acc/1", 42.0), (1, "acc/1", 48.4), (1, "acc/2", last))
        )
    )
    columns = ["--table", "--columns", "run,step,metric,value", "--row-metric", "acc/([0-9]+)"]
    done = run_import(tmp_path, *columns, "--scale", "percent")
    assert done.exit_code == 0, done.output
    assert "mlflow.db" in done.output  # the store's own file, which is skipped
    matrix = load_record(store, find_runs_by_name(store)["export s1"]).masked_matrix
    np.testing.assert_allclose(matrix.values, [[0.42, np.nan], [0.484, 0.66]])
    done = run_import(tmp_path, "--row-metric", "acc/([0-9]+)")
    assert done.output.startswith("error: --row-metric is 'acc/([0-9]+)', which is read in tables")


def test_a_folder_of_logs_is_imported_by_an_expression_for_its_rows(store, tmp_path):
    for seed, last in enumerate(("48.4, 67.3", "47.1, 66.0")):
        (tmp_path / f"seed{seed}.log").write_text(f"start\nCIL: [42.{seed}]\nCIL: [{last}]\n")
    (tmp_path / "notes.txt").write_text("none here\n")
    done = run_import(tmp_path, "--rows", r"CIL: \[(.*)\]", "--scale", "percent")
    assert done.exit_code == 2
    assert "notes.txt' (read as log-rows): contains no line that matches rows" in done.output
    runs = find_runs_by_name(store)
    matrix = load_record(store, runs["seed1"]).masked_matrix
    np.testing.assert_allclose(matrix.values, [[0.421, np.nan], [0.471, 0.66]])
    done = run_import(tmp_path, "--rows", "CIL")
    assert done.output == (
        "error: --rows is 'CIL'; expected a regular expression with one group, such as "
        "'accuracies: \\[(.*)\\]'\n"
    )


def test_the_same_content_is_imported_once(store, matrix_file, tmp_path):
    run_import(matrix_file)
    copy = tmp_path / "copy.csv"
    copy.write_bytes(matrix_file.read_bytes())
    done = run_import(matrix_file, copy)
    assert done.exit_code == 0
    assert done.output.count("there already") == 3  # two lines and the count
    assert len(find_runs_by_name(store)) == 1
    assert run_import(copy, "--again").exit_code == 0
    assert set(find_runs_by_name(store)) == {"acc", "copy"}
    assert run_import(copy, matrix_file, "--experiment", "other").exit_code == 0
    assert set(find_runs_by_name(store, "other")) == {"copy"}


@pytest.mark.parametrize("damage", [('"1.0"', '"9.0"'), ('"row"', '"line"')])
def test_a_stored_import_that_cannot_be_read_stops_no_import(store, matrix_file, tmp_path, damage):
    """Its rows may have a newer format, or be invalid."""
    run_import(matrix_file)
    run = find_runs_by_name(store)["acc"]
    stored = rows_module.unpack_matrix_tag(run.info.run_id, run.data.tags[names.MATRIX_TAG])
    rows = {name: row.decode().replace(*damage).encode() for name, row in stored.items()}
    assert rows != stored
    tag = rows_module.pack_matrix_tag(run.info.run_id, rows)
    store.set_tag(run.info.run_id, names.MATRIX_TAG, tag)
    other = tmp_path / "other.csv"
    other.write_text(files.savetxt(HALF, delimiter=","))
    done = run_import(other, matrix_file, "--orientation", "rows")
    assert done.exit_code == 0, done.output
    assert set(find_runs_by_name(store)) == {"acc", "other"}


def test_a_folder_is_searched_and_an_invalid_file_is_named(store, folder):
    files_by_name = {
        ".git/acc.csv": "0.5\n",
        "a.json": json.dumps({"matrix": SQUARE}),
        "cut.json": json.dumps(SQUARE)[:-9],
        "percent.csv": "92\n70,90\n",
        "README.md": "What we did.\n",
        "logs.pyd": "".join(files.mammoth_line(HALF, seed=seed) for seed in (0, 1)),
        "er/results/eval_results.csv": files.avalanche_csv(PAST_ONLY),
        "er/results/training_results.csv": "training_exp,epoch,training_accuracy\n",
    }
    for name, text in files_by_name.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    done = run_import(folder)
    assert done.exit_code == 2
    errors = [line for line in done.output.splitlines() if line.startswith("error:")]
    assert errors[0].startswith("error: cut.json (read as json): is not JSON")
    assert errors[1].startswith("error: percent.csv (read as text): contains 92.0, which is not")
    assert len(errors) == 2
    assert "2 failed, 4 imported, 2 skipped" in done.output
    runs = find_runs_by_name(store)
    csv = "er/results/eval_results"
    assert set(runs) == {"a", "logs line 1", "logs line 2", csv}
    assert runs["logs line 2"].data.tags["seed"] == "1"
    assert runs["logs line 2"].data.tags["strategy"] == "derpp"
    np.testing.assert_array_equal(load_record(store, runs[csv]).matrix.values, PAST_ONLY)
    assert "clear/forward_transfer" not in runs[csv].data.metrics
    assert runs[csv].data.metrics["clear/backward_transfer"] == np.mean([0.625, 0.5, 0.5625])


NOT_FRACTIONS = "9.1,9.4,9\n2.1,3.8,5.2\n2.6,2.2,3.9\n2.9,2.5,2\n"  # the untrained model's first
SQUARE_OF_TWO = "0.5,0.25\n0.5,0.75\n"
OF_ERRORS = ["--initial", "first-row"]
OF_RUN = ["--same-data-as", "RUN", "--orientation", "rows"]


@pytest.mark.fast_cases(9)
@pytest.mark.parametrize(
    ("content", "options", "part"),
    [
        (None, ["--seed", "x"], "seed is 'x'"),
        (None, ["--num-instances", "5,x"], "--num-instances is '5,x'"),
        (None, ["--num-instances", "5,6"], "must be 3 integers"),
        (None, ["--num-instances", "0"], "of at least 1"),
        (None, ["--buckets", "a,a,b"], "occurs twice"),
        (None, ["--scale", "percent"], "; --scale percent seems wrong"),
        (None, ["--format", "mammoth"], "expected the text of a Python dictionary"),
        (None, ["nowhere.csv", "--future", "tested"], "error: nowhere.csv is not a file"),
        (SQUARE_OF_TWO, [*OF_RUN, "--dataset", "other"], "--dataset auto"),
        (SQUARE_OF_TWO, [*OF_RUN, "--buckets", "a,b"], "the file has other buckets or numbers"),
        (SQUARE_OF_TWO, [*OF_RUN, "--num-instances", "4"], "the file has other buckets or numbers"),
        ("0.5,0.25,0.5\n0.5,0.75,0.5\n", OF_RUN, "got 2 bucket keys for 3 columns"),
        (NOT_FRACTIONS, OF_ERRORS, "which is not a fraction"),
        (NOT_FRACTIONS, [*OF_ERRORS, "--lower-is-better"], "for which higher is better"),
        (NOT_FRACTIONS, [*OF_ERRORS, "--score", "r m s e"], "expected a name"),
        (NOT_FRACTIONS, [*OF_ERRORS, "--score", "challenge_score"], "rename the score"),
        (
            NOT_FRACTIONS,
            [*OF_ERRORS, "--score", "rmse", "--scale", "percent"],
            "which applies only to accuracies",
        ),
    ],
)
def test_an_invalid_option_is_a_one_line_error(
    store, experiment_id, matrix_file, content, options, part
):
    if content is not None:
        matrix_file.write_text(content)
    known_ids = []
    if "RUN" in options:
        with track(buckets=2, num_instances=8, dataset="photos", dataset_digest="ab") as run:
            run.log_counts(1, [4, 4])
        known_ids.append(run.run_id)
        options = [word.replace("RUN", run.run_id) for word in options]
    done = run_import(*([matrix_file] if options[0].startswith("--") else []), *options)
    assert done.exit_code == 2
    (line,) = [line for line in done.output.splitlines() if line.startswith("error:")]
    assert part in line
    assert [run.info.run_id for run in store.search_runs([experiment_id])] == known_ids


def test_a_failing_store_leaves_no_run_that_looks_complete(
    store, experiment_id, matrix_file, tmp_path
):
    (tmp_path / "artifacts").write_text("no folder")  # artifacts cannot be stored
    done = run_import(matrix_file)
    assert done.exit_code == 2
    assert "cannot copy run" in done.output
    (run,) = store.search_runs([experiment_id])
    assert run.info.status == "RUNNING"
    (tmp_path / "artifacts").unlink()
    assert "1 imported" in run_import(matrix_file).output
    (continued,) = store.search_runs([experiment_id])
    assert (continued.info.run_id, continued.info.status) == (run.info.run_id, "FINISHED")


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "results"
    path.mkdir()
    return path


def test_the_same_matrix_in_two_formats_is_one_run(store, folder):
    (folder / "acc.csv").write_text(files.savetxt(SQUARE, fmt="%.4f", delimiter=","))
    (folder / "acc.npy").write_bytes(files.npy(np.array(SQUARE)))
    (folder / "other.npy").write_bytes(files.npy(HALF))
    done = run_import(folder, "--json", "--orientation", "rows")
    outcomes = {file["file"]: file["outcome"] for file in json.loads(done.output)["files"]}
    assert outcomes == {"acc.csv": "imported", "acc.npy": "skipped", "other.npy": "imported"}
    assert "contains the same matrix as acc.csv" in done.output
    assert set(find_runs_by_name(store)) == {"acc", "other"}


FULL = [[2 / 3, 0.51, 0.27], [0.61, 0.87, 0.375], [0.58, 0.56, 0.93]]


def write_files_of_one_matrix(folder):
    text = files.savetxt(FULL, delimiter=",")
    contents = {
        "lf.csv": text,
        "crlf.csv": text.replace("\n", "\r\n"),
        "semicolons.csv": files.savetxt(FULL, fmt="%.17g", delimiter=";").replace(".", ","),
        "tabs.tsv": files.savetxt(FULL, delimiter="\t"),
        "four_digits.csv": files.savetxt(FULL, fmt="%.4f", delimiter=","),
        "percent.csv": files.savetxt(np.array(FULL) * 100, delimiter=","),
        "double.npy": files.npy(np.array(FULL)),
        "single.npy": files.npy(np.array(FULL, dtype=np.float32)),
        "named.npz": files.npz(matrix=np.array(FULL)),
        "list.json": json.dumps(FULL),
        "metadata.json": json.dumps({"matrix": FULL, "strategy": "er"}),
    }
    for name, content in contents.items():
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    scales = {"percent.csv": ["--scale", "percent"]}
    return {folder / name: scales.get(name, []) for name in contents}


@pytest.mark.parametrize(
    ("first", "has_tag"),
    [
        *((name, True) for name in ("lf.csv", "four_digits.csv", "single.npy", "metadata.json")),
        ("single.npy", False),
    ],
)
def test_one_matrix_is_one_run_whatever_its_file(
    store, experiment_id, folder, monkeypatch, first, has_tag
):
    options_by_file = write_files_of_one_matrix(folder)
    if not has_tag:  # a large matrix: only its hash is compared, in which rounding is a difference
        monkeypatch.setattr(rows_module, "_MAX_TAG_LENGTH", 0)
        del options_by_file[folder / "four_digits.csv"]
    orientation = ["--orientation", "rows", "--json"]
    for file in sorted(options_by_file, key=lambda file: file.name != first):
        done = run_import(file, *options_by_file[file], *orientation)
        (result,) = json.loads(done.stdout)["files"]
        (run,) = store.search_runs([experiment_id])
        assert (done.exit_code, result["run_id"]) == (0, run.info.run_id)
        assert result["outcome"] == ("imported" if file.name == first else "there already")
    assert f"contains the same matrix as {first}, imported before" in result["detail"]
    assert "again" not in run_import(folder / first, "--again", *orientation).output
    assert len(store.search_runs([experiment_id])) == 2


@pytest.mark.slow
def test_the_same_matrix_is_another_run_if_something_else_is_stated(store, experiment_id, folder):
    path = folder / "acc.json"
    path.write_text(json.dumps({"matrix": FULL, "seed": 3}))
    options = (
        [], ["--seed", 4], ["--strategy", "er"], ["--strategy", "er", "--seed", 4],
        ["--dataset", "digits"], ["--split", "validation"], ["--protocol", "streaming"],
        ["--num-instances", 3000], ["--buckets", "a,b,c"], ["--score", "f1"],
    )  # fmt: skip
    for number, words in enumerate(options, start=1):
        for outcome in ("1 imported", "1 there already"):
            assert outcome in run_import(path, "--scale", "auto", *words).output, words
        assert len(store.search_runs([experiment_id])) == number
    other = np.array(FULL)
    other[2, 0] += 1e-5
    (folder / "other.npy").write_bytes(files.npy(other))
    done = run_import(folder / "other.npy", "--orientation", "rows")
    assert "1 imported" in done.output  # two full numbers that differ are two results
    assert "1 there already" in run_import(path, "--seed", 3).output


def test_a_matrix_of_past_buckets_has_a_forgetting(store, folder):
    name = "chaudhry/forgetting_since_trained"
    (folder / "past.csv").write_text("0.75\n0.625,0.875\n0.5,0.5625,0.9375\n")
    (folder / "all.csv").write_text(files.savetxt(SQUARE, delimiter=","))
    assert run_import(folder, "--orientation", "rows").exit_code == 0
    runs = find_runs_by_name(store)
    expected = (0.25 + 0.3125) / 2
    assert runs["past"].data.metrics[name] == expected
    assert name not in runs["all"].data.metrics
    shown = invoke("show", runs["past"].info.run_id).output
    assert f"{name} {expected:.4f}".split() in [line.split()[:2] for line in shown.splitlines()]
    compared = compare([run.info.run_id for run in runs.values()], group_by=(), log=False)
    assert set(compared.leaderboard()[name]) == {expected}
    alone = compare(runs["all"].info.run_id, group_by=(), log=False)
    assert name not in alone.leaderboard()


def test_measured_rows_are_counted_and_stored(store, folder):
    matrix = [[0.75, 0.5, 0.25], [None] * 3, [0.5, 0.5625, 0.9375]]
    (folder / "gap.json").write_text(json.dumps({"matrix": matrix, "initial": [0.1] * 3}))
    assert "2 of 3 rows" in run_import(folder).output
    assert load_record(store, find_runs_by_name(store)["gap"]).rows == (0, 1, 3)


def test_rows_that_start_at_a_later_bucket_are_stored_as_these_rows(store, folder):
    """Whatever the format of the table; a contradiction is one line and no run."""
    row = ".8,.9,.5,.4"
    lines = "".join(f"| after {i} | {row.replace(',', ' | ')} |\n" for i in (2, 3, 4))
    steps = "".join(f"{step},{row}\n" for step in (2, 3, 4))
    contents = {
        "late.csv": (",t1,t2,t3,t4\n" + "".join(f"after {i},{row}\n" for i in (2, 3, 4)), []),
        "table.md": (f"| | a1 | a2 | a3 | a4 |\n|---|---|---|---|---|\n{lines}", []),
        "wide.csv": (f"step,acc/1,acc/2,acc/3,acc/4\n{steps}", ["--table", "--columns", "step"]),
    }
    for name, (content, options) in contents.items():
        (folder / name).write_text(content)
        assert "3 of 4 rows" in run_import(folder / name, *options).output
        run = find_runs_by_name(store)[name.partition(".")[0]]
        assert load_record(store, run).rows == (2, 3, 4)
    (folder / "order.csv").write_text(f",d,b,c,a\na,{row}\nb,{row}\nc,{row}\nd,{row}\n")
    done = run_import(folder / "order.csv")
    assert done.exit_code == 2
    assert "are in another order; pass --row-labels ignore" in done.output
    assert len(find_runs_by_name(store)) == len(contents)


def test_a_folder_of_many_files_is_listed_once(store, monkeypatch, folder):
    for i in range(50):
        (folder / f"note{i}.txt").write_text("We had fun.\n")
    listed = []
    for name in ("listdir", "scandir"):
        original = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *p, _of=original: listed.append(p) or _of(*p))
    assert "50 skipped" in run_import(folder).output
    assert len([path for path in listed if str(folder) in map(str, path)]) <= 2


def test_an_imported_matrix_of_the_same_data_is_compared_with_tracked_runs(store, tmp_path):
    data = {"buckets": ["2004", "2005", "2006"], "num_instances": [16, 32, 48]}
    with track(**data, dataset="photos", dataset_digest="ab", seed=0) as run:
        for row in range(3):
            run.log_counts(row + 1, [8, 16, 24])
    path = tmp_path / "acc.csv"
    path.write_text("0.75,0.5,0.25\n0.625,0.875,0.375\n0.5,0.5625,0.9375\n")
    options = ("--same-data-as", run.run_id, "--strategy", "theirs", "--orientation", "rows")
    done = run_import(path, *options)
    assert done.exit_code == 0, done.output
    imported = find_runs_by_name(store)["acc"]
    record = load_record(store, imported)
    assert record.dataset == load(run.run_id).record.dataset
    assert list(record.matrix.buckets) == data["buckets"]
    assert record.matrix.num_instances.tolist() == data["num_instances"]
    text = str(compare([run.run_id, imported.info.run_id]))
    assert "theirs" in text
    assert "Not all runs were tested in the same way" not in text


def test_the_named_experiment_is_checked(store, matrix_file, monkeypatch):
    store.delete_experiment(store.create_experiment("deleted"))
    store.create_experiment("present")
    for of_environment, chosen, exit_code in (("deleted", "present", 0), ("present", "deleted", 2)):
        monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", of_environment)
        done = run_import(matrix_file, "--experiment", chosen)
        assert done.exit_code == exit_code, done.output
        assert ("experiment 'deleted' is deleted" in done.output) == (exit_code == 2)


def test_an_import_that_another_process_does_is_not_reported_as_done(
    store, experiment_id, matrix_file, tmp_path, monkeypatch
):
    """The first one was stopped in the middle, and its process still has the run."""
    (tmp_path / "artifacts").write_text("no folder")
    run_import(matrix_file)
    (tmp_path / "artifacts").unlink()
    monkeypatch.setattr("clear_mlflow.tracking.copy_runs.get_process_token", lambda: "another")
    done = run_import(matrix_file)
    assert "another process copies it" in done.output
    assert "skipped" in done.output
    assert "1 imported" not in done.output
