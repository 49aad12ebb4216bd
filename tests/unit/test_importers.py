"""Results of other programs, read as matrices: every format in the form in which it is written."""

import json
import math
import pickle
import re

import numpy as np
import pytest
import result_files as files
from hypothesis import given, settings
from hypothesis import strategies as st

from clear_mlflow.core.errors import ClearError, ConfigError, DataError, RecordError
from clear_mlflow.core.matrix import AccuracyMatrix
from clear_mlflow.core.score import Score
from clear_mlflow.importers import FORMATS, Reading, Source, load, passed_over, read_runs, recognise
from clear_mlflow.metrics import capymoa, wild_time
from clear_mlflow.report.exports import matrix_csv, matrix_json

NAN = math.nan
SQUARE = [[0.75, 0.5, 0.25], [0.625, 0.875, 0.375], [0.5, 0.5625, 0.9375]]
PAST_ONLY = [[0.75, NAN, NAN], [0.625, 0.875, NAN], [0.5, 0.5625, 0.9375]]
NEXT_ONLY = [[NAN, 0.5, NAN], [NAN, NAN, 0.375]]
MONTHS = ("201305", "201403", "201501")
LOSSES = [[2.25, 2.5, 2.625], [2.375, 2.25, 2.5], [2.5, 2.375, 2.125]]
ZEROS = [[0.75, 0.0, 0.0], [0.625, 0.875, 0.0], [0.5, 0.5625, 0.9375]]
INITIAL = [0.125, 0.0, 0.25]
# Twelve experiences: Exp010 stands before Exp002 in no list, and behind it in every list of texts.
TWELVE = [[round(0.3 + 0.05 * i + 0.001 * j, 4) for j in range(12)] for i in range(12)]
FACIL_NAME = "acc_tag-2026-01-31-12-00.txt"
RENATE_NAME = "metrics_summary_update_2_2026-01-31.csv"


def source(name: str, content: str | bytes) -> Source:
    return Source(name, content.encode() if isinstance(content, str) else content)


def read(name: str, content: str | bytes, kind: str = "auto", **said) -> AccuracyMatrix:
    (run,) = read_runs(source(name, content), kind=kind, reading=Reading(**said))
    return run.matrix


def same(matrix: AccuracyMatrix, rows, initial=None) -> None:
    np.testing.assert_array_equal(matrix.values, rows)
    assert (matrix.initial is None) == (initial is None)
    if initial is not None:
        np.testing.assert_array_equal(matrix.initial, initial)


