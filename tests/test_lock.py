"""Pins with hashes: the same packages as in the lock file, each file told by its SHA-256, and no place named."""

from __future__ import annotations

import importlib.util
import re
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
