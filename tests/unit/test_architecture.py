"""Which packages may import which, and which modules load frameworks, checked by the AST."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "clear_mlflow"

# From the ground up: a room imports rooms above it in this list, and of those only the ones named.
ROOMS: dict[str, set[str]] = {
    "core": set(),
    "metrics": {"core"},
    "statistics": {"core", "metrics"},
    "report": {"core", "metrics"},
    "comparison": {"core", "metrics", "report", "statistics"},
    "importers": {"core"},
    "data": {"core"},
    "learning": {"core", "metrics", "data"},
    "process": {"core", "learning"},
    "store": {"core", "metrics"},
    "scoring": {"core", "metrics", "report", "store"},
    "journal": {"core", "store"},
    "tracking": {
        *("core", "metrics", "report", "learning", "process"),
        *("store", "scoring", "journal"),
    },
    "sweeps": {
        *("core", "report", "comparison", "learning", "store", "scoring", "journal", "tracking")
    },
    "api": {
        *("core", "metrics", "statistics", "report", "comparison", "importers", "data"),
        *("learning", "process", "store", "scoring", "journal", "tracking", "sweeps"),
    },
    "adapters": {"core", "metrics", "tracking"},
    "server": {*("core", "report", "comparison"), *("store", "scoring", "api")},
    "cli": {
        *("core", "report", "comparison", "data"),
        *("learning", "process", "store", "scoring", "tracking", "sweeps", "api"),
    },
}
# What each framework may be named by.
FRAMEWORKS = {
    "mlflow": {"store", "scoring", "journal", "tracking", "sweeps", "api", "server"},
    "torch": {"data", "learning", "process", "adapters", "cli"},
    "torchvision": {"learning"},
    "ray": {"sweeps"},
    "click": {"cli", "server"},
    "flask": {"server"},
}
# Folders that hold one module for each thing that is plugged in, and what those have in common.
PLUGINS = {"adapters", "api", "cli", "importers", "learning/strategies", "metrics"}
MOST_MODULES = 15
# Circles with a reason: a matrix shows itself, and a forked training runs the command line.
LATER = {
    "clear_mlflow.core.matrix": "clear_mlflow.report.",
    "clear_mlflow.cli.preloaded": "clear_mlflow.cli",
}
# Folders whose modules are tested in a file each, or in the file of the folder.
TESTED_TOGETHER = {
    *("adapters", "data/layouts", "data/sources", "importers", "learning/strategies", "metrics")
}
LEAST_SHARE_TESTED = 0.77  # of the modules: in a test file of their name


def modules() -> dict[str, Path]:
    paths_by_name = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        paths_by_name[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return paths_by_name


@cache
def nodes(path: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


def list_imports(path: Path, module_names: frozenset[str]) -> set[str]:
    imported_names = set()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            imported_names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            assert node.module is not None
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                imported_names.add(full if full in module_names else node.module)
    return imported_names


def list_lazy_imports(name: str, path: Path, module_names: frozenset[str]) -> set[str]:
    """Return the modules that a file may import by a name that it builds: f"{__name__}.{source}".

    These are the public modules of the folder, and modules below it that a text of the file names.
    """
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    values = {"__name__": name, "__package__": package}
    texts = {node.value for node in nodes(path) if isinstance(node, ast.Constant)}
    imported_names = set()
    for node in nodes(path):
        if (
            isinstance(node, ast.Call)
            and ast.unparse(node.func).endswith("import_module")
            and isinstance(node.args[0], ast.JoinedStr)
        ):
            parts = [ast.unparse(part).strip("'{}") for part in node.args[0].values[:-1]]
            prefix = "".join(values.get(part, part) for part in parts)
            endings = {other.removeprefix(prefix) for other in module_names if prefix in other}
            public = {ending for ending in endings if "." not in ending and ending[0] != "_"}
            imported_names |= {prefix + ending for ending in public | (endings & texts)}
    return imported_names


MODULES = modules()
KNOWN = frozenset(MODULES)
IMPORTS = {name: list_imports(path, KNOWN) for name, path in MODULES.items()}
LAZY_IMPORTS = {name: list_lazy_imports(name, path, KNOWN) for name, path in MODULES.items()}


def find_room(module: str) -> str:
    """Return ``store`` for ``clear_mlflow.store.rows``, and "" for the package itself."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] != "__main__" else ""


def test_the_packages_are_those_of_the_import_rules():
    assert {find_room(name) for name in MODULES} - {""} == set(ROOMS)


def test_the_import_rules_have_no_cycles():
    order = list(ROOMS)
    for room, uses in ROOMS.items():
        assert all(order.index(used) < order.index(room) for used in uses), room


@pytest.mark.parametrize("room", ROOMS)
def test_a_package_imports_only_allowed_packages(room):
    wrong = {
        f"{name} imports {other}"
        for name, others in IMPORTS.items()
        for other in others
        if find_room(name) == room
        and other.split(".")[0] == "clear_mlflow"
        and find_room(other) not in {room, *ROOMS[room]}
    }
    assert wrong == set()


@pytest.mark.parametrize("room", ROOMS)
def test_every_allowed_import_is_used(room):
    """So that the rules do not exceed the code."""
    imported = set().union(*(IMPORTS[name] for name in IMPORTS if find_room(name) == room))
    used = {find_room(name) for name in imported if name.startswith("clear_mlflow.")}
    assert ROOMS[room] - used == set()