# Name of the format, name of the file, content, rows, initial row, what a person has to say.
SAMPLES = {
    "csv": ("text", "acc.csv", files.savetxt(SQUARE, delimiter=","), SQUARE, None, {}),
    "savetxt": ("text", "acc.txt", files.savetxt(SQUARE), SQUARE, None, {}),
    "savetxt header": ("text", "a", files.savetxt(SQUARE, header="acc"), SQUARE, None, {}),
    "tsv": ("text", "a.tsv", files.savetxt(SQUARE, delimiter="\t", fmt="%g"), SQUARE, None, {}),
    "percent": (
        "text",
        "a.csv",
        "75,50,25\n62.5,87.5,37.5\n50,56.25,93.75\n",
        SQUARE,
        None,
        {"scale": "percent"},
    ),
    "gaps": ("text", "a.csv", "0.75,,\n0.625,0.875,\n0.5,0.5625,0.9375", PAST_ONLY, None, {}),
    "ragged": ("text", "a.csv", "0.75\n0.625,0.875\n0.5,0.5625,0.9375", PAST_ONLY, None, {}),
    "numbers as header": (
        "text",
        "a.csv",
        "0,1,2\n" + files.savetxt(SQUARE, delimiter=","),
        SQUARE,
        None,
        {},
    ),
    "our csv": (
        "text",
        "matrix.csv",
        matrix_csv(AccuracyMatrix(PAST_ONLY, INITIAL)),
        PAST_ONLY,
        INITIAL,
        {},
    ),
    "first row": (
        "text",
        "a.csv",
        files.savetxt([INITIAL, *SQUARE], delimiter=","),
        SQUARE,
        INITIAL,
        {"initial": "first-row"},
    ),
    "zeros": (
        "text",
        "a.csv",
        "0.75,0,0\n0.625,0.875,0\n0.5,0.5625,0.9375",
        PAST_ONLY,
        None,
        {"future": "not-tested"},
    ),
    "npy": ("numpy", "acc.npy", files.npy(np.array(SQUARE)), SQUARE, None, {}),
    "float32": ("numpy", "acc.npy", files.npy(np.array(SQUARE, "f4")), SQUARE, None, {}),
    "npz": (
        "numpy",
        "acc.npz",
        files.npz(R=SQUARE, initial=INITIAL, loss=SQUARE),
        SQUARE,
        INITIAL,
        {},
    ),
    "json": ("json", "acc.json", json.dumps(SQUARE), SQUARE, None, {}),
    "json NaN": ("json", "acc.json", json.dumps(PAST_ONLY), PAST_ONLY, None, {}),
    "json object": (
        "json",
        "a.json",
        json.dumps({"matrix": SQUARE, "initial": INITIAL}),
        SQUARE,
        INITIAL,
        {},
    ),
    "our json": (
        "json",
        "matrix.json",
        matrix_json(AccuracyMatrix(PAST_ONLY, INITIAL)),
        PAST_ONLY,
        INITIAL,
        {},
    ),
    "avalanche text": (
        "avalanche-text",
        "metric_log.txt",
        files.avalanche_text(SQUARE, INITIAL, within=True),
        SQUARE,
        INITIAL,
        {},
    ),
    "avalanche text 12": (
        "avalanche-text",
        "log.txt",
        files.avalanche_text(TWELVE),
        TWELVE,
        None,
        {},
    ),
    "avalanche csv": (
        "avalanche-csv",
        "eval_results.csv",
        files.avalanche_csv(TWELVE, TWELVE[0]),
        TWELVE,
        TWELVE[0],
        {},
    ),
    "avalanche results": (
        "avalanche-results",
        "eval.json",
        files.avalanche_results(TWELVE),
        TWELVE,
        None,
        {},
    ),
    "avalanche first": (
        "avalanche-results",
        "e.json",
        files.avalanche_results([INITIAL, *SQUARE]),
        SQUARE,
        INITIAL,
        {"initial": "first-row"},
    ),
    "renate csv": ("renate-csv", RENATE_NAME, files.renate_csv(SQUARE), SQUARE, None, {}),
    "renate results": (
        "renate-results",
        "results.json",
        files.renate_results(SQUARE, INITIAL),
        SQUARE,
        INITIAL,
        {},
    ),
    "mammoth": ("mammoth", "logs.pyd", files.mammoth_line(PAST_ONLY), PAST_ONLY, None, {}),
    "mammoth numpy 2": (
        "mammoth",
        "logs.pyd",
        files.mammoth_line(PAST_ONLY, numpy_2=True),
        PAST_ONLY,
        None,
        {},
    ),
    "mammoth future": ("mammoth", "logs.pyd", files.mammoth_line(SQUARE), SQUARE, None, {}),
    "facil": ("facil", FACIL_NAME, files.facil(SQUARE), PAST_ONLY, None, {}),
    "van de Ven json": (
        "van-de-ven",
        "dict.json",
        json.dumps(files.van_de_ven(SQUARE)),
        PAST_ONLY,
        None,
        {},
    ),
    "van de Ven pickle": (
        "van-de-ven",
        "dict-x--n1024.pkl",
        files.pickled(files.van_de_ven(SQUARE)),
        PAST_ONLY,
        None,
        {},
    ),
    "capymoa": ("capymoa", "ocl.npz", files.npz(**files.capymoa(SQUARE)), SQUARE, None, {}),
    "capymoa json": ("capymoa", "ocl.json", files.capymoa_json(SQUARE), SQUARE, None, {}),
    "capymoa zeros": ("capymoa", "ocl.json", files.capymoa_json(ZEROS), ZEROS, None, {}),
    "tic-lm": ("tic-lm", "ppl.jsonl", files.tic_lm(LOSSES, MONTHS), LOSSES, None, {}),
    "tic-lm oracles": (
        "tic-lm",
        "ppl.jsonl",
        files.tic_lm([*LOSSES[:1], [NAN] * 3, *LOSSES[2:]], MONTHS, "tic_x", "1b_cutoff{month}"),
        [*LOSSES[:1], [NAN] * 3, *LOSSES[2:]],
        None,
        {},
    ),
    "wild time": (
        "wild-time",
        "log.txt",
        files.wild_time_stream(SQUARE, 1, dataset="mimic"),
        NEXT_ONLY,
        None,
        {},
    ),
    "wild time 1.1": (
        "wild-time",
        "log.txt",
        files.wild_time_stream_1_1(SQUARE, 1),
        NEXT_ONLY,
        None,
        {},
    ),
}


