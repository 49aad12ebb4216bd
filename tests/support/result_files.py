"""Files of results in the very form in which other programs write them, made from a matrix.

Each function is written after the program's own writer, which its docstring names; none of their
code is here.
"""

import argparse
import io
import json
import math
import pickle
from typing import Any

import numpy as np

NAN = math.nan


def avalanche_name(experience: int, stream: str = "test", task: int | None = 0) -> str:
    """avalanche/evaluation/metric_utils.py: ``default_metric_name_template``."""
    middle = "" if task is None else f"/Task{task:03}"
    return f"Top1_Acc_Exp/eval_phase/{stream}_stream{middle}/Exp{experience:03}"


def avalanche_text(rows, initial=None, *, within=False) -> str:
    """avalanche/logging/text_logging.py: TextLogger, with losses beside accuracies."""
    lines = []

    def test(cells):
        lines.append("-- >> Start of eval phase << --")
        for j, cell in enumerate(cells):
            lines.append(f"-- Starting eval on experience {j} (Task 0) from test stream --")
            lines.append(f"> Eval on experience {j} (Task 0) from test stream ended.")
            lines.append(f"\tLoss_Exp/eval_phase/test_stream/Task000/Exp{j:03} = 1.2345")
            lines.append(f"\t{avalanche_name(j)} = {cell:.4f}")
        lines.append("-- >> End of eval phase << --")
        lines.append("\tTop1_Acc_Stream/eval_phase/test_stream/Task000 = 0.5000")

    if initial is not None:
        test(initial)
    for i, row in enumerate(rows):
        lines.append("-- >> Start of training phase << --")
        lines.append(f"-- Starting training on experience {i} (Task 0) from train stream --")
        lines.append("Epoch 0 ended.")
        lines.append("\tTop1_Acc_Epoch/train_phase/train_stream/Task000 = 0.9999")
        if within:  # eval_every: a test of the validation set within a training
            test([0.0] * len(row))
        lines.append("-- >> End of training phase << --")
        test(row)
    return "\n".join(lines) + "\n"


def avalanche_csv(rows, initial=None) -> str:
    """avalanche/logging/csv_logger.py: CSVLogger's eval_results.csv."""
    lines = ["eval_exp,training_exp,eval_accuracy,eval_loss,forgetting"]
    for i, row in [(None, initial)] * (initial is not None) + list(enumerate(rows)):
        lines += [f"{j},{i},{cell:.4f},2.3026,0" for j, cell in enumerate(row)]
    return "\n".join(lines) + "\n"


def avalanche_results(rows) -> str:
    """A list of what ``strategy.eval`` returned: a dictionary of all last metrics each."""
    tests = []
    known = {"Top1_Acc_Epoch/train_phase/train_stream/Task000": 0.99}
    for row in rows:
        # Later keys are added as experiences are met; a text's order is not a number's.
        known.update({avalanche_name(j): cell for j, cell in enumerate(row)})
        known["Top1_Acc_Stream/eval_phase/test_stream/Task000"] = 0.5
        tests.append({key: known[key] for key in sorted(known)})
    return json.dumps(tests)


def renate_csv(rows) -> str:
    """src/renate/benchmark/experimentation.py: ``individual_metrics_summary`` through pandas."""
    width = len(rows[0])
    tasks = [f"Task {j + 1}" for j in range(width)]
    lines = [",".join(["Task ID", *["loss"] * width, *["accuracy"] * width])]
    lines.append(",".join(["", *tasks, *tasks]))
    for i, row in enumerate(rows):
        lines.append(",".join(map(str, [i + 1, *[0.5] * width, *row])))
    return "\n".join(lines) + "\n"


def renate_results(rows, initial) -> str:
    """src/renate/utils/module.py: ``evaluate_and_record_results``, saved as JSON."""
    losses = [[0.5] * len(row) for row in rows]
    return json.dumps(
        {"loss_init": [initial], "accuracy_init": [initial], "loss": losses, "accuracy": rows}
    )


def mammoth_line(rows, *, numpy_2=False, **arguments) -> str:
    """utils/loggers.py: the text of the arguments, with the accuracies in percent put in."""
    entries = {"dataset": "seq-cifar10", "model": "derpp", "seed": 3, "lr": 0.03, **arguments}
    entries["conf_jobnum"] = 'it\'s {a: 1}, "and" [more'
    entries["nested"] = {"accuracy_1_task1": 5, "x": [(1, 2), None]}
    number = np.float64 if numpy_2 else float
    for i, row in enumerate(rows):
        entries[f"accmean_task{i + 1}"] = number(50)
        for j, cell in enumerate(row):
            if not math.isnan(cell):
                entries[f"accuracy_{j + 1}_task{i + 1}"] = number(100 * cell)
    entries["forward_transfer"] = None
    return str(entries) + "\n"


