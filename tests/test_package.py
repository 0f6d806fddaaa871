"""The wheel and the source distribution hold what they should, and say what they are."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import yaml

import osp
from osp.version import install

ROOT = Path(__file__).parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
BUILD = "import setuptools.build_meta as b, sys; out = sys.argv[1]; b.build_sdist(out); b.build_wheel(out)"


def module(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the source distribution, built from a copy."""
    folder = tmp_path_factory.mktemp("built")
    left_out = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in ("src", "tests", "results"):
        shutil.copytree(ROOT / name, folder / "copy" / name, ignore=left_out)
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy(path, folder / "copy")
    out = folder / "dist"
    out.mkdir()
    command = [sys.executable, "-c", BUILD, str(out)]
    subprocess.run(command, cwd=folder / "copy", check=True, capture_output=True, timeout=300)
    return out


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (found,) = built.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as file:
        (name,) = [each for each in file.namelist() if each.endswith(".dist-info/METADATA")]
        return Parser().parsestr(file.read(name).decode())


def test_the_wheel_holds_the_package_and_all_its_data_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as file:
        held = {name for name in file.namelist() if ".dist-info/" not in name}
    here = (path for path in (ROOT / "src").rglob("*") if path.is_file())
    kept = {path.relative_to(ROOT / "src").as_posix() for path in here if "__pycache__" not in path.parts}
    assert held == {name for name in kept if ".egg-info" not in name}


def test_the_source_has_what_it_is_built_from_and_no_test_that_cannot_run(built: Path) -> None:
    (found,) = built.glob("*.tar.gz")
    with tarfile.open(found) as file:
        held = {name.partition("/")[2] for name in file.getnames()}
    assert {"pyproject.toml", "setup.py", "README.md", "LICENSE", "CHANGELOG.md", "src/osp/py.typed"} <= held
    assert {name.partition("/")[0] for name in held} <= {
        *("", "src", "pyproject.toml", "setup.py", "setup.cfg", "README.md", "LICENSE", "PKG-INFO", "MANIFEST.in"),
        *("CHANGELOG.md", "CITATION.cff"),
    }


def test_the_version_stands_in_one_place_and_the_citation_follows(metadata: Message) -> None:
    assert metadata["Version"] == osp.__version__
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))["version"] == osp.__version__
    assert f"{osp.__version__}" in (ROOT / "CHANGELOG.md").read_text("utf-8").split("\n## ")[1].partition("\n")[0]


def test_users_get_no_tool_of_developers(metadata: Message) -> None:
    wanted = metadata.get_all("Requires-Dist", [])
    plain = {re.split(r"[^\w-]", each)[0].lower() for each in wanted if "extra ==" not in each}
    assert "torch" in plain
    assert not plain & {"pytest", "mypy", "ruff", "hypothesis", "onnx", "transformers", "tensorboard"}
    assert {"serve", "hf", "export", "dev"} <= set(metadata.get_all("Provides-Extra", []))


def test_an_index_shows_no_link_that_leads_nowhere(metadata: Message) -> None:
    text = str(metadata.get_payload())
    assert "make demo" in text
    assert not re.search(r"\]\((?!https?://|#)", text)
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata.get_all("Project-URL")


def test_links_become_absolute_where_the_repository_is_known() -> None:
    for_index = module("setup.py").for_index
    text = "![a picture](docs/a.png) [a page](docs/b.md#c) [elsewhere](https://example.org) [here](#d)"
    assert for_index(text, "https://example.org/us/osp/") == (
        "![a picture](https://example.org/us/osp/raw/main/docs/a.png) "
        "[a page](https://example.org/us/osp/blob/main/docs/b.md#c) [elsewhere](https://example.org) [here](#d)"
    )
    assert for_index(text, None) == " a page [elsewhere](https://example.org) [here](#d)"


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        (None, "pip install 'a-name[serve]'"),
        ({"url": "file:///a/b%20c/x.whl", "archive_info": {}}, "pip install 'a-name[serve] @ file:///a/b%20c/x.whl'"),
        ({"url": "file:///a/b%20c", "dir_info": {}}, "pip install '/a/b c[serve]'"),
        ({"url": "file:///a/clone", "dir_info": {"editable": True}}, "pip install -e '/a/clone[serve]'"),
    ],
)
def test_an_extra_is_installed_from_where_the_package_came_from(
    origin: dict[str, Any] | None, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = None if origin is None else json.dumps(origin)
    found = SimpleNamespace(dist=SimpleNamespace(name="a-name", read_text=lambda name: told))
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: [found])
    monkeypatch.setattr("shutil.which", lambda name: str(Path(sys.executable).with_name(name)))
    assert install("serve") == command
    monkeypatch.setattr("shutil.which", lambda name: f"/elsewhere/{name}")  # another environment's pip
    assert install("serve") == f"{sys.executable} -m {command}"
    monkeypatch.setattr("shutil.which", lambda name: str(Path(sys.executable).with_name(name)))
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: [])
    assert install("serve") == "pip install '.[serve]'"


def test_no_text_tells_users_to_take_our_name_from_an_index() -> None:
    texts = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "src").rglob("*.py")]
    advice = re.compile(rf"pip install '?{re.escape(PROJECT['name'])}\b")
    assert not [path.name for path in texts if path.name != "MAINTAINING.md" and advice.search(path.read_text("utf-8"))]


@pytest.mark.slow
def test_the_wheel_works_away_from_the_source(wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with zipfile.ZipFile(wheel) as file:
        file.extractall(tmp_path / "installed")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "installed"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    (tmp_path / "use").mkdir()
    where = [sys.executable, "-c", "import osp; print(osp.__file__)"]
    assert str(tmp_path) in subprocess.run(where, cwd=tmp_path / "use", capture_output=True, text=True).stdout
    module("scripts/try_wheel.py").use(sys.executable, tmp_path / "use", demo=False)


@pytest.mark.nightly
def test_the_wheel_alone_installs_into_an_empty_environment_and_works(wheel: Path) -> None:
    """Needs a package index."""
    subprocess.run([sys.executable, ROOT / "scripts" / "try_wheel.py", wheel], check=True, timeout=1500)