@pytest.mark.parametrize("sample", SAMPLES)
def test_a_file_is_known_and_read(sample):
    """The format is found by looking, and every cell is the one that was written."""
    kind, name, content, rows, initial, said = SAMPLES[sample]
    assert recognise(source(name, content)).name == kind
    same(read(name, content, **said), rows, initial)
    same(read(name, content, kind, **said), rows, initial)


def test_every_format_has_a_sample():
    """A format that no test reads is one nobody knows to work."""
    assert {sample[0] for sample in SAMPLES.values()} == set(FORMATS)


def test_runs_that_stopped_have_fewer_rows():
    """A matrix that was not finished keeps its width wherever the file tells it."""
    for name, content in [
        ("metric_log.txt", files.avalanche_text(SQUARE[:2])),
        ("eval_results.csv", files.avalanche_csv(SQUARE[:2])),
        ("e.json", files.avalanche_results(SQUARE[:2])),
        (RENATE_NAME, files.renate_csv(SQUARE[:2])),
    ]:
        same(read(name, content), SQUARE[:2])
    for name, content in [
        (FACIL_NAME, files.facil(SQUARE[:2])),
        ("dict.json", json.dumps(files.van_de_ven(SQUARE[:2]))),
    ]:
        same(read(name, content), PAST_ONLY[:2])


def test_the_older_form_of_van_de_vens_dictionary_is_read():
    """Lists in place of names, and another word for the context."""
    newer = files.van_de_ven(SQUARE)
    older = {
        "all_tasks": list(newer["acc per context"].values()),
        "average": newer["average"],
        "x_iteration": newer["x_iteration"],
        "x_task": newer["x_context"],
    }
    same(read("dict.pkl", files.pickled(older)), PAST_ONLY)
    same(read("dict.json", json.dumps(older)), PAST_ONLY)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_pickle_of_plain_values_is_read_without_unpickling(protocol):
    """Every protocol of Python 3 builds lists and numbers in its own way."""
    content = files.pickled(files.van_de_ven(TWELVE), protocol)
    expected = [
        [cell if j <= i else NAN for j, cell in enumerate(row)] for i, row in enumerate(TWELVE)
    ]
    same(read("dict.pkl", content), expected)


class Opens:
    """What an attacker's pickle would call."""

    def __reduce__(self):
        return (open, ("opened-by-a-pickle", "w"))


def test_a_pickle_that_calls_anything_is_refused(tmp_path, monkeypatch):
    """Nothing in it runs: the file that it would open is not there afterwards."""
    monkeypatch.chdir(tmp_path)
    dangerous = files.van_de_ven(SQUARE)
    dangerous["acc per context"]["context 2"] = Opens()
    with pytest.raises(RecordError, match=r"never executed; save it as JSON"):
        read("dict.pkl", pickle.dumps(dangerous))
    assert not list(tmp_path.iterdir())
    shared = files.van_de_ven(SQUARE)
    shared["average"] = shared["x_context"]
    with pytest.raises(RecordError, match="one list twice"):
        read("dict.pkl", pickle.dumps(shared))


def test_mammoths_lines_are_runs_of_their_own():
    """One file holds every run of a model; a line's own digest stays when others are added."""
    lines = [files.mammoth_line(PAST_ONLY, seed=seed, backbone="resnet18") for seed in (0, 1)]
    one = read_runs(source("logs.pyd", lines[0]))
    two = read_runs(source("logs.pyd", "".join(lines)))
    assert [run.label for run in two] == ["line 1", "line 2"]
    assert [run.facts["seed"] for run in two] == ["0", "1"]
    assert two[0].facts == {
        "strategy": "derpp",
        "dataset": "seq-cifar10",
        "model": "resnet18",
        "seed": "0",
    }
    assert one[0].digest == two[0].digest != two[1].digest


def test_a_mammoth_line_is_never_evaluated(tmp_path, monkeypatch):
    """A value that is code, or a thing's own text, is passed over."""
    monkeypatch.chdir(tmp_path)
    line = files.mammoth_line(PAST_ONLY).replace("0.03", "open('x', 'w'), <object at 0x7f>, -[1]")
    same(read("logs.pyd", line), PAST_ONLY)
    assert not list(tmp_path.iterdir())