def facil(rows) -> str:
    """src/loggers/disk_logger.py: a square matrix that begins as zeros, through numpy.savetxt."""
    width = len(rows[0])
    matrix = np.zeros((width, width))
    for i, row in enumerate(rows):
        matrix[i, : i + 1] = row[: i + 1]
    text = io.StringIO()
    np.savetxt(text, matrix, "%.6f", delimiter="\t")
    return text.getvalue()


def van_de_ven(rows) -> dict:
    """eval/evaluate.py: ``test_all_so_far``, where future contexts are the integer 0."""
    width = len(rows[0])
    found: dict[str, Any] = {"acc per context": {f"context {j + 1}": [] for j in range(width)}}
    found |= {"average": [], "x_iteration": [], "x_context": []}
    for i, row in enumerate(rows):
        for j, cell in enumerate(row):
            found["acc per context"][f"context {j + 1}"].append(cell if j <= i else 0)
        found["average"].append(sum(row[: i + 1]) / (i + 1))
        found["x_iteration"].append(2000 * (i + 1))
        found["x_context"].append(i + 1)
    return found


def capymoa(rows, steps=2) -> dict[str, Any]:
    """CapyMOA 0.15.1, ocl/evaluation/_evaluator.py: what ``build`` gives, in its order.

    Those that are no numbers, ``ttt`` and ``ttt_windowed_task_index``, are left out.
    """
    matrix = np.array(rows, np.float32)
    tasks = len(matrix)
    inside = np.repeat(matrix, steps, axis=0)
    seen = np.array([row[: i + 1].mean() for i, row in enumerate(matrix)])
    return {
        "anytime_accuracy_all": inside.mean(axis=1),
        "anytime_accuracy_all_avg": float(inside.mean()),
        "anytime_accuracy_seen": np.repeat(seen, steps),
        "anytime_accuracy_seen_avg": float(seen.mean()),
        "anytime_task_index": np.linspace(0, tasks, steps * tasks + 1)[1:],
        "accuracy_all": matrix.mean(axis=1),
        "accuracy_all_avg": np.mean(matrix.mean(axis=1)).astype(float),
        "accuracy_seen": seen,
        "accuracy_seen_avg": np.mean(seen).astype(float),
        "accuracy_final": float(matrix[-1].mean()),
        "task_index": np.arange(tasks) + 1,
        "forward_transfer": 0.5,
        "backward_transfer": -0.5,
        "accuracy_matrix": matrix,
        "class_cm": np.full((tasks, 2, 2), 10, np.int32),
        "anytime_accuracy_matrix": inside,
        "n_classes": 2,
        "n_tasks": tasks,
        "n_continual_evaluations": steps,
        "boundaries": np.arange(tasks + 1) * 100,
    }


def capymoa_json(rows) -> str:
    """The same as JSON, as docs/import.md says to write it."""
    return json.dumps({name: np.asarray(value).tolist() for name, value in capymoa(rows).items()})


def wild_time_arguments(**said) -> str:
    """main.py of huaxiuyao/Wild-Time, 1875f1e: ``print(args)``, its first line; some of them."""
    arguments = {
        "dataset": "huffpost",
        "regression": False,
        "prediction_type": None,
        "method": "ft",
        "random_seed": 2,
        "offline": False,
        "difficulty": False,
        "split_time": 2015,
        "eval_next_timesteps": 3,
        "eval_metric": "acc",
        "lisa": False,
        "mixup": False,
        "data_dir": "./Data",
    }
    return str(argparse.Namespace(**arguments | said)) + "\n"


def wild_time_stream(rows, ahead=3, **said) -> str:
    """methods/base_trainer.py, 1875f1e: ``evaluate_online``."""
    lines = [wild_time_arguments(eval_next_timesteps=ahead, **said).rstrip()]
    for i, row in enumerate(rows[: len(rows[0]) - ahead]):
        accs = [float(cell) for cell in row[i + 1 : i + 1 + ahead]]
        lines.append(
            f"current task is {i}, eval next {ahead} timesteps, avg acc is {np.mean(accs)}, "
            f"worst acc is {np.min(accs)}, best acc is {np.max(accs)}"
        )
        lines.append(f"current task is, all accs  {accs}")
    return "\n".join([*lines, "run time: 0.005786895751953125"]) + "\n"