def test_a_comparison_depends_on_neither_training_nor_data():
    """Runs describe their parameters, so that a comparison of old runs does not change."""
    comparing = ("clear_mlflow.comparison", "clear_mlflow.api.compare")
    imported = {other for name in IMPORTS if name.startswith(comparing) for other in IMPORTS[name]}
    assert {find_room(name) for name in imported}.isdisjoint({"learning", "data", "process"})


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_frameworks_are_imported_only_where_allowed(framework):
    packages = {name: {other.split(".")[0] for other in IMPORTS[name]} for name in IMPORTS}
    rooms = {find_room(name) for name in packages if framework in packages[name]}
    assert rooms == FRAMEWORKS[framework]


def find_circle(imports: dict[str, set[str]]) -> list[str]:
    done: set[str] = set()

    def visit(name: str, path: list[str]) -> list[str]:
        if name in path:
            return [*path[path.index(name) :], name]
        circles = (visit(other, [*path, name]) for other in imports[name] if other not in done)
        circle = next(filter(None, map(list, circles)), [])
        done.add(name)
        return circle

    return next(filter(None, (visit(name, []) for name in imports)), [])


def test_no_modules_import_each_other_in_a_circle():
    """Neither at once nor later: within a function, for type checkers, or by a name."""
    imports = {name: (IMPORTS[name] | LAZY_IMPORTS[name]) & KNOWN for name in MODULES}
    for name, prefix in LATER.items():
        imports[name] = {other for other in imports[name] if not other.startswith(prefix)}
    circle = find_circle(imports)
    assert not circle, " -> ".join(circle)


def test_circles_are_found():
    strategies = LAZY_IMPORTS["clear_mlflow.learning.strategies"]
    assert {f"clear_mlflow.learning.strategies.{name}" for name in ("gdumb", "naive")} < strategies
    assert "clear_mlflow.report.page.run_page" in LAZY_IMPORTS["clear_mlflow.core.matrix"]
    assert find_circle({"a": {"b"}, "b": {"c"}, "c": set(), "d": {"a"}}) == []
    assert sorted(find_circle({"a": {"b"}, "b": {"c"}, "c": {"b"}})[1:]) == ["b", "c"]


def test_private_names_of_mlflow_are_used_in_one_module():
    """So that a change of MLflow affects one file."""
    words = re.compile(r"\._download_file|_GENERATOR_|run_id_to_system_metrics_monitor")
    texts = {name: path.read_text(encoding="utf-8") for name, path in MODULES.items()}
    private = {name for name, text in texts.items() if words.search(text)}
    assert private == {"clear_mlflow.store.client"}


def test_runs_are_opened_and_ended_in_one_module_each():
    """A run is opened by lifecycle, and ended by the upload of its outcome.

    A copy gets the start and the end of its original, so copy_runs opens and ends it.
    """
    calls = {"start_run", "create_run", "end_run", "set_terminated"}
    callers = {
        name.removeprefix("clear_mlflow.")
        for name, path in MODULES.items()
        for node in nodes(path)
        if isinstance(node, ast.Attribute) and node.attr in calls
    }
    assert callers == {"tracking.lifecycle", "journal.uploader", "tracking.copy_runs"}


def test_packages_have_few_modules():
    for folder in {path.parent for path in MODULES.values()}:
        folder_name = folder.relative_to(PACKAGE).as_posix()
        if folder_name not in PLUGINS:
            assert len(list(folder.glob("*.py"))) <= MOST_MODULES, folder_name


def test_a_module_name_means_one_thing():
    """Except for a command and its function, and for a name in two kinds of plug-in."""
    packages_by_name: dict[str, set[str]] = {}
    for path in MODULES.values():
        if path.stem not in ("__init__", "_base"):
            packages_by_name.setdefault(path.stem, set()).add(path.relative_to(PACKAGE).parts[0])
    repeated = {stem: rooms for stem, rooms in packages_by_name.items() if len(rooms - {"cli"}) > 1}
    assert repeated == {"renate": {"metrics", "importers"}}


def test_contributing_lists_every_package():
    page = (PACKAGE.parent / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| `clear_mlflow/")]
    paths = [row.split("`")[1].removesuffix(".py") for row in rows]
    assert [path.removeprefix("clear_mlflow/") for path in paths] == list(ROOMS)


def list_test_names(folders: tuple[str, ...], stem: str) -> set[str]:
    """Return the names that a module's test file may have, without its ``test_``."""
    stem = stem.strip("_")
    prefixes = {*folders, *("_".join(folders[start:]) for start in range(len(folders)))}
    return {stem, *(f"{prefix}_{stem}" for prefix in prefixes)}


def test_modules_are_tested_in_files_of_their_names():
    tests = Path(__file__).parents[1].rglob("test_*.py")
    files = {path.stem.removeprefix("test_") for path in tests}
    have_own_file, others = 0, []
    for path in MODULES.values():
        module = path.relative_to(PACKAGE)
        folder = module.parent.as_posix()
        if folder in TESTED_TOGETHER:
            name = folder.split("/")[-1]
            is_named = any(f"{file}_".startswith(f"{name}_") for file in files)
        elif module.name != "__init__.py":
            is_named = bool(list_test_names(module.parent.parts, module.stem) & files)
        elif len(nodes(path)) > 20 and len(module.parts) > 1:
            is_named = bool(list_test_names(module.parts[:-2], module.parts[-2]) & files)
        else:  # without code
            continue
        have_own_file += is_named
        others += [] if is_named else [module.as_posix()]
    assert have_own_file >= LEAST_SHARE_TESTED * (have_own_file + len(others)), others
