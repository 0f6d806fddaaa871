"""For tests and for examples in docstrings: folders of their own for all that the package would keep in the user's."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _own_folders(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test touches the user's cache, state, data or network."""
    base = tmp_path_factory.getbasetemp()
    monkeypatch.setenv("OSP_CACHE", str(base / "osp-cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(base / "osp-state"))
    monkeypatch.setenv("OSP_MIRROR", "http://127.0.0.1:9")  # nobody answers there
    monkeypatch.delenv("OSP_DATA", raising=False)
