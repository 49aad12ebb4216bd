"""Rehearse CLEAR at its real size: ``python benchmarks/rehearsal.py ROOT`` prints a table.

Writes the archives of CLEAR-10 or CLEAR-100 as their authors lay them out, with photographs that
are crops of real ones, serves them as the hub does, and runs the commands of the tutorial on them.
Some commands are killed with all their processes and run again: the results must be identical.
The table has wall and CPU seconds, the peak memory of the largest process (complete, and without
mapped files), the most open files of a process, and the disk space below ROOT. The photographs of a
class and bucket share ``--pool`` images, but no two files are equal. CLEAR-10 needs 25 GB.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

PROJECT = Path(__file__).parents[1]
TRAIN, TEST = "train_image_only", "test"
SIZES = ((500, 375), (500, 333), (375, 500))
# Classes; training, fewest and most test photographs of each in a bucket; scale of the sides.
DATASETS = {"clear10": (11, 300, 50, 150, 1.0), "clear100": (100, 100, 50, 50, 0.2)}
STRATEGIES = "agem cumulative cwr derpp er_ace ewc from_scratch gdumb joint linear lwf naive ncm "
STRATEGIES += "replay si slda"
HEADER = "command | ended | wall, s | CPU, s | peak memory, MB | without mapped files, MB | files"
# Replaces the published MD5 in each process that starts.
PATCH = """
import dataclasses
from clear_mlflow.data.download import RELEASES
archives = zip(RELEASES[{name!r}].archives, {md5s!r}, strict=True)
archives = tuple(dataclasses.replace(archive, md5=md5) for archive, md5 in archives)
RELEASES[{name!r}] = dataclasses.replace(RELEASES[{name!r}], archives=archives)
"""
LOAD = """
from clear_mlflow.core.disk import default_cache_dir
from clear_mlflow.data import load_stream
stream = load_stream(**{arguments!r}, cache_dir=default_cache_dir())
print(stream.dataset.digest, len(stream.images), "images")
"""
RUNS = """
import mlflow
import numpy as np
import clear_mlflow
mlflow.set_experiment("runs")
draws = np.random.default_rng(0)
labels = [draws.integers(0, {classes}, {images}) for bucket in range(11)]
names = [str(label) for label in range({classes})]
for number in range(48):
    accuracy = 0.5 + 0.1 * (number // 6) / 8
    run = clear_mlflow.track(
        buckets=11, test_labels=labels, class_names=names, strategy=f"s{{number // 6}}",
        seed=number % 6,
    )
    with run:
        for row in range(1, 12):
            run.log_predictions(row, [
                np.where(draws.random(len(true)) < accuracy, true, draws.permutation(true))
                for true in labels
            ])
"""


class Photographer:
    """Makes JPEG files: crops of photographs with sizes, colours and qualities that are drawn."""

    def __init__(self, folder: Path, scale: float) -> None:
        paths = sorted(path for path in folder.rglob("*") if path.suffix in (".jpg", ".png"))
        self._sources = [Image.open(path).convert("RGB") for path in paths]
        self._scale, self._draws, self._number = scale, np.random.default_rng(0), 2 * 10**9

    def make_photo(self, label: int, bucket: int) -> bytes:
        """Return a JPEG file whose colours depend on class and bucket."""
        draws, source = self._draws, self._sources[label % len(self._sources)]
        size = [round(self._scale * side) for side in SIZES[draws.choice(3, p=[0.6, 0.2, 0.2])]]
        shape = [round(draws.uniform(0.6, 1) * side) for side in source.size]
        x, y = (int(draws.integers(n - m + 1)) for n, m in zip(source.size, shape, strict=True))
        box = (x, y, x + shape[0], y + shape[1])
        photo = source.resize(size, Image.Resampling.BICUBIC, box=box)
        tint = np.random.default_rng(label).uniform(0.5, 1, 3) * (0.8 + 0.02 * bucket)
        grain = draws.normal(0, draws.uniform(4, 12), (size[1], size[0], 1))  # as of a camera
        pixels = np.clip(np.asarray(photo) * tint + grain, 0, 255)
        photo = Image.fromarray(pixels.astype(np.uint8))
        photo = ImageOps.mirror(photo) if draws.random() < 0.5 else photo
        photo = photo.convert("L") if draws.random() < 0.01 else photo
        file = io.BytesIO()
        photo.save(file, "JPEG", quality=int(draws.integers(90, 98)))
        return file.getvalue()

    def tag(self, photo: bytes) -> tuple[str, bytes]:
        """Return a new image id, and the file with that id as a JPEG comment."""
        self._number += 1
        comment = str(self._number).encode()
        marker = b"\xff\xfe" + (len(comment) + 2).to_bytes(2, "big")
        return str(self._number), photo[:2] + marker + comment + photo[2:]


def write_archives(hub: Path, options: argparse.Namespace) -> list[str]:
    """Write both archives of a dataset, and return their MD5."""
    name = options.dataset
    num_classes, train, least, most, scale = DATASETS[name]
    train, least, most = (max(1, round(options.share * n)) for n in (train, least, most))
    class_names = ["BACKGROUND", *(f"concept_{label:02d}" for label in range(1, num_classes))]
    photographer = Photographer(options.photos, options.scale or scale)
    draws = np.random.default_rng(1)
    files = {TRAIN: hub / f"{name}-train-image-only.zip", TEST: hub / f"{name}-test.zip"}
    archives = {split: zipfile.ZipFile(file, "w") for split, file in files.items()}
    index: dict[str, dict[str, dict[str, str]]] = {TRAIN: {}, TEST: {}}
    for bucket in range(11):
        for label, class_name in enumerate(class_names):
            pool = [photographer.make_photo(label, bucket) for _ in range(options.pool)]
            for split, archive in archives.items():
                count = train if split == TRAIN else draws.integers(least, most + 1)
                folder, entries = f"labeled_images/{bucket}/{class_name}", {}
                for number in draws.integers(0, len(pool), count):
                    image_id, photo = photographer.tag(pool[number])
                    entry = {"ID": image_id, "EXT": "jpg", "IMG_DIR": folder}
                    entries[image_id] = {**entry, "IMG_PATH": f"{folder}/{image_id}.jpg"}
                    archive.writestr(f"{split}/{folder}/{image_id}.jpg", photo)
                file = f"labeled_metadata/{bucket}/{class_name}.json"
                archive.writestr(f"{split}/{file}", json.dumps(entries))
                index[split].setdefault(str(bucket), {})[class_name] = file
    for split, archive in archives.items():
        archive.writestr(f"{split}/labeled_metadata.json", json.dumps(index[split]))
        archive.writestr(f"{split}/class_names.txt", "\n".join(class_names))
        archive.close()
    return [hash_files(file) for file in files.values()]


def hash_files(*paths: Path) -> str:
    """Return the MD5 of the contents of files."""
    content = hashlib.md5()
    for path in paths:
        with path.open("rb") as file:
            while block := file.read(2**20):
                content.update(block)
    return content.hexdigest()


class HubHandler(BaseHTTPRequestHandler):
    """Serves the files of a folder at the addresses of the hub, also in parts."""

    protocol_version = "HTTP/1.1"
    folder: Path

    def log_message(self, *arguments: object) -> None:
        """Print nothing."""

    def do_HEAD(self) -> None:
        """Send the headers of a file."""
        self.do_GET(with_body=False)

    def do_GET(self, *, with_body: bool = True) -> None:
        """Send a file from the byte that is asked for, or 404."""
        path = self.folder / Path(self.path.partition("?")[0]).name
        if not path.is_file():
            return self.send_error(404)
        size, requested = path.stat().st_size, self.headers.get("Range")
        start = int(requested.removeprefix("bytes=").removesuffix("-")) if requested else 0
        self.send_response(206 if requested else 200)
        headers = {
            "ETag": f'"{size:064x}"',
            "X-Repo-Commit": "0" * 40,
            "Content-Length": size - start,
        }
        if requested:
            headers["Content-Range"] = f"bytes {start}-{size - 1}/{size}"
        for header, value in headers.items():
            self.send_header(header, str(value))
        self.end_headers()
        with suppress(OSError), path.open("rb") as file:
            file.seek(start)
            while with_body and (block := file.read(2**20)):
                self.wfile.write(block)
        return None


class Usage:
    """Samples what a process and its descendants use, from /proc."""

    def __init__(self, pid: int) -> None:
        self._ticks = {pid: 0}
        self.peak = self.anonymous = self.files = 0  # kB, kB and their number

    @property
    def cpu(self) -> float:
        """User and system seconds of all processes."""
        return sum(self._ticks.values()) / os.sysconf("SC_CLK_TCK")

    def sample(self) -> None:
        """Look at all processes."""
        processes = {
            int(p.name): _read_stat(p) for p in Path("/proc").iterdir() if p.name.isdigit()
        }
        for pid, fields in sorted(processes.items()):
            if fields and (pid in self._ticks or int(fields[1]) in self._ticks):
                self._ticks[pid] = int(fields[11]) + int(fields[12])
                with suppress(OSError, KeyError):
                    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
                    status = dict(line.split(":", 1) for line in lines)
                    self.peak = max(self.peak, int(status["VmHWM"].split()[0]))
                    self.anonymous = max(self.anonymous, int(status["RssAnon"].split()[0]))
                    num_files = len(list(Path(f"/proc/{pid}/fd").iterdir()))
                    self.files = max(self.files, num_files)

    def list_living(self) -> list[int]:
        """Return the processes that were seen and have not ended."""
        states = {pid: _read_stat(Path(f"/proc/{pid}"))[:1] for pid in self._ticks}
        return [pid for pid, state in states.items() if state not in ([], ["Z"])]


def _read_stat(process: Path) -> list[str]:
    """Return the fields of a process after its name, or none if it is gone."""
    with suppress(OSError):
        return (process / "stat").read_text().rpartition(")")[2].split()
    return []


class Rehearsal:
    """Runs commands on a dataset, and prints what each costs."""

    def __init__(self, root: Path, name: str) -> None:
        self.root, self.name, self.data = root, name, root / name
        self.command = ("--dataset", name, "--data-root", str(self.data))
        print(f"| {HEADER} | disk, GB |\n|---|---|---:|---:|---:|---:|---:|---:|", flush=True)

    def run(
        self,
        label: str,
        *command: str,
        kill: Callable[[str], object] | None = None,
        after: float = 0,
    ) -> str:
        """Run a command, print its line of the table, and return its output.

        kill: receives the output so far. *after* seconds after it returns true, all processes are
        killed.
        """
        log = self.root / "logs" / f"{time.time_ns()}.txt"
        started, is_killed = time.monotonic(), False
        with log.open("wb") as file:
            process = subprocess.Popen(command, stdout=file, stderr=file, cwd=self.root / "work")
            usage = Usage(process.pid)
            while process.poll() is None:
                time.sleep(0.1)
                usage.sample()
                if kill is not None and not is_killed and kill(log.read_text(errors="replace")):
                    time.sleep(after)
                    usage.sample()
                    is_killed = True
                    for pid in usage.list_living():
                        os.kill(pid, signal.SIGKILL)
        seconds, until = time.monotonic() - started, time.monotonic() + 20
        while (remaining := usage.list_living()) and time.monotonic() < until:
            time.sleep(0.1)
        ended = "killed" if is_killed else f"exit {process.returncode}"
        ended += f", {len(remaining)} processes remain" if remaining else ""
        du = subprocess.run(["du", "-sk", self.root], capture_output=True, check=False).stdout
        memory = f"{usage.peak / 1024:,.0f} | {usage.anonymous / 1024:,.0f} | {usage.files}"
        disk = f"{int(du.split()[0]) / 1e6:.2f}"
        times = f"{seconds:.1f} | {usage.cpu:.1f}"
        print(f"| {label} | {ended} | {times} | {memory} | {disk} |", flush=True)
        return log.read_text(errors="replace")

    def program(self, label: str, *arguments: str, **options: object) -> str:
        """Run a command of the package."""
        return self.run(label, sys.executable, "-m", "clear_mlflow", *arguments, **options)

    def count(self, pattern: str) -> int:
        """Return the number of files below the root that match."""
        return len(list(self.root.glob(pattern)))


def hash_runs(name: str) -> dict[str, str]:
    """Return the number of rows and a hash of matrix and predictions of each run, by run id."""
    import clear_mlflow

    hashes: dict[str, str] = {}
    if not Path(os.environ["MLFLOW_TRACKING_URI"].removeprefix("sqlite:///")).exists():
        return hashes
    for run in clear_mlflow.runs(name):
        folder = Path(run.entity.info.artifact_uri.removeprefix("file://"))
        predictions = hash_files(*sorted(folder.rglob("*predictions*/*")))
        hashes[run.run_id] = (
            f"{len(run.record.rows)} rows, {run.record.matrix.values.sum()}, {predictions}"
        )
    return hashes


def download(on: Rehearsal) -> None:
    """Download with a kill while it receives, and one while it unpacks."""
    work, file = f"{on.name}/.clear-mlflow-download", f"{on.name}-train-image-only.zip"
    half, part = (on.root / "hub" / file).stat().st_size / 2, on.root / work / f"{file}.part"
    command = ("data", "download", on.name, str(on.data))
    has_half = lambda _: part.exists() and part.stat().st_size > half  # noqa: E731
    unpacks = lambda _: on.count(f"{work}/*.unpacking/*/labeled_images/5")  # noqa: E731
    on.program("`data download`, killed at half of an archive", *command, kill=has_half)
    on.program("again, killed while it unpacks", *command, kill=unpacks)
    on.program("again, to the end", *command)
    print("in the folder:", sorted(path.name for path in on.data.iterdir()))


def load(on: Rehearsal) -> None:
    """Hash all files, with a kill, and load both protocols and splits."""
    for label, options, after in (
        ("hash all files, killed after 15 s", {}, 15),
        ("again, to the end", {}, None),
        ("load the test set", {}, None),
        ("load split 0", {"split": "0"}, None),
        ("load `streaming`", {"protocol": "streaming"}, None),
    ):
        code = LOAD.format(arguments={"dataset": on.name, "data_root": str(on.data), **options})
        kill = None if after is None else (lambda _: True)
        print(on.run(label, sys.executable, "-c", code, kill=kill, after=after or 0).strip()[:200])


def check(on: Rehearsal) -> None:
    """Decode all images once."""
    print(*on.program("`data check`", "data", "check", str(on.data)).splitlines()[:6], sep="\n")


def train(on: Rehearsal) -> None:
    """Train a small network to the end, and with kills: the results must be equal."""
    command = ("train", *on.command, "--model", "small_cnn", "--image-size", "32", "--epochs", "1")
    decodes = lambda _: on.count("cache/decoded-v1/*.npy") > 2  # noqa: E731
    on.program("`train` at 32 pixels, killed while it decodes", *command, kill=decodes)
    on.program("again, to the end", *command)
    complete = hash_runs(on.name)
    on.program("again, killed in bucket 3", *command, kill=lambda text: "(key 1): on" in text)
    (run_id,) = hash_runs(on.name).keys() - complete.keys()
    resume, second = ("train", "--resume", run_id), lambda text: "(key 4): on" in text
    on.program("resume, killed a second after bucket 5", *resume, kill=second, after=1)
    on.program("resume, to the end", *resume)
    print("results:", *hash_runs(on.name).values(), sep="\n")


def pixels(on: Rehearsal) -> None:
    """Train a linear head on small images, twice: the second time from the cache."""
    for label in ("`train` on pixels", "again"):
        on.program(label, "train", *on.command, "--features", "pixels", "--epochs", "1")


def heads(on: Rehearsal, features: str = "pixels") -> None:
    """Train a linear head on small images with each strategy, with a kill."""
    fixed = {"dataset": on.name, "data_root": str(on.data), "features": features, "epochs": 3}
    grid = {"fixed": fixed, "grid": {"strategy": STRATEGIES.split(), "seed": [0]}}
    (on.root / "grid.yaml").write_text(json.dumps(grid))
    sweep = ("sweep", "--experiment", f"heads on {features}", "--grid", str(on.root / "grid.yaml"))
    fourth = lambda text: "[3/16] started" in text  # noqa: E731
    on.program(f"`sweep` on {features}, killed in the fourth run", *sweep, kill=fourth, after=5)
    print(on.program("again, to the end", *sweep)[:2000])


def backbone(on: Rehearsal) -> None:
    """Extract the features of all images with ResNet-18, and train each strategy on them."""
    command = ("data", "features", str(on.data), "--dataset", on.name, "--backbone", "resnet18")
    print(on.program("`data features`, all images", *command, "--weights", "none", "--name", "all"))
    heads(on, "all")


def runs(on: Rehearsal) -> None:
    """Record 48 runs with drawn predictions; compare and export them."""
    num_classes, _, least, most, _ = DATASETS[on.name]
    code = RUNS.format(classes=num_classes, images=num_classes * (least + most) // 2)
    on.run("record 48 runs", sys.executable, "-c", code)
    on.program("`compare` of them", "compare", "runs")
    on.program("`export` of them", "export", "runs", str(on.root / "runs.tar.xz"))
    (page,) = on.root.glob("work/mlruns/*/*/artifacts/comparison.html")
    paths = (page, on.root / "runs.tar.xz", on.root / "mlflow.db", on.root / "work" / "mlruns")
    subprocess.run(["du", "-sk", *paths], check=False)


def features(on: Rehearsal) -> None:
    """Extract features of a part of the images, with a kill, and with larger networks."""

    def extract(label: str, backbone: str, name: str, num_sets: int, after: float = 0) -> None:
        command = ("data", "features", str(on.data), "--dataset", on.name, "--backbone", backbone)
        on.program(
            f"`data features`, {backbone}: {label}",
            *(*command, "--weights", "none", "--name", name),
            kill=lambda _: on.count(f"cache/features/{name}/*/*.npy") >= num_sets,
            after=after,
        )

    small, folder = "shufflenet_v2_x0_5", on.root / "cache" / "features"
    extract("killed in the second set", small, "killed", 1, after=5)
    extract("again, two sets", small, "killed", 2)
    extract("two sets without a kill", small, "complete", 2)
    for name in ("killed", "complete"):
        print("results:", hash_files(*sorted(folder.glob(f"{name}/*/00[01].npy"))))
    for backbone in ("resnet18", "resnet50"):
        extract("one set", backbone, backbone, 1)


def first(on: Rehearsal) -> None:
    """Train the authors' recipe to the first row: decode, again from the cache, more epochs."""
    for epochs in (1, 1, 4):
        row = _train_recipe(on, epochs, "to the first row", lambda text: "on itself" in text)
        print(row.splitlines()[-1])


def recipe(on: Rehearsal) -> None:
    """Train ResNet-18 at 64 pixels for one epoch to the end, with a kill in bucket 4."""
    complete = hash_runs(on.name)
    in_fourth = lambda text: "(key 2): on" in text  # noqa: E731
    _train_recipe(on, 1, "killed in bucket 4", in_fourth, after=10, image_size=64)
    (run_id,) = hash_runs(on.name).keys() - complete.keys()
    print(on.program("resume, to the end", "train", "--resume", run_id))


def _train_recipe(
    on: Rehearsal,
    epochs: int,
    label: str,
    kill: Callable[[str], object],
    after: float = 0,
    image_size: int = 224,
) -> str:
    values = (f"dataset={on.name}", f"data_root={on.data}", f"epochs={epochs}")
    values += (f"image_size={image_size}",)
    parameters = [word for value in values for word in ("-P", value)]
    command = ("mlflow", "run", str(PROJECT), "--env-manager", "local", *parameters)
    label = f"`mlflow run`, ResNet-18, {image_size} pixels, epochs={epochs}, {label}"
    return on.run(label, *command, kill=kill, after=after)


_PARTS = (download, load, check, train, pixels, heads, runs, features, first, backbone, recipe)
PARTS = {part.__name__: part for part in _PARTS}


def main() -> None:
    """Write the archives unless they exist, and run the parts."""
    import sklearn.datasets

    samples = Path(sklearn.datasets.__file__).parent / "images"
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root", type=Path)
    parser.add_argument("--dataset", choices=DATASETS, default="clear10")
    parser.add_argument("--photos", type=Path, default=samples, help="folder of photographs")
    parser.add_argument("--pool", type=int, default=20, help="images of a class and bucket")
    parser.add_argument("--share", type=float, default=1.0, help="share of the photographs")
    parser.add_argument("--scale", type=float, help="scale of their sides; clear100: 0.2")
    parser.add_argument("--part", nargs="*", choices=PARTS, default=list(PARTS))
    options = parser.parse_args()
    root = options.root.resolve()
    for folder in ("hub", "logs", "work", "patched"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    if not (root / "md5s.json").exists():
        (root / "md5s.json").write_text(json.dumps(write_archives(root / "hub", options)))
    md5s = json.loads((root / "md5s.json").read_text())
    patch = PATCH.format(name=options.dataset, md5s=md5s)
    (root / "patched" / "sitecustomize.py").write_text(patch)
    handler = type("Handler", (HubHandler,), {"folder": root / "hub"})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    os.environ |= {
        "PYTHONPATH": f"{root / 'patched'}:{PROJECT}",
        "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
        "HF_HOME": str(root / "hf"),
        "CLEAR_MLFLOW_CACHE": str(root / "cache"),
        "MLFLOW_TRACKING_URI": f"sqlite:///{root / 'mlflow.db'}",
        "MLFLOW_EXPERIMENT_NAME": options.dataset,
    }
    rehearsal = Rehearsal(root, options.dataset)
    for name in options.part:
        PARTS[name](rehearsal)
    server.shutdown()


if __name__ == "__main__":
    main()
