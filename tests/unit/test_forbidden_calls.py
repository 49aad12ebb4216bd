"""No call in the package can run code of a file, or write outside of its folder."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "clear_mlflow"
MODULES = sorted(PACKAGE.rglob("*.py"))

# Never, whatever the arguments.
FORBIDDEN = frozenset(
    {
        *("eval", "exec", "compile", "__import__", "breakpoint"),
        *("pickle.load", "pickle.loads", "pickle.Unpickler", "cPickle.loads", "dill.load"),
        *("marshal.load", "marshal.loads", "shelve.open", "joblib.load", "cloudpickle.load"),
        *("yaml.load", "yaml.unsafe_load", "yaml.full_load"),
        *("os.system", "os.popen", "os.startfile", "pty.spawn", "commands.getoutput"),
        *("subprocess.getoutput", "subprocess.getstatusoutput"),
        *("asyncio.create_subprocess_shell", "tempfile.mktemp", "runpy.run_path"),
        *("torch.hub.load", "torch.jit.load", "torch.package.PackageImporter"),
        *("np.fromfile", "np.memmap_pickle", "pd.read_pickle"),
        *("Markup", "markupsafe.Markup", "shutil.unpack_archive"),
        *("mlflow.pyfunc.load_model", "mlflow.pytorch.load_model", "mlflow.artifacts.load_dict"),
    }
)
# The name of a method, whatever it is called on.
FORBIDDEN_METHODS = frozenset({"extractall", "extract", "unpack_archive", "read_pickle"})
# By file. ``ZipFile.extract`` removes roots and ".." from names and writes no links; the archive
# has the published checksum.
PERMITTED = {"download.py": "opened.extract"}
# Only with these arguments.
REQUIRED = {
    "torch.load": {"weights_only": True},
    "np.load": {"allow_pickle": False},
    "numpy.load": {"allow_pickle": False},
    "np.save": {"allow_pickle": False},
    "Environment": {"autoescape": True},
    "jinja2.Environment": {"autoescape": True},
}
# Never with these.
REFUSED_ARGUMENTS = {"shell": True, "trust_remote_code": True, "weights_only": False}


def join_attributes(node: ast.expr) -> str:
    """Return a called name as written, ``np.load``, or an empty text for other calls."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{join_attributes(node.value) or '?'}.{node.attr}"
    return ""


def offences(source: str) -> Iterator[str]:
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                if f"{node.module}.{alias.name}" in FORBIDDEN:
                    yield f"line {node.lineno}: imports {node.module}.{alias.name}"
                if node.module in ("torch", "numpy") and alias.name == "load":
                    yield f"line {node.lineno}: imports {node.module}.load under another name"
        if not isinstance(node, ast.Call):
            continue
        name = join_attributes(node.func)
        method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        # A method of re's patterns, or of our own, is none of the built-in functions.
        if name in FORBIDDEN or method in FORBIDDEN_METHODS:
            yield f"line {node.lineno}: calls {name or method}"
        arguments = {k.arg: k.value for k in node.keywords if k.arg is not None}
        for argument, value in REQUIRED.get(name, {}).items():
            argument_value = arguments.get(argument)
            if not (isinstance(argument_value, ast.Constant) and argument_value.value is value):
                yield f"line {node.lineno}: calls {name} without {argument}={value}"
        for argument, value in REFUSED_ARGUMENTS.items():
            argument_value = arguments.get(argument)
            if isinstance(argument_value, ast.Constant) and argument_value.value is value:
                yield f"line {node.lineno}: passes {argument}={value}"


def test_no_module_calls_functions_that_execute_file_content():
    calls_by_path = {
        path: [
            call
            for call in offences(path.read_text(encoding="utf-8"))
            if not call.endswith(f"calls {PERMITTED.get(path.name)}")
        ]
        for path in MODULES
    }
    assert {path: calls for path, calls in calls_by_path.items() if calls} == {}


@pytest.mark.parametrize(
    "source",
    [
        *("import pickle\npickle.load(f)", "pickle.loads(b)", "from pickle import loads"),
        *("eval(text)", "exec(text)", "torch.load(path)"),
        *("torch.load(path, weights_only=False)", "from torch import load", "np.load(path)"),
        *("np.load(path, allow_pickle=True)", "yaml.load(text)"),
        *("subprocess.run(command, shell=True)", "os.system(command)", "tar.extractall(folder)"),
        *("zipfile.ZipFile(a).extract(name)", "Environment()"),
        *("jinja2.Environment(autoescape=False)", "Markup(name)"),
    ],
)
def test_the_check_finds_each_forbidden_call(source):
    assert list(offences(source))


def test_page_templates_escape_everything():
    folder = PACKAGE / "comparison" / "page"
    template = (folder / "page.html").read_text(encoding="utf-8")
    assert "|safe" not in template.replace(" ", "")
    assert "autoescape false" not in template
    script = (folder / "page.js").read_text(encoding="utf-8")
    for sink in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert sink not in script