def wild_time_stream_1_1(rows, ahead=3, metric="accuracy", arguments="") -> str:
    """PyPI's wildtime 1.1.3, methods/base_trainer.py: ``run_eval_stream``, without arguments."""
    text = arguments + "=" * 90 + "\nRunning Eval-Stream...\n\n"
    text += f"\n{'=' * 35} Results (Eval-Stream) {'=' * 35}\nMetric: {metric}\n\n"
    for i, row in enumerate(rows[: len(rows[0]) - ahead]):
        cells = [float(cell) for cell in row[i + 1 : i + 1 + ahead]]
        text += (
            f"Timestamp = {i}\t Average {metric}: {np.mean(cells)}\t Worst {metric}: "
            f"{np.min(cells)}\t Best {metric}: {np.max(cells)}"
            f"\t Performance over all timestamps: {cells}\n\n"
        )
    return text + "Runtime: 0.00\n\n"


def wild_time_fix(cells: dict[int, float], **said) -> str:
    """methods/base_trainer.py, 1875f1e: ``evaluate_offline``, of the times after the split."""
    lines = [wild_time_arguments(offline=True, **said).rstrip(), "ID accuracy: 0.332"]
    lines += [f"time is {time}, accuracy is {cell}" for time, cell in cells.items()]
    accs = list(cells.values())
    lines += [f"OOD avg accuracy: {np.mean(accs)}", f"OOD worst accuracy: {np.min(accs)}"]
    return "\n".join([*lines, f"all OOD accuracies {accs}", "run time: 0.0002"]) + "\n"


def wild_time_fix_1_1(cells: dict[int, float], metric="accuracy", **said) -> str:
    """PyPI's wildtime 1.1.3, methods/base_trainer.py: ``evaluate_offline_all_timestamps``."""
    text = wild_time_arguments(eval_next_timestamps=3, **said) + "=" * 90
    text += f"\nRunning Eval-Fix...\n\n\n{'=' * 35} Results (Eval-Fix) {'=' * 35}\n"
    for time, cell in cells.items():
        text += f"OOD timestamp = {time}: \t {metric} is {cell}\n"
    found = list(cells.values())
    return text + (
        f"\nAverage Metric Across All Timestamps: \t{np.mean(found)}"
        f"\nWorst Metric Across All Timestamps: \t{np.min(found)}"
        f"\nMetrics Across All Timestamps: \t{found}\n\nRuntime: 0.00\n\n"
    )


def tic_lm(rows, months, test_set="monthly", place="1b_8x/{month}") -> str:
    """evaluation/continual_ppl_eval.py of apple/ml-tic-lm, 6cd81c9: a frame's ``to_json`` of lines.

    Written by several processes, so in no order; slashes are escaped, as pandas does.
    """
    lines = []
    for trained, row in zip(months, rows, strict=True):
        for tested, loss in zip(months, row, strict=True):
            entry = {
                "loss": loss,
                "data_time": 0.0295763966,
                "sequences": 8192,
                "tokens": 16777216,
                "checkpoint_path": f"./models/{place.format(month=trained)}/checkpoints/epoch_1.pt",
                "val_data": [f"./local_data/ppl_evals/{test_set}/{tested}/gs_1_of_10/00000001.tar"],
                "model": "open_lm_1b",
                "creation_time": "2025_05_31-04_43_43",
            }
            if not math.isnan(loss):
                lines.append(json.dumps(entry, separators=(",", ":")).replace("/", "\\/"))
    return "\n".join(lines[::-1]) + "\n"


def tic_lm_downstream() -> str:
    """evaluation/continual_downstream_eval.py of apple/ml-tic-lm, 6cd81c9."""
    icl = {"wiki_diff_20150112_20141208": 5.57882833480835, "wiki_unchanged_20150112_20141208": 7.4}
    name = {"name": "eval_configs/downstream_evals/tic_wiki", "model": "open_lm_1b"}
    return json.dumps({**name, "eval_metrics": {"icl": icl}}, indent=4)


def pickled(value, protocol: int = pickle.DEFAULT_PROTOCOL) -> bytes:
    """utils.py: ``save_object``."""
    return pickle.dumps(value, protocol)


def npy(array) -> bytes:
    """numpy.save."""
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def npz(**arrays) -> bytes:
    """numpy.savez_compressed."""
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def savetxt(rows, **options) -> str:
    """numpy.savetxt."""
    text = io.StringIO()
    np.savetxt(text, np.array(rows), **options)
    return text.getvalue()
