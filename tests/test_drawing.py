"""The drawing of the rooms in docs/design.md shows the rooms that there are."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from PIL import Image

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "scripts" / "draw_imports.py"


def rooms() -> set[str]:
    """Packages and modules of src/osp."""
    found = (ROOT / "src" / "osp").iterdir()
    names = {path.stem for path in found if path.suffix == ".py" or (path / "__init__.py").is_file()}
    return names - {"__init__", "__main__"}


def names_in(drawing: Path) -> list[str]:
    with Image.open(drawing) as image:
        return str(image.info["Description"]).split()


def test_the_drawing_has_all_rooms() -> None:
    names = names_in(ROOT / "docs" / "images" / "imports.png")
    assert len(names) == len(set(names))
    assert set(names) == rooms(), "draw it again: python scripts/draw_imports.py docs/images/imports.png"


def test_the_script_draws_all_rooms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_file_location("draw_imports", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    script.main(tmp_path / "drawn.png")
    assert set(names_in(tmp_path / "drawn.png")) == rooms()
    monkeypatch.setattr(script, "layers", lambda: [["cli"], ["data", "nets"]])
    script.main(tmp_path / "other.png")
    assert names_in(tmp_path / "other.png") == ["cli", "data", "nets"]