def test_avalanches_unmonitored_zero_is_not_an_accuracy():
    """Its CSV logger writes a bare 0 where there was nothing to write; 0.0000 was measured."""
    text = files.avalanche_csv(SQUARE).replace("0.2500", "0").replace("0.5625", "0.0000")
    same(
        read("eval_results.csv", text),
        [[0.75, 0.5, NAN], [0.625, 0.875, 0.375], [0.5, 0.0, 0.9375]],
    )


def test_avalanches_tests_within_a_training_are_no_rows():
    """A log that ends in the third training holds two rows, whatever was tested in the third."""
    text = files.avalanche_text(SQUARE, within=True)
    cut = text[: text.rindex("-- >> End of training phase")]
    matrix = read("metric_log.txt", cut)
    np.testing.assert_array_equal(matrix.values, SQUARE[:2])


def test_avalanches_last_test_alone_is_the_last_row():
    """One dictionary tells of the model after the last bucket, and of no other."""
    last = {files.avalanche_name(j): cell for j, cell in enumerate(TWELVE[-1])}
    matrix = read("last.json", json.dumps(last))
    np.testing.assert_array_equal(matrix.values[-1], TWELVE[-1])
    assert np.isnan(matrix.values[:-1]).all()


def test_avalanches_collected_metrics_are_all_tests():
    """``get_all_metrics`` gives steps and values; each test is a row."""
    collected = {files.avalanche_name(j): [[0, 1, 2], [row[j] for row in SQUARE]] for j in range(3)}
    same(read("all.json", json.dumps(collected)), SQUARE)


def test_avalanches_test_stream_goes_before_others():
    """Train and test streams are often tested both."""
    text = files.avalanche_text(SQUARE) + files.avalanche_text(SQUARE[::-1]).replace(
        "test_stream", "train_stream"
    )
    same(read("log.txt", text), SQUARE)
    other = files.avalanche_text(SQUARE).replace("test_stream", "valid_stream")
    same(read("log.txt", other), SQUARE)
    with pytest.raises(RecordError, match="expected one called test"):
        read("log.txt", other + files.avalanche_text(SQUARE).replace("test_", "train_"))


def test_capymoas_own_scores_are_those_of_what_is_read():
    """Right answers of 40, and the scores that CapyMOA 0.15.1 (``_OCLEvaluator``) made of them."""
    right = [[39, 11, 13, 11], [36, 36, 11, 12], [30, 30, 37, 17], [29, 33, 34, 39]]
    matrix = read("ocl.json", files.capymoa_json(np.array(right) / 40))
    theirs = {
        "accuracy_all_avg": 0.6531249955296516,
        "accuracy_seen_avg": 0.8817708343267441,
        "accuracy_final": 0.84375,
        "forward_transfer": 0.3125,
        "backward_transfer": -0.14166666567325592,
    }
    for metric in capymoa.METRICS:  # theirs are of 32 bits
        assert metric.function(matrix) == pytest.approx(
            theirs[metric.name.removeprefix("capymoa/")], abs=1e-6
        )


def test_wild_times_own_averages_are_those_of_what_is_read():
    """Eval-Stream's mean and worst, of the lines that the program printed of each model."""
    text = files.wild_time_stream([row[:7] for row in TWELVE[:7]])
    (run,) = read_runs(source("wild.log", text))
    assert run.matrix.buckets == tuple(map(str, range(2012, 2019)))
    assert run.facts == {"dataset": "huffpost", "strategy": "ft", "seed": "2"}
    for what, metric in [("avg", wild_time.stream_average), ("worst", wild_time.stream_worst)]:
        printed = [float(cell) for cell in re.findall(rf"{what} acc is ([0-9.]+)", text)]
        assert len(printed) == 4
        assert metric(run.matrix) == pytest.approx(np.mean(printed), abs=1e-12)


