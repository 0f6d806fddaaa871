"""`osp sort` at its door: what it refuses, what it leaves alone, and what it says."""

from __future__ import annotations

import csv
import json
import shlex
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast
from urllib.parse import unquote

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner, Result

from helpers.small_backbone import small_backbone
from osp.cli import app
from osp.errors import UserError
from osp.models.model import Prediction
from osp.models.photo import BACKBONES
from osp.models.trained import Predictor
from osp.photos.decisions import decisions
from osp.photos.fit import fit
from osp.photos.journal import JOURNAL, TABLE
from osp.recipe import Recipe, make_plan
from osp.verify import verify

COLORS = {"red": (200, 40, 40), "blue": (40, 40, 200)}


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fit whose sorted photos lie inside its pile, one of them also as a copy outside their folder."""
    root = tmp_path_factory.mktemp("sort")
    for number, (color, shade) in enumerate(COLORS.items()):
        for seed in range(9):
            coarse = np.random.default_rng(100 * number + seed).normal(size=(5, 6, 3)).repeat(8, 0).repeat(8, 1) * 30
            path = root / "pile" / (f"mine/{color}" if seed < 4 else "") / f"{color} {seed}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.clip(np.array(shade) + coarse, 0, 255).astype(np.uint8)).save(path)
    shutil.copy(root / "pile/mine/red/red 0.png", root / "pile/copy.png")
    with Image.open(root / "pile/mine/red/red 1.png") as image:
        image.resize((96, 80)).save(root / "pile/mine/red/larger.png")  # a near copy: it does not teach
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OSP_CACHE", str(root / "cache"))
        patch.setitem(BACKBONES, "tiles", small_backbone)
        fit(root / "pile/mine", root / "pile", root / "run", backbone="tiles")
    shutil.copytree(root / "pile", root / "kept")
    return root


@pytest.fixture
def root(fitted: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of that fit, with every photo where it was."""
    monkeypatch.setenv("OSP_CACHE", str(fitted / "cache"))
    monkeypatch.setitem(BACKBONES, "tiles", small_backbone)
    for name in ("pile", "out"):
        shutil.rmtree(fitted / name, ignore_errors=True)
    shutil.copytree(fitted / "kept", fitted / "pile")
    return fitted


def osp(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(each) for each in arguments])


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*.png"))


