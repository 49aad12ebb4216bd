"""Files of results as other programs write them, made from a matrix.

Each function imitates the program's writer, which its docstring names, without its code.
"""

import io
import json
import math

import numpy as np

NAN = math.nan


def avalanche_name(experience: int, stream: str = "test", task: int | None = 0) -> str:
    """avalanche/evaluation/metric_utils.py: ``default_metric_name_template``."""
    middle = "" if task is None else f"/Task{task:03}"
    return f"Top1_Acc_Exp/eval_phase/{stream}_stream{middle}/Exp{experience:03}"


def avalanche_csv(rows, initial=None) -> str:
    """avalanche/logging/csv_logger.py: CSVLogger's eval_results.csv."""
    lines = ["eval_exp,training_exp,eval_accuracy,eval_loss,forgetting"]
    for i, row in [(None, initial)] * (initial is not None) + list(enumerate(rows)):
        lines += [f"{j},{i},{cell:.4f},2.3026,0" for j, cell in enumerate(row)]
    return "\n".join(lines) + "\n"


def avalanche_results(rows) -> str:
    """Return a list of what ``strategy.eval`` returned: a dictionary of all last metrics each."""
    tests = []
    train_metrics = {"Top1_Acc_Epoch/train_phase/train_stream/Task000": 0.99}
    for row in rows:
        # Later keys are added as experiences are met; a text's order is not a number's.
        train_metrics.update({avalanche_name(j): cell for j, cell in enumerate(row)})
        train_metrics["Top1_Acc_Stream/eval_phase/test_stream/Task000"] = 0.5
        tests.append({key: train_metrics[key] for key in sorted(train_metrics)})
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
    """utils/loggers.py: the text of the arguments, with the accuracies in percent put in.

    With eval_future, utils/training.py logs each row twice: what was trained on, then the rest.
    """
    entries = {"dataset": "seq-cifar10", "model": "derpp", "seed": 3, "lr": 0.03, **arguments}
    entries["conf_jobnum"] = 'it\'s {a: 1}, "and" [more'
    entries["nested"] = {"accuracy_1_task1": 5, "x": [(1, 2), None]}
    number = np.float64 if numpy_2 else float
    tests = [row[: i + 1] for i, row in enumerate(rows)]
    if arguments.get("eval_future"):
        halves = [(row[: i + 1], row[i + 1 :]) for i, row in enumerate(rows)]
        tests = [half for both in halves for half in both if half]
    for i, test in enumerate(tests):
        entries[f"accmean_task{i + 1}"] = number(50)
        for j, cell in enumerate(test):
            entries[f"accuracy_{j + 1}_task{i + 1}"] = number(100 * cell)
    entries["forward_transfer"] = None
    return str(entries) + "\n"


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