def test_wild_times_split_is_the_row_of_what_was_trained():
    """Continual learners stop before the split's bucket; others train on it, or on all buckets."""
    cells = {2016: 0.75, 2017: 0.0, 2018: 0.5}
    for method, difficulty, trained in [("ewc", False, 3), ("erm", False, 4), ("erm", True, 7)]:
        text = files.wild_time_fix(cells, method=method, difficulty=difficulty)
        matrix = read("wild.log", text)
        assert matrix.values.shape == (trained, 7)
        assert np.isnan(matrix.values[:-1]).all()
        np.testing.assert_array_equal(matrix.values[-1], [NAN] * 4 + [0.75, 0.0, 0.5])
    every = {year: 0.125 * (year - 2011) for year in range(2012, 2019)}
    matrix = read("wild.log", files.wild_time_fix_1_1(every, method="si"))
    np.testing.assert_array_equal(matrix.values[2], list(every.values()))


@pytest.mark.parametrize(
    ("content", "score"),
    [
        (files.wild_time_stream(SQUARE, 1, dataset="drug"), Score("pcc")),
        (files.wild_time_stream_1_1(SQUARE, 1, "PCC"), Score("pcc")),
        (files.wild_time_stream_1_1(SQUARE, 1, "ROC-AUC"), Score("roc_auc")),
        (
            files.wild_time_stream(SQUARE, 1, dataset="mimic", prediction_type="mortality"),
            Score("roc_auc"),
        ),
        (
            files.wild_time_stream(SQUARE, 1, dataset="precipitation", eval_metric="f1"),
            Score("macro_f1"),
        ),
        (
            files.wild_time_stream(SQUARE, 1, dataset="precipitation", regression=True),
            Score("rmse", higher_is_better=False),
        ),
        (files.wild_time_stream(SQUARE, 1, dataset="mimic"), Score()),
        (files.tic_lm(LOSSES, MONTHS), Score("log_perplexity", higher_is_better=False)),
    ],
)
def test_what_is_measured_is_what_the_program_measures(content, score):
    """Wild-Time calls most of it an accuracy, and measures what the dataset asks for."""
    assert read("results", content).score == score


def test_one_file_of_tic_lm_holds_a_run_for_each_test_set():
    """Lines of several checkpoints and test sets, as its processes append them."""
    text = files.tic_lm(LOSSES, MONTHS) + files.tic_lm(LOSSES[::-1], MONTHS, "cc_v4_rw_v2_news")
    first, second = read_runs(source("ppl.jsonl", text))
    assert first.facts == {"dataset": "tic_cc", "model": "open_lm_1b"}
    assert [run.label for run in (first, second)] == ["tic_cc", "tic_cc_news"]
    assert first.matrix.buckets == second.matrix.buckets == MONTHS
    same(first.matrix, LOSSES)
    same(second.matrix, LOSSES[::-1])
    assert first.digest != second.digest


def test_wild_times_runs_of_one_file_are_runs():
    """Scripts write several trainings into one file; each has its own digest."""
    one, other = files.wild_time_stream(SQUARE, 1, dataset="mimic", lisa=True), SQUARE[::-1]
    text = one + files.wild_time_stream(other, 1, dataset="mimic", method="irm")
    for content in (text, files.wild_time_stream_1_1(SQUARE, 1) * 2):
        runs = read_runs(source("wild.log", content))
        assert [run.label for run in runs] == ["run 1", "run 2"]
    first, second = read_runs(source("wild.log", text))
    assert [run.facts["strategy"] for run in (first, second)] == ["ft+lisa", "irm"]
    assert first.digest != second.digest
    same(first.matrix, NEXT_ONLY)


def test_counts_and_keys_are_kept_or_said():
    """They come from the file where it tells them, else from a person; one count serves all."""
    told = {"matrix": SQUARE, "num_instances": [5, 6, 7], "buckets": ["a", "b", "c"]}
    matrix = read("a.json", json.dumps(told))
    assert (matrix.num_instances.tolist(), matrix.buckets) == ([5, 6, 7], ("a", "b", "c"))
    said = read("a.csv", files.savetxt(SQUARE), num_instances=(550,), buckets=("x", "y", "z"))
    assert (said.num_instances.tolist(), said.buckets) == ([550] * 3, ("x", "y", "z"))
    named = read("a.csv", "2004,2005\n0.5,0.25\n0.5,0.75\n".replace("2004", "b4"))
    assert named.buckets == ("b4", "2005")
    npz = files.npz(R=SQUARE, num_instances=[5, 6, 7], buckets=["a", "b", "c"])
    assert read("a.npz", npz).buckets == ("a", "b", "c")


