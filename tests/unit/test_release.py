"""Releases: one address, absolute links, and one version everywhere."""

import re
import sys
from pathlib import Path

import pytest

from clear_mlflow.core.version import __version__

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import hosting  # noqa: E402
import release  # noqa: E402

URL = "https://forge.example/lab/clear_mlflow"


def test_links_of_the_readme_lead_to_the_tags_files():
    text = (ROOT / "README.md").read_text()
    done = release.make_links_absolute(text, URL, "v1.2.3")
    targets = re.findall(r"\]\(([^)\s]+)\)", done)
    assert len(targets) == len(re.findall(r"\]\(([^)\s]+)\)", text))
    for target in (target for target in targets if target.startswith(URL)):
        view, tag, path = target.removeprefix(f"{URL}/").split("/", 2)
        assert (view, tag) == ("raw" if path.endswith((".png", ".svg")) else "blob", "v1.2.3")
        assert (ROOT / path.split("#")[0]).is_file()
    assert all(re.match("https?://|#", target) for target in targets)


def write_hosted_project(url):
    text = (ROOT / "pyproject.toml").read_text()
    return re.sub(r"^(?:# )?urls\.Source = .*", f'urls.Source = "{url}"', text, flags=re.M)


def test_the_address_is_one_line():
    assert hosting.find_source_url('# urls.Source = "https://FORGE/OWNER/REPOSITORY"') is None
    readme = (ROOT / "README.md").read_text()
    for url, colab in ((URL, 0), ("https://github.com/lab/clear_mlflow", 1)):
        assert hosting.find_source_url(write_hosted_project(f"{url}/")) == url
        done = hosting.insert_source(readme, url)
        assert f"git clone {url} clear_mlflow" in done
        assert done.count(f"]({url}/actions)") == 1
        notebook = "github/lab/clear_mlflow/blob/main/examples/notebook.ipynb"
        assert done.count(f"colab.research.google.com/{notebook}") == colab
        assert hosting.insert_source(done, url) == done
        without_source = hosting.insert_source(done, None)
        assert "git clone" not in without_source
        assert url not in without_source


def test_project_urls():
    text = write_hosted_project(URL)
    done = release.insert_project_urls(text, URL, "v1.2.3")
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    before, after = tomllib.loads(text), tomllib.loads(done)
    assert before["project"].pop("urls") == {"Source": URL}
    urls = after["project"].pop("urls")
    assert before == after
    assert urls["Source"] == URL
    assert urls["Changelog"] == f"{URL}/blob/v1.2.3/CHANGELOG.md"


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("CHANGELOG.md", "## Unreleased\n"),
        ("CITATION.cff", "version: 0.0.1\n"),
        ("clear_mlflow/core/version.py", '__version__ = "0.0.1"\n'),
    ],
)
def test_releases_with_inconsistent_versions_are_rejected(tmp_path, file, text):
    files = {
        "clear_mlflow/core/version.py": '__version__ = "1.2.3"\n',
        "CHANGELOG.md": "# Changelog\n\n## 1.2.3 - 2026-11-22\n",
        "CITATION.cff": "cff-version: 1.2.0\nversion: 1.2.3\n",
    }
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    assert release.find_problem(tmp_path, "v1.2.3") is None
    (tmp_path / file).write_text(text)
    assert file in release.find_problem(tmp_path, "v1.2.3")


def test_the_citation_names_this_version():
    assert f"\nversion: {__version__}\n" in (ROOT / "CITATION.cff").read_text()