def table(out: Path) -> list[dict[str, str]]:
    with open(out / TABLE, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("how", [("--move",), ("--as", "copies"), ("--as", "links"), ()])
def test_photos_that_the_run_has_learned_from_stay_where_they_are(root: Path, how: tuple[str, ...]) -> None:
    """By path, by content (copy.png), and where they lie in a class's folder without having taught (larger.png)."""
    labeled = [name for name in files(root / "pile") if name.startswith("mine/") or name == "copy.png"]
    assert len(labeled) == 10
    done = osp("sort", root / "run", root / "pile", "--to", root / "out", *how)
    assert done.exit_code == 0, done.output
    assert "had sorted already; they stay where they are: 10." in done.output
    assert set(labeled) <= set(files(root / "pile"))
    if "--move" in how:
        assert files(root / "pile") == labeled
    rows = table(root / "out")
    assert len(rows) == 10
    assert not {row["file"] for row in rows} & {str(root / "pile" / name) for name in labeled}


def test_a_pile_of_labelled_photos_alone_is_refused(root: Path) -> None:
    done = osp("sort", root / "run", root / "pile/mine", "--to", root / "out", "--move")
    assert isinstance(done.exception, UserError)
    assert "has learned from all its photos" in str(done.exception)
    assert not (root / "out").exists()


def test_sorted_photos_of_a_trained_run_stay_where_they_are(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = make_plan(Recipe(data="folder", data_dir=str(root / "pile/mine"), method="supervised"))
    (tmp_path / "plan.yaml").write_text(plan.dump(), "utf-8")
    asked: list[str] = []

    def predict(given: list[str], *_: object) -> Iterator[Prediction]:
        asked.extend(given)
        return iter(())

    model = cast(Predictor, SimpleNamespace(class_names=("blue", "red"), predict_files=predict))
    pile = [str(root / "pile" / name) for name in files(root / "pile")]
    assert decisions(model, tmp_path, pile, 0.95, None) == ([], 9)
    assert asked == [name for name in pile if "mine" not in Path(name).parts]


@pytest.mark.parametrize(
    ("pile", "to", "words"),
    [
        ("pile", "pile/new\nfolder", "lies inside the pile"),
        ("pile", "pile", "is the pile itself"),
        ("pile", "link/x", "lies inside the pile"),
        ("empty/pile", "empty", "lies inside --to"),
    ],
)
def test_pile_and_target_inside_each_other_are_refused_before_anything_is_looked_at(
    root: Path, pile: str, to: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "link").unlink(missing_ok=True)
    (root / "link").symlink_to(root / "pile")
    monkeypatch.setattr("osp.photos.photographs.walk", None)
    done = osp("sort", root / "run", root / pile, "--to", root / to)
    assert isinstance(done.exception, UserError)
    assert words in str(done.exception)
    assert "Name a folder" in str(done.exception)
    assert "\n" not in str(done.exception)
    assert not (root / "pile/new\nfolder").exists()


def test_a_sort_that_was_stopped_goes_on_and_counts_all(root: Path) -> None:
    """Also where the last photo was moved, and only the table is missing."""
    osp("sort", root / "run", root / "pile", "--to", root / "out", "--move")
    whole = table(root / "out")
    journal = root / "out" / JOURNAL
    lines = journal.read_bytes().splitlines(keepends=True)
    for labeled in (True, False):
        (root / "out" / TABLE).unlink()
        journal.write_bytes(b"".join(lines[:-1]))
        again = osp("sort", root / "run", root / "pile", "--to", root / "out", "--move")
        assert again.exit_code == 0, again.output
        assert "had put there already, counted below: 10." in again.output
        counts = [
            int(line.split()[-1]) for line in again.output.splitlines() if line[2:5] in ("red", "blu", "_un", "_fo")
        ]
        assert sum(counts) == 10
        assert table(root / "out") == whole
        if labeled:
            shutil.rmtree(root / "pile")
            (root / "pile").mkdir()


def test_undo_says_what_it_took_away(root: Path) -> None:
    osp("sort", root / "run", root / "pile", "--to", root / "out")
    undone = osp("sort", "--undo", root / "out")
    assert undone.output == "The table was removed; there were no photos to put back.\n"
    osp("sort", root / "run", root / "pile", "--to", root / "out", "--move")
    undone = osp("sort", "--undo", root / "out")
    assert undone.output == "10 photos are back in their places.\n"
    assert not (root / "out").exists()


def test_a_share_that_is_none_is_refused_before_anything_is_looked_at(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("osp.photos.photographs.walk", None)
    done = osp("sort", root / "run", root / "pile", "--to", root / "out", "--accept", 95)
    assert isinstance(done.exception, UserError)
    assert "a share between 0 and 1" in str(done.exception)


def test_what_is_printed_to_be_pasted_is_one_word_to_a_shell(root: Path, tmp_path: Path) -> None:
    out = tmp_path / "my photos; sorted"
    done = osp("sort", root / "run", root / "pile", "--to", out, "--as", "links")
    (line,) = [line for line in done.output.splitlines() if line.startswith("Undo: ")]
    assert shlex.split(line) == ["Undo:", "osp", "sort", "--undo", str(out)]


def test_next_links_exactly_those_photos_and_moves_none_unasked(root: Path) -> None:
    """Photos to look at: none of them is put where it would count as sorted."""
    refused = osp("sort", root / "run", root / "pile", "--next", 3, "--move")
    assert isinstance(refused.exception, UserError)
    assert "--next lists photos and moves none" in str(refused.exception)
    done = osp("sort", root / "run", root / "pile", "--next", 3, "--to", root / "out")
    assert done.exit_code == 0, done.output
    named = sorted(line.split("   ")[0] for line in done.output.splitlines()[:3])
    found = list((root / "out").rglob("*.png"))
    assert sorted(str(path.readlink()) for path in found) == named
    assert {path.relative_to(root / "out").parts[0] for path in found} <= {"_unsure", "_unknown"}
    assert len(table(root / "out")) == 3
    assert osp("sort", "--undo", root / "out").exit_code == 0
    assert osp("sort", root / "run", root / "pile", "--next", 2, "--to", root / "out", "--move").exit_code == 0
    assert len(files(root / "pile")) == len(files(root / "kept")) - 2
    assert osp("sort", "--undo", root / "out").exit_code == 0
    assert files(root / "pile") == files(root / "kept")


def test_photos_that_cannot_be_read_stay_and_are_no_failure(root: Path) -> None:
    (root / "pile/broken.png").write_bytes(b"no image")
    done = osp("sort", root / "run", root / "pile", "--to", root / "out", "--as", "copies")
    assert done.exit_code == 0, done.output
    assert "cannot be read, and stay where they are: 1." in done.output
    assert "broken.png" in done.stderr
    (root / "out/_unknown").mkdir(exist_ok=True)
    shutil.rmtree(root / "out")
    (root / "pile/link.png").symlink_to(root / "pile/red 8.png")
    done = osp("sort", root / "run", root / "pile", "--to", root / "out", "--move")
    assert done.exit_code == 1
    assert "it is a link, which would break when moved; it stays where it is" in done.stderr


@pytest.mark.parametrize("undone", [False, True])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_it_says_what_to_do_next(
    root: Path, undone: bool, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = root / "out"
    if undone:
        osp("sort", root / "run", root / "pile", "--to", out, "--move")

    before = signal.getsignal(signal.SIGTERM)

    def stop(*_: object, **__: object) -> None:
        signal.raise_signal(number)

    monkeypatch.setattr("osp.photos.undoing.undo" if undone else "osp.photos.sorting.sort_pile", stop)
    words = ("--undo", out) if undone else (root / "run", root / "pile", "--to", out, "--move")
    stopped = osp("sort", *words)
    assert stopped.exit_code == 128 + number
    assert signal.getsignal(signal.SIGTERM) is before
    assert "Stopped." in stopped.stderr
    assert f"osp sort --undo {out}" in stopped.stderr
    assert ("The same command goes on" in stopped.stderr) != undone


def test_keywords_are_written_and_taken_back(root: Path) -> None:
    done = osp("sort", root / "run", root / "pile", "--to", root / "out", "--as", "xmp")
    assert done.exit_code == 0, done.output
    assert len(list((root / "pile").glob("*.png.xmp"))) == 10
    assert files(root / "pile") == files(root / "kept")
    undone = osp("sort", "--undo", root / "out")
    assert "10 sidecars (.xmp) are as they were before" in undone.output
    assert not list(root.rglob("*.xmp"))


def test_a_fit_learns_from_what_was_moved_by_hand_and_the_rest_is_its_pile(root: Path, tmp_path: Path) -> None:
    out = root / "out"
    osp("sort", root / "run", root / "pile", "--to", out, "--move")
    refused = osp("fit", out, "--from", root / "run", "--out", tmp_path / "run2", "--no-page")
    assert "its folders hold guesses" in str(refused.exception)
    (photo,) = out.rglob("red 7.png")
    (out / "crimson").mkdir()
    shutil.move(photo, out / "crimson/red 7.png")
    said: list[str] = []
    run = fit(out, None, tmp_path / "run2", earlier=root / "run", say=said.append)
    assert run.result["classes"] == {"blue": 4, "crimson": 1, "red": 4}
    assert any("1 photos that you have moved or added teach; 9 others in it are guesses" in each for each in said)
    assert run.result["pile_photos"]["files"] == len(files(root / "kept")) - 1  # nine of them have a new place
    assert not any("If osp sort has moved them" in each for each in said)
    fit(root / "pile/mine", None, tmp_path / "run3", earlier=root / "run", say=said.append)
    assert any("had 20 photos in the earlier fit, and there are 10 now. If osp sort has moved them" in s for s in said)


def strange(root: Path) -> Path:
    """A folder of moved photos whose journal is of an earlier version."""
    osp("sort", root / "run", root / "pile", "--to", root / "out", "--move")
    lines = [json.loads(line) for line in (root / "out" / JOURNAL).read_text().splitlines()]
    old = [{key: each[key] for key in each if key != "mark"} for each in lines if "pile" not in each]
    (root / "out" / JOURNAL).write_text("".join(json.dumps(each) + "\n" for each in old))
    return root / "out"


def test_a_strange_journal_is_obeyed_only_if_the_user_says_so(root: Path) -> None:
    out = strange(root)
    for words in (("--undo", out), (root / "run", root / "pile", "--to", out, "--move")):
        refused = osp("sort", *words)
        assert isinstance(refused.exception, UserError)  # the command ends with exit code 2
        assert f"put 10 files into {root / 'pile'}" in str(refused.exception)
    assert len(files(out)) == 10
    again = osp("sort", root / "run", root / "pile", "--to", out, "--move", "--trust-journal")
    assert "counted below: 10" in again.output
    undone = osp("sort", "--undo", out, "--trust-journal")
    assert undone.output == "10 photos are back in their places.\n"


@pytest.mark.parametrize(("answer", "left"), [("y", 0), ("n", 10), ("", 10)])
def test_at_a_terminal_a_strange_journal_is_shown_and_asked_about(
    root: Path, answer: str, left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = strange(root)
    monkeypatch.setattr("osp.cli.sorting._at_a_terminal", lambda: True)
    said = CliRunner().invoke(app, ["sort", "--undo", str(out)], input=f"{answer}\n")
    assert "may not be yours: it comes from another user or machine" in said.output
    assert f"put 10 files into {root / 'pile'}" in said.output
    assert (said.exit_code == 0) == (answer == "y")
    assert len(files(out) if out.exists() else []) == left


def test_no_cell_of_predictions_begins_like_a_formula_and_json_stays_as_it_is(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["=1+1.png", "+1.png", "-1.png", "@x.png", "\tx.png"]
    for name in names:
        shutil.copy(root / "pile/red 7.png", root / "pile" / name)
    monkeypatch.chdir(root / "pile")
    rows = list(csv.DictReader(osp("predict", root / "run", "--format", "csv", "--", *names).stdout.splitlines()))
    assert [row["file"] for row in rows] == [f"'{name}" for name in names]
    said = osp("predict", root / "run", "--format", "jsonl", "--", *names).stdout.splitlines()
    assert [json.loads(line)["file"] for line in said] == names
    assert osp("sort", root / "run", ".", "--to", root / "out", "--as", "copies").exit_code == 0
    assert not any(row["place"][:1] in tuple("=+-@\t") for row in table(root / "out"))


def test_predictions_are_tasks_that_label_studio_imports(root: Path) -> None:
    """Its form: https://labelstud.io/guide/predictions; the fields are those of the configuration in docs/photos.md."""
    odd = root / "pile/a b+ä%.png"
    shutil.copy(root / "pile/red 7.png", odd)
    (root / "pile/broken.png").write_bytes(b"no image")
    done = osp("predict", root / "run", root / "pile", "--format", "label-studio")
    assert done.exit_code == 1  # of the one that cannot be read
    assert "broken.png" in done.stderr
    tasks = json.loads(done.stdout)
    assert len(tasks) == len(files(root / "kept")) + 1
    said = {
        line["file"]: line
        for line in map(
            json.loads, osp("predict", root / "run", root / "pile", "--format", "jsonl").stdout.splitlines()
        )
    }
    for task in tasks:
        prefix, place = task["data"]["image"].split("?d=")
        assert prefix == "/data/local-files/"
        expected = said[f"/{unquote(place)}"]
        ((prediction,), (result,)) = task["predictions"], task["predictions"][0]["result"]
        assert (result["from_name"], result["to_name"], result["type"]) == ("class", "image", "choices")
        assert result["value"] == {"choices": [expected["class"] if expected["in"] else "none"]}
        assert "score" in prediction or not expected["in"]
        assert 0 <= prediction.get("score", 0) <= 1
    configured = Path(__file__).parents[2].joinpath("docs/photos.md").read_text("utf-8")
    assert '<Image name="image" value="$image"/>' in configured
    assert '<Choices name="class" toName="image">' in configured
    assert json.loads(osp("predict", root / "run", root / "pile/broken.png", "--format", "label-studio").stdout) == []


def change_row(path: Path) -> None:
    path.write_text(path.read_text("utf-8").replace(",red,0.", ",blue,0.", 1), "utf-8")


def change_temperature(path: Path) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text("utf-8")), "temperature": 0.1}), "utf-8")


@pytest.mark.parametrize(
    ("name", "damage", "words"),
    [
        ("pile.csv", change_row, "pile.csv: changed since the fit wrote it"),
        ("photos.json", change_temperature, "photos.json: changed since the fit wrote it"),
        ("doubts.csv", lambda path: path.write_text("junk"), "doubts.csv: changed since the fit wrote it"),
        ("left-out.csv", Path.unlink, "left-out.csv: missing"),
        ("test.csv", lambda path: path.write_text("junk"), "test.csv: not written by the fit"),
        ("SHA256SUMS", lambda path: path.write_text("junk"), "SHA256SUMS"),
    ],
)
def test_an_altered_fit_is_not_whole(
    root: Path, tmp_path: Path, name: str, damage: Callable[[Path], object], words: str
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(root / "run", folder)
    (verdict,) = verify(folder)
    assert (verdict.problems, verdict.notes) == ([], [])
    damage(folder / name)
    (verdict,) = verify(folder)
    assert any(problem.startswith(words) for problem in verdict.problems), verdict.problems


def test_a_fit_without_checksums_is_whole_with_a_word_and_a_short_table_is_named(root: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(root / "run", folder)
    (folder / "SHA256SUMS").unlink()
    (verdict,) = verify(folder)
    assert verdict.whole
    assert "without checksums" in verdict.notes[0]
    lines = (folder / "pile.csv").read_text("utf-8").splitlines(keepends=True)
    (folder / "pile.csv").write_text("".join(lines[:5]), "utf-8")
    (verdict,) = verify(folder)
    assert len(verdict.problems) == 1
    assert "pile.csv has 4 readable photos, result.json says 20" in verdict.problems[0]