@pytest.mark.parametrize(
    ("name", "content", "said", "part"),
    [
        ("a.csv", "92,80\n70,90", {}, "holds 92.0, which is no fraction: if they are percent, say"),
        ("a.csv", "0.5,0.4\n0.3,0.9", {"scale": "percent"}, "scale=percent seems wrong"),
        ("a.csv", "50,101\n50,50", {"scale": "percent"}, "expected accuracies in percent"),
        ("a.csv", "0.5,0\n0.3,0.9", {}, "say future=not-tested"),
        ("a.csv", "0.5,0.1\n0.3,0.9", {"future": "not-tested"}, "cannot be true"),
        ("a.csv", "0.1,0.2\n0.5,0.4\n0.3,0.9", {}, "say initial=first-row"),
        ("a.csv", "0.5,-0.1\n0.3,0.9", {}, "never below 0"),
        ("a.csv", "nan,nan\nnan,nan", {}, "no accuracy that was measured"),
        ("a.csv", "a,a\n0.3,0.9", {}, "is given twice"),
        ("a.csv", "0.5,0.5\n0.3,0.9", {"buckets": ("a",)}, "1 bucket keys"),
        ("a.csv", "0.5,0.5\n0.3,0.9", {"num_instances": (1, 2, 3)}, "2 integers"),
        ("logs.pyd", files.mammoth_line(SQUARE), {"scale": "fraction"}, "as percent; leave scale"),
        (FACIL_NAME, files.facil(SQUARE), {"future": "tested"}, "never tests the future"),
        (FACIL_NAME, files.savetxt(SQUARE, delimiter="\t"), {}, "which FACIL's matrix never has"),
        (FACIL_NAME, files.facil(SQUARE), {"initial": "first-row"}, "leave initial out"),
        (FACIL_NAME, "0.5\t0.0\n", {}, "no square matrix"),
        (FACIL_NAME.replace("acc", "forg"), files.facil(SQUARE), {}, "no accuracies"),
        (
            "training_results.csv",
            "training_exp,epoch,training_accuracy,val_accuracy,training_loss,val_loss\n0,1,0.5,0,1,0",
            {},
            "import eval_results.csv",
        ),
        (
            "eval_results.csv",
            files.avalanche_csv(SQUARE) + "0,0,0.1000,1,0\n",
            {},
            "two accuracies",
        ),
        ("eval_results.csv", files.avalanche_csv([[0, 0]]).replace("0.0000", "0"), {}, "monitor"),
        ("log.txt", "-- >> Start of eval phase << --\n", {}, "holds no Top1_Acc_Exp"),
        (
            "metrics_summary.csv",
            "Task ID,Average Accuracy,Forgetting\n1,0.5,0.0\n",
            {},
            "no matrix",
        ),
        ("a.csv", "Task ID,loss\n,Task 1\n1,0.5\n", {}, "expected 'accuracy'"),
        ("logs.pyd", "{'accmean_task1': 50.0}\n", {}, "line 1 holds no accuracy_"),
        ("logs.pyd", "__import__('os').system('x')\n", {}, "expected the text of a Python"),
        ("logs.pyd", files.mammoth_line(SQUARE)[:-5], {}, "line 1 is"),
        ("logs.pyd", "{'accuracy_1_task1': f(5)}", {}, "expected a number"),
        ("logs.pyd", "{'accuracy_1_task99999': 5.0}", {}, "at most 1000"),
        (
            "d.json",
            json.dumps(files.van_de_ven(SQUARE) | {"x_context": [3, 3, 3]}),
            {},
            "task-free",
        ),
        ("d.json", json.dumps(files.van_de_ven(SQUARE) | {"x_context": [1, 2]}), {}, "each of 2"),
        ("a.npz", files.npz(a=SQUARE, b=SQUARE), {}, "expected one matrix"),
        (
            "ocl.json",
            files.capymoa_json(SQUARE),
            {"future": "not-tested"},
            "above the diagonal other than 0",
        ),
        ("ocl.npz", files.npz(**files.capymoa(SQUARE[:2])), {}, "a row and a column for each"),
        (
            "w.log",
            files.wild_time_stream(SQUARE, 1, eval_metric="f1"),
            {},
            "prints 'acc' of 'huffpost' with eval_metric 'f1'",
        ),
        (
            "w.log",
            files.wild_time_stream_1_1(SQUARE, 1, "accuracy")
            + files.wild_time_stream_1_1(SQUARE[::-1], 1, "PCC").split("Metric: PCC")[1],
            {},
            "two tests after time step 0",
        ),
        (
            "ppl.jsonl",
            files.tic_lm(LOSSES, MONTHS) * 2,
            {},
            "line 10 tests tic_cc of",
        ),
        (
            "ppl.jsonl",
            files.tic_lm([[2.5]], ["201305"]).replace("1b_8x\\/201305", "1b_8x\\/201306"),
            {},
            "tests checkpoints of 201306, but",
        ),
        (
            "ppl.jsonl",
            files.tic_lm([[2.5]], ["201305"]).replace("1b_8x\\/201305", "1b_8x"),
            {},
            "expected a path with /YYYYMM/",
        ),
        ("ppl.jsonl", files.tic_lm(LOSSES, MONTHS), {"scale": "percent"}, "which is of accuracies"),
        ("tic_wiki.json", files.tic_lm_downstream(), {}, "does not say of which month its model"),
        ("w.log", files.wild_time_fix({2016: 0.5}, dataset="mimic"), {}, "before the split is"),
        ("w.log", files.wild_time_fix({2016: 0.5}, split_time=1970), {}, "split at '1970'"),
        ("w.log", files.wild_time_fix({2026: 0.5}), {}, "tests time 2026; expected 2012 to 2018"),
        ("w.log", files.wild_time_fix({2016: 0.5}, split_time=2012), {}, "nothing was trained"),
        ("w.log", files.wild_time_arguments(), {}, "holds no result that Eval-Fix"),
        (
            "w.log",
            files.wild_time_stream(SQUARE, 1, dataset="mimic").split("\n", 1)[1],
            {},
            "of no format that is read",
        ),
        ("a.npy", files.npy(np.array([SQUARE], dtype=object)), {}, "expected numbers"),
        ("a.npy", files.npy(np.array(SQUARE))[:-8], {}, "is cut off"),
        ("a.json", "[[0.5", {}, "is no JSON"),
        ("a.json", '{"a": [[0.5]]}', {}, "expected one of matrix"),
        ("a.json", '[[0.5, "x"]]', {}, "expected a number"),
        ("a.json", "[[1e999]]", {}, "too large to read"),
        ("a.json", "[[Infinity]]", {}, "no JSON number"),
        ("a.json", "[" * 90_000, {}, "nested too deeply"),
        ("a.json", "[" * 50 + "]" * 50, {}, "nested too deeply"),
        ("a.json", "[[" + "9" * 10_000 + "]]", {}, "too large to read"),
        ("notes.txt", "We had fun.\n", {}, "of no format that is read"),
        ("empty.csv", "", {}, "of no format that is read"),
    ],
)
def test_what_is_wrong_or_not_known_is_told_in_one_line(name, content, said, part):
    """Nothing is guessed: percent, zeros and first rows are asked for, and damage is named."""
    with pytest.raises((RecordError, ConfigError)) as caught:
        read(name, content, **said)
    message = str(caught.value)
    assert part in message
    assert name in message
    assert message.isprintable()
    assert len(message) < 500


