"""What belongs to a photo goes where it goes, gets the same new name, and comes back with it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from test_sorting import killed_at, make_pile, tree

from osp.models.model import Prediction
from osp.photos.companions import Companions
from osp.photos.journal import JOURNAL
from osp.photos.sorting import sort_pile
from osp.photos.undoing import undo
from osp.verify import verify

BESIDE = ["x.xmp", "x.AAE", "x.MOV", "x.CR2", "x.jpg.xmp", "x.CR2.xmp"]
OTHERS = ["x.txt", "xx.xmp", "x.y.mov", "notes.xmp"]


def make(root: Path, folders: str = "ab") -> list[Prediction]:
    decisions = make_pile(root / "pile", [f"{folder}/x.jpg" for folder in folders])
    for folder in folders:
        for name in (*BESIDE, *OTHERS):
            (root / "pile" / folder / name).write_bytes(f"{name} in {folder}".encode())
    return [Prediction(d.file, "cat", 0.9, 0.1, True) for d in decisions]


def test_companions_move_are_renamed_together_and_come_back(tmp_path: Path) -> None:
    decisions = make(tmp_path)
    before = tree(tmp_path / "pile")
    done = sort_pile(decisions, out := tmp_path / "out", "move")
    assert (done.beside, done.failed) == (12, ())
    assert done.counts == {"cat": 2}
    assert sorted(tree(tmp_path / "pile")) == sorted(f"{folder}/{name}" for folder in "ab" for name in OTHERS)
    second = [f"x (2){name[1:]}" for name in ("x.jpg", *BESIDE)]
    assert sorted(path.name for path in (out / "cat").iterdir()) == sorted(["x.jpg", *BESIDE, *second])
    assert (out / "cat/x (2).jpg.xmp").read_bytes() == b"x.jpg.xmp in b"
    (verdict,) = verify(out)
    assert verdict.whole, verdict
    undone = undo(out)
    assert (undone.moved, undone.beside, undone.problems) == (2, 12, ())
    assert tree(tmp_path / "pile") == before
    assert not out.exists()


def test_a_photo_without_companions_makes_room_for_those_of_another(tmp_path: Path) -> None:
    """x.png has the name free, and x.mov of it has not."""
    decisions = make_pile(tmp_path / "pile", ["a/x.jpg", "b/x.png"])
    for folder in "ab":
        (tmp_path / "pile" / folder / "x.mov").write_bytes(folder.encode())
    given = [Prediction(d.file, "cat", 0.9, 0.1, True) for d in decisions]
    sort_pile(given, tmp_path / "out", "move")
    assert sorted(path.name for path in (tmp_path / "out/cat").iterdir()) == [
        "x (2).mov",
        "x (2).png",
        "x.jpg",
        "x.mov",
    ]


def test_each_companion_is_given_once_and_links_stay(tmp_path: Path) -> None:
    for name in ("x.jpg", "x.png", "x.mov", "x.png.xmp"):
        (tmp_path / name).touch()
    found = Companions()
    assert [found.of(str(tmp_path / name)) for name in ("x.jpg", "x.png")] == [["x.mov"], ["x.png.xmp"]]
    (decision,) = make(tmp_path, "a")
    (tmp_path / "pile/a/x.xmp").unlink()
    (tmp_path / "pile/a/x.xmp").symlink_to(tmp_path / "x.mov")
    done = sort_pile([decision], tmp_path / "out", "move")
    assert (done.beside, done.failed) == (5, ())
    assert (tmp_path / "pile/a/x.xmp").is_symlink()


def test_a_companion_that_cannot_be_moved_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (decision,) = make(tmp_path, "a")
    real = os.link

    def link(source: str, target: str, **options: Any) -> None:
        if target.endswith("x.MOV"):
            raise FileExistsError(17, "File exists")
        real(source, target, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", link)
        done = sort_pile([decision], tmp_path / "out", "move")
    assert done.failed == ((str(tmp_path / "pile/a/x.MOV"), "File exists"),)
    assert not undo(tmp_path / "out").problems


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_between_a_photo_and_its_companions_the_same_sort_brings_them_along(tmp_path: Path) -> None:
    number = 2
    while True:
        root = tmp_path / str(number)
        decisions = make(root, "a")
        before = tree(root / "pile")
        killed = killed_at(number, lambda root=root, given=decisions: sort_pile(given, root / "out", "move"))  # type: ignore[misc]
        assert set(before.values()) <= {*tree(root / "pile").values(), *tree(root / "out").values()}
        if number % 2:
            again = [d for d in decisions if os.path.exists(d.file)]
            sort_pile(again, root / "out", "move", pile=root / "pile")
            placed = [name for name in tree(root / "out") if name.startswith("cat/")]
            assert sorted(placed) == sorted(f"cat/{name}" for name in ("x.jpg", *BESIDE))
        if (root / "out" / JOURNAL).exists():
            assert not undo(root / "out").problems
        assert tree(root / "pile") == before
        if not killed:
            break
        number += 1
    assert number > 12


def test_companions_moved_by_hand_with_their_photo_come_back(tmp_path: Path) -> None:
    (decision,) = make(tmp_path, "a")
    before = tree(tmp_path / "pile")
    sort_pile([decision], out := tmp_path / "out", "move")
    os.rename(out / "cat", out / "dog")
    (verdict,) = verify(out)
    assert verdict.whole, verdict
    assert not undo(out).problems
    assert tree(tmp_path / "pile") == before
