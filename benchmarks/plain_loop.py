"""Does a plain torchvision loop say what we say? ``python benchmarks/plain_loop.py`` counts.

A dataset of photos of many shapes is generated (tests/support/textured_photos.py), ``clear-mlflow
train`` trains a ResNet-18 on it and keeps its weights and its answers, and the stored weights are
tested again by the loop that everybody writes: torchvision's loader, Resize, CenterCrop, ToTensor
and Normalize, one photo at a time. Both ought to name the same class.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import mlflow
import torch
import torchvision
from safetensors.torch import load_file
from torchvision.transforms import CenterCrop, Compose, Normalize, Resize, ToTensor

from clear_mlflow.core.predictions import EvaluationSet, RowPredictions

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "support"))


def main() -> None:
    """Generate, train, and compare."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--size", type=int, default=96, help="pixels of the network's input")
    options.add_argument("--classes", type=int, default=8)
    options.add_argument("--train", type=int, default=16, help="of each class and bucket")
    options.add_argument("--test", type=int, default=63, help="likewise")
    options.add_argument("--epochs", type=int, default=5)
    asked = options.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        compare(Path(temporary), asked)


def compare(folder: Path, asked: argparse.Namespace) -> None:
    """Two buckets; every test image of both, after the last one was trained on."""
    from textured_photos import write_textured

    photos, store = folder / "photos", f"sqlite:///{folder / 'store.db'}"
    counts = {"classes": asked.classes, "train": asked.train, "test": asked.test}
    write_textured(photos, buckets=2, **counts)
    command = [
        *(sys.executable, "-m", "clear_mlflow", "train", "--dataset", "clear10"),
        *("--data-root", str(photos), "--model", "resnet18", "--image-size", str(asked.size)),
        *("--epochs", str(asked.epochs), "--batch-size", "8", "--optimizer", "adam"),
        *("--lr", "0.001", "--schedule", "cosine", "--precision", "off", "--device", "cpu"),
        *("--log-models", "last", "--resumable", "off"),
    ]
    place = {"MLFLOW_TRACKING_URI": store, "CLEAR_MLFLOW_CACHE": str(folder / "cache")}
    subprocess.run(
        command,
        check=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), **place},
        stdout=subprocess.DEVNULL,
    )
    client = mlflow.MlflowClient(store)
    (run,) = client.search_runs(["0"])

    def stored(path: str) -> Path:
        return Path(client.download_artifacts(run.info.run_id, path, str(folder)))

    images = EvaluationSet.load(stored("predictions/evaluation_set.safetensors"))
    ours = RowPredictions.load(stored("predictions/row_002.safetensors"))
    model = torchvision.models.resnet18(num_classes=asked.classes)
    model.load_state_dict(load_file(stored("models/after_002.safetensors")))
    model.eval()
    transform = Compose(
        [
            Resize(asked.size),
            CenterCrop(asked.size),
            ToTensor(),
            Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ]
    )
    loader = torchvision.datasets.folder.pil_loader
    same = right = 0
    with torch.inference_mode():
        for n, name in enumerate(images.names):
            bucket, label = images.buckets[images.bucket[n]], int(images.label[n])
            path = photos / "test/labeled_images" / bucket / images.class_names[label]
            (logits,) = model(transform(loader(str(path / f"{name}.jpg")))[None])
            same += int(logits.argmax()) == int(ours.labels[n])
            right += int(logits.argmax()) == label
    by_us, by_loop, agreed = (
        100 * count / len(images) for count in (sum(ours.correct(images)), right, same)
    )
    print(
        f"ResNet-18 at {asked.size} pixels, {len(images):,} photos: accuracy {by_us:.1f} % by "
        f"clear_mlflow, {by_loop:.1f} % by the plain loop; the same class on {same:,} "
        f"({agreed:.2f} %)"
    )


if __name__ == "__main__":
    main()