def test_sizes_are_bounded_before_memory_is_taken(tmp_path):
    """A small file that tells of a large matrix is refused by what it tells."""
    bomb = files.npz(matrix=np.zeros((3000, 1000)))
    assert len(bomb) < 100_000
    with pytest.raises(RecordError, match="unpacks to more than"):
        read("a.npz", bomb)
    header = files.npy(np.zeros((1, 1))).replace(b"(1, 1), ", b"(999, 999), ")
    with pytest.raises(RecordError):
        read("a.npy", header)
    with pytest.raises(RecordError, match="at most 1000"):
        read("a.npy", files.npy(np.zeros((2, 2000))))
    with pytest.raises(RecordError, match="more than 100000 lists"):
        read("a.json", "[" + "[]," * 100_000 + "[]]")
    with pytest.raises(RecordError, match="more than 1000 rows"):
        read("a.csv", "0.5\n" * 100_000)
    with pytest.raises(RecordError, match="more than 4001 cells"):
        read("a.csv", "0.5," * 100_000)
    with pytest.raises(RecordError, match="larger than 4 MiB"):
        read("a.pkl", b"\x80\x04" + b"]" * (5 << 20), "van-de-ven")
    with pytest.raises(RecordError, match="expected 1 to 1000"):
        read("a.csv", ",".join(["0.5"] * 1001))
    with pytest.raises(RecordError, match="more than 8000000 cells"):
        read_runs(source("logs.pyd", "{'accuracy_1000_task1000': 5.0}\n" * 100))
    large = tmp_path / "large.csv"
    with large.open("wb") as file:
        file.truncate((64 << 20) + 1)
    with pytest.raises(DataError, match=r"'large.csv' is larger than 64 MiB"):
        load(large)
    with pytest.raises(DataError, match="is no file"):
        load(tmp_path)


