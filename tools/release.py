"""Builds what is published, from the tag of a release: a source archive and a wheel, checked.

    python tools/release.py --tag v0.2.0 --url https://FORGE/OWNER/REPOSITORY --out dist

Where the repository lies is known only here, so this is where the links of README.md, which are
relative to the repository, become absolute ones to this tag's files, and where the package gets
its project URLs: PyPI shows README.md without the files beside it. Needs git, and the packages
build and twine. Refused are a tag that is not the package's version, a version without a dated
entry in CHANGELOG.md, and one that CITATION.cff does not name.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = re.compile(r"\]\(([^)\s]+)\)")
PICTURES = (".png", ".svg")


def with_absolute_links(text: str, url: str, tag: str) -> str:
    """Markdown whose relative links lead to the files of `tag` in the repository at `url`.

    Links to other sites and to headings of the same page stay as they are; pictures lead to the
    file itself, all else to the forge's page of it.
    """

    def absolute(match: re.Match[str]) -> str:
        target = match[1]
        if re.match(r"[a-z]+:|#", target):
            return match[0]
        view = "raw" if target.endswith(PICTURES) else "blob"
        return f"]({url}/{view}/{tag}/{target})"

    return TARGET.sub(absolute, text)


def with_project_urls(pyproject: str, url: str, tag: str) -> str:
    """pyproject.toml with the table of project URLs, which must not be there yet."""
    if "[project.urls]" in pyproject:
        raise ValueError("pyproject.toml has [project.urls] already; they are written here")
    urls = {
        "Documentation": f"{url}/blob/{tag}/docs/index.md",
        "Source": url,
        "Issues": f"{url}/issues",
        "Changelog": f"{url}/blob/{tag}/CHANGELOG.md",
        "CLEAR": "https://clear-benchmark.github.io",
    }
    lines = "".join(f'{name} = "{address}"\n' for name, address in urls.items())
    return pyproject.replace("[project.scripts]", f"[project.urls]\n{lines}\n[project.scripts]", 1)


def refusal(root: Path, tag: str) -> str | None:
    """Why the checkout at `root` cannot be released as `tag`, or None where it can."""
    source = (root / "clear_mlflow/core/version.py").read_text(encoding="utf-8")
    version = source.split('__version__ = "')[1].split('"')[0]
    if tag != f"v{version}":
        return f"the tag is {tag} and the package's version {version}: they have to agree"
    changelog = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    if not re.search(rf"^## {re.escape(version)} - \d{{4}}-\d\d-\d\d$", changelog, re.MULTILINE):
        return f"CHANGELOG.md has no entry '## {version} - YYYY-MM-DD': name it and its day"
    citation = (root / "CITATION.cff").read_text(encoding="utf-8")
    if f"\nversion: {version}\n" not in citation:
        return f"CITATION.cff does not say 'version: {version}'"
    return None


def main() -> None:
    """Writes the archive and the wheel of `--tag` to `--out`."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tag", required=True, help="the release's tag, as v0.2.0")
    parser.add_argument("--url", required=True, help="the repository's address on its forge")
    parser.add_argument("--out", type=Path, required=True, help="the folder to write to")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        tree = Path(scratch)
        archive = tree / "tree.tar"
        command = ["git", "archive", "--output", str(archive), options.tag]
        subprocess.run(command, cwd=ROOT, check=True)  # noqa: S603
        with tarfile.open(archive) as files:
            files.extractall(tree, filter="data")
        archive.unlink()
        why = refusal(tree, options.tag)
        if why is not None:
            sys.exit(f"error: {why}")
        for name, change in [
            ("README.md", with_absolute_links),
            ("pyproject.toml", with_project_urls),
        ]:
            path = tree / name
            text = change(path.read_text(encoding="utf-8"), options.url.rstrip("/"), options.tag)
            path.write_text(text, encoding="utf-8")
        build = [sys.executable, "-m", "build", "--outdir", str(options.out.resolve()), str(tree)]
        subprocess.run(build, check=True)  # noqa: S603
    built = sorted(map(str, options.out.glob("clear_mlflow-*")))
    subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *built], check=True)  # noqa: S603


if __name__ == "__main__":
    main()
