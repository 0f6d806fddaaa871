"""Pins with hashes: the same packages as in the lock file, each file told by its SHA-256, and no place named."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def lock() -> ModuleType:
    spec = importlib.util.spec_from_file_location("lock", ROOT / "scripts" / "lock.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def lines_of(name: str) -> list[str]:
    return [line for line in (ROOT / name).read_text("utf-8").splitlines() if line and not line.startswith("#")]


def test_the_hashes_are_of_the_pinned_versions_all_but_torch() -> None:
    pinned = [line for line in lines_of("requirements.lock") if not line.startswith("torch==")]
    hashed = lines_of("requirements.hashes")
    assert "torch==2.13.0" in lines_of("requirements.lock")
    assert [line.partition(" ")[0] for line in hashed] == pinned
    assert all(re.fullmatch(r"\S+==\S+( --hash=sha256:[0-9a-f]{64})+", line) for line in hashed)


def test_the_lock_has_all_that_tests_need_and_half_of_it_is_enough_to_use_the_package(lock: ModuleType) -> None:
    pinned = {line.partition("==")[0] for line in lines_of("requirements.lock")}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    used = set(lock.needed(project["dependencies"]))
    assert set(lock.needed(project["optional-dependencies"]["dev"])) | used <= pinned
    tools = {"pytest", "mypy", "ruff", "onnx", "transformers", "tensorboard", "mkdocs", "twine"}
    assert not used & tools
    assert len(used) <= 60


@pytest.mark.parametrize("name", ["requirements.lock", "requirements.hashes"])
def test_no_place_is_named(name: str) -> None:
    assert not [line for line in lines_of(name) if re.search(r"://|@|/", line.partition(" ")[0])]
    assert "://" not in (ROOT / name).read_text("utf-8")


def test_lines_come_from_what_pip_reports_without_its_addresses(lock: ModuleType) -> None:
    info = {
        "url": "https://example.org/Some_Package-1.0-py3-none-any.whl",
        "archive_info": {"hashes": {"sha256": "ab"}},
    }
    report = {"install": [{"metadata": {"name": "Some_Package", "version": "1.0"}, "download_info": info}]}
    assert lock.hashed(report) == ["some-package==1.0 --hash=sha256:ab"]