def test_unknown_formats_are_told_with_those_there_are():
    """A misspelt format is no file's fault."""
    with pytest.raises(ConfigError, match=r"format is 'cvs'; expected auto or avalanche-csv"):
        read_runs(source("a.csv", "0.5"), kind="cvs")


def test_files_that_lie_beside_a_matrix_are_passed_over():
    """A folder of FACIL's or Renate's holds many files, and the last state of one run."""
    facil = ["forg_tag-2026-01-31-12-00.txt", "avg_accs_taw-2026-01-31-12-00.txt", FACIL_NAME]
    assert [bool(passed_over(name, facil)) for name in facil] == [True, True, False]
    renate = [RENATE_NAME, "metrics_summary_update_10.csv", "metrics_summary.csv"]
    assert [bool(passed_over(name, renate)) for name in renate] == [True, False, True]
    avalanche = ["training_results.csv", "eval_results.csv"]
    assert [bool(passed_over(name, avalanche)) for name in avalanche] == [True, False]
    assert passed_over("training_results.csv", ["training_results.csv"]) is None


fraction_rows = st.integers(1, 12).flatmap(
    lambda width: st.lists(
        st.lists(st.integers(1, 10_000).map(lambda n: n / 10_000), min_size=width, max_size=width),
        min_size=1,
        max_size=width,
    )
)


@settings(max_examples=30, deadline=None)
@given(fraction_rows)
def test_any_matrix_survives_every_writer(rows):
    """What a program writes of a matrix is read back to the digit that it wrote."""
    for name, content in [
        ("a.csv", files.savetxt(rows, delimiter=",")),
        ("a.npy", files.npy(np.array(rows))),
        ("a.json", json.dumps({"values": rows})),
        ("metric_log.txt", files.avalanche_text(rows)),
        ("eval_results.csv", files.avalanche_csv(rows)),
        ("e.json", files.avalanche_results(rows)),
        (RENATE_NAME, files.renate_csv(rows)),
        ("r.json", files.renate_results(rows, rows[0])),
    ]:
        np.testing.assert_array_equal(read(name, content).values, rows)
    percent = read("logs.pyd", files.mammoth_line(rows)).values
    np.testing.assert_allclose(percent[:, : len(rows[0])], rows, rtol=1e-15)


def mangled(content: bytes, data) -> bytes:
    """A file that was cut, or has other bytes in it."""
    position = data.draw(st.integers(0, len(content)))
    junk = data.draw(
        st.binary(max_size=8)
        | st.sampled_from([b"nan", b"-1", b"1e999", b"null", b"{", b"[", b"]", b",", b"\n", b"'"])
    )
    length = data.draw(st.sampled_from([0, 1, 3, 50, len(content)]))
    return content[:position] + junk + content[position + length :]


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_damaged_files_end_in_a_matrix_or_in_one_line(data):
    """Whatever arrives, under whatever format: no other error, and a message that can be shown."""
    _, name, content, _, _, said = SAMPLES[data.draw(st.sampled_from(sorted(SAMPLES)))]
    damaged = mangled(content.encode() if isinstance(content, str) else content, data)
    kind = data.draw(st.sampled_from(["auto", *FORMATS]))
    message, runs = "", ()
    try:
        runs = read_runs(source(name, damaged), kind=kind, reading=Reading(**said))
    except ClearError as error:
        message = str(error)
    assert message.isprintable()
    assert len(message) < 600
    assert all(isinstance(run.matrix, AccuracyMatrix) for run in runs)
    assert bool(runs) != bool(message)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200) | st.text(max_size=100).map(str.encode), st.text(max_size=20))
def test_any_bytes_end_in_a_matrix_or_in_one_line(content, name):
    """Also under every format that was asked for by name."""
    for kind in ["auto", *FORMATS]:
        message = ""
        try:
            read_runs(Source(name, content), kind=kind)
        except ClearError as error:
            message = str(error)
        assert message.isprintable()
