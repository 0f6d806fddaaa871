"""`osp report` of a fit: what its page says, what it leaves out, and that it works in a real browser."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from helpers.browser import browser
from helpers.finished import finished
from helpers.small_backbone import small_backbone
from osp.errors import UserError
from osp.models.photo import BACKBONES, load_model
from osp.photos.fit import fit
from osp.report import write_report
from osp.report.fitted import FittedView, differences
from osp.report.galleries import disagreements
from osp.report.page import beside
from osp.runs.fitted import is_fit
from osp.runs.folder import RunFolder
from osp.runs.run import Run
from osp.verify import verify

EVIL = "<img src=x onerror=alert(1)>"
COLORS = {EVIL: (200, 40, 40), "b&amp;b": (40, 40, 200), "green": (40, 200, 40)}


def save(path: Path, color: str, seed: int) -> None:
    """A color with its own coarse pattern."""
    path.parent.mkdir(parents=True, exist_ok=True)
    coarse = np.random.default_rng(seed).normal(size=(5, 6, 3)).repeat(8, 0).repeat(8, 1) * 30
    Image.fromarray(np.clip(np.array(COLORS[color]) + coarse, 0, 255).astype(np.uint8)).save(path)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fit of two classes, one of whose labels is wrong, with green photos in pile and test that belong to neither."""
    root = tmp_path_factory.mktemp("fitted")
    for number, color in enumerate(COLORS):
        for seed in range(24):
            place = "pile" if seed >= 9 or color == "green" else f"sorted/{color}"
            save(root / place / f"{number} {seed}.png", color, 100 * number + seed)
        for seed in range(5):
            save(root / "test" / color / f"{seed}.png", color, 1000 + 100 * number + seed)
    save(root / "sorted" / "b&amp;b" / "wrong.png", EVIL, 7777)
    (root / "pile" / "broken.jpg").write_bytes(b"no")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OSP_CACHE", str(root / "cache"))
        patch.setitem(BACKBONES, "tiles", small_backbone)
        fit(root / "sorted", root / "pile", root / "run", backbone="tiles", test=root / "test", seed=3)
        fit(root / "sorted", None, root / "alone", backbone="tiles")
    return root


@pytest.fixture(autouse=True)
def _own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BACKBONES, "tiles", small_backbone)


def test_the_page_says_the_result_in_three_sentences_with_the_numbers_of_the_run(made: Path, tmp_path: Path) -> None:
    run = view(made / "run")
    text = write_report(made / "run", out=tmp_path / "x.html").read_text()
    assert text.count('<p class="lead">') == 3
    estimate, pile = run.result["estimates"]["labels and pile"], run.result["pile_photos"]
    assert f"{estimate['accuracy']:.1f} % of 19 sorted photos" in text
    tested = run.result["test"][run.answer]
    let_in = round(tested["foreign_accepted"] * 5 / 100)
    assert (
        f"It accepts {let_in} of 5 unknown test photos, and {tested['known_accepted'] / 10:.0f} of the 10 known" in text
    )
    assert f"<b>{tested['foreign_accepted']:.0f} %</b>of 5 unknown test photos are accepted" in text
    assert f"{pile['in']} of 54 photos look like one of the classes" in text
    for part in ("surest", "nearest the threshold", "Most unknown", "Nearly let in", "Labels that look wrong",
                 "Worst pairs", "Sorted photos it gets wrong", "Map of features", "histograms of OOD scores",
                 "Where it looks"):  # fmt: skip
        assert part in text, part
    assert "http://" not in text
    assert "https://" not in text
    assert EVIL not in text
    assert "broken.jpg" in text
    assert is_fit(made / "run")


def view(folder: Path) -> FittedView:
    return FittedView(Run.read(folder))


def test_galleries_follow_the_tables(made: Path) -> None:
    run = view(made / "run")
    found = {gallery.title: gallery for gallery in run.galleries(None, "")}
    most, nearly = found["Most unknown"], found["Nearly let in"]
    assert {Path(shot.where).name[0] for shot in most.shots} == {"2"}  # the green ones
    assert all(shot.framed for shot in most.shots)
    scores = dict(zip(run.pool.where, run.pool.scores, strict=True))
    limit = run.threshold
    assert limit is not None
    assert all(shot.framed and scores[shot.where] > limit for shot in nearly.shots)
    assert [scores[shot.where] for shot in nearly.shots] == sorted(run.pool.scores[run.pool.outside])[:16]
    for number, gallery in enumerate(found[name] for name in run.names):
        (first, surest), (second, unsure) = gallery.parts
        assert (first, second) == ("surest", "nearest the threshold: look here for strangers")
        chances = dict(zip(run.pool.where, run.pool.confidence, strict=True))
        assert min(chances[shot.where] for shot in surest) >= max(chances[shot.where] for shot in unsure)
        near = [scores[shot.where] for shot in unsure]  # what is nearly unknown comes first, however sure the class is
        assert near == sorted(near, reverse=True)
        assert {shot.key for shot in (*surest, *unsure)} == {number}
    assert [Path(shot.where).name for shot in found["Labels that look wrong"].shots] == ["wrong.png"]
    assert "wrong.png" in [Path(shot.where).name for shot in found["Sorted photos it gets wrong"].shots]


def test_held_out_probabilities_are_those_behind_the_estimate(made: Path) -> None:
    run = Run.read(made / "run").tables
    assert run.held_out is not None
    estimate = load_model(made / "run").instant.estimate
    assert estimate is not None
    right = int((run.held_out.argmax(axis=1) == run.labels).sum())
    assert right == estimate.correct
    assert run.held_out.sum(axis=1) == pytest.approx(1, abs=1e-4)


def test_the_command_repeats_the_run(made: Path) -> None:
    said = view(made / "run").command()
    assert said == f"osp fit {made}/sorted {made}/pile --backbone tiles --test {made}/test --seed 3 --out again"


def test_a_fit_is_compared_with_another_fit(made: Path, tmp_path: Path) -> None:
    run, other = view(made / "run"), view(made / "alone")
    assert disagreements(run.pool, run.names, run.pool, run.names, "x").shots == []
    inside = int((~run.pool.outside).sum())
    without = replace(run.pool, outside=np.ones(len(run.pool), bool))
    found = disagreements(run.pool, run.names, without, other.names, "alone")
    assert inside > 24 == len(found.shots)
    assert f"{inside} photos of the pile; 24 of them shown" in found.note
    assert [shot.key for shot in found.shots[:6]] in ([0, 1] * 3, [1, 0] * 3)  # each kind in turn
    assert found.shots[0].caption.endswith("; alone: unknown")
    text = write_report(made / "run", made / "alone", tmp_path / "x.html").read_text()
    assert "<th>this run</th><th>alone</th>" in text
    assert text.index('<th scope="row">this run</th>') < text.index('<th scope="row">alone</th>')  # Grad-CAM
    estimate = run.result["estimates"][run.answer]
    assert f"{estimate['accuracy']:.1f} % ({estimate['low']:.0f} to {estimate['high']:.0f}) of 19" in text
    assert "(10 known, 5 unknown)" in text
    assert "The test photos differ (15 in this run, 0 in alone, 0 of them in both)" in text
    assert "The classes differ" not in text
    assert differences(run, run, "x") == []
    others = view(made / "run")
    others.names = ("b&amp;b", "green", "more")
    told = differences(run, others, "x")
    assert told == [
        f"The classes differ (2 in this run, 3 in x; not in both: {EVIL}, green, more): the figures cannot be compared."
    ]
    assert beside(run, FittedView(replace(run.run, folder=RunFolder(Path("/old/run"))))) == "/old/run"
    assert beside(run, other) == "alone"
    heads = ("Sorted photos, by a model", "alone: sorted photos, by a model")
    assert text.index(f"<h3>{heads[0]}") < text.index(f"<h3>{heads[1]}")
    with pytest.raises(UserError, match="is no run folder"):
        write_report(made / "run", tmp_path, tmp_path / "y.html")
    with pytest.raises(UserError, match="compare runs of one kind"):
        write_report(made / "run", finished().path, tmp_path / "y.html")


def test_without_a_pile_or_photos_the_page_has_the_rest(made: Path, tmp_path: Path) -> None:
    text = write_report(made / "alone", out=tmp_path / "x.html").read_text()
    assert "There was no pile to look through" in text
    assert "Which classes it confuses" in text
    moved = tmp_path / "moved"
    shutil.copytree(made / "run", moved)
    for name in ("pile.csv", "test.csv", "doubts.csv", "labels.json"):
        file = moved / name
        file.write_text(file.read_text().replace(str(made), "/nowhere"))
    gone = write_report(moved).read_text()
    assert "photos are no longer where they were" in gone
    assert 'id="map-plot"' in gone
    assert '"atlas": null' in gone
    assert "histograms of OOD scores" in gone


@pytest.mark.parametrize("name", ["result.json", "photos.safetensors", "labels.json", "pile.csv", "sample.npz"])
def test_a_damaged_run_is_told_in_a_sentence(name: str, made: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(made / "run", copy)
    content = (copy / name).read_bytes()
    (copy / name).write_bytes(content[: len(content) // 2])
    with pytest.raises(UserError, match="damaged"):
        write_report(copy)
    assert not (copy / "report.html").exists()


def test_the_page_needs_no_torch(made: Path, tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "class NoTorch:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'torch': raise ImportError('there is no torch')\n"
        "sys.meta_path.insert(0, NoTorch())\n"
        "from pathlib import Path\n"
        "from osp.report import write_report\n"
        "print(write_report(Path(sys.argv[1]), out=Path(sys.argv[2])))"
    )
    command = [sys.executable, "-c", code, str(made / "run"), str(tmp_path / "x.html")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "x.html").read_text()
    assert "Left out: there is no torch" in text
    assert text.count("<figure") > 20


def test_grad_cam_finds_what_speaks_for_the_class(made: Path) -> None:
    """A blue image with one red corner: for red, the corner speaks."""
    model = load_model(made / "run")
    pixels = np.zeros((1, 3, 32, 32), np.uint8)
    pixels[:, 2] = 120
    pixels[:, 0, :8, 24:], pixels[:, 2, :8, 24:] = 255, 0
    found = model.maps(pixels)
    assert found.maps.shape == (1, 32, 32)
    assert found.maps.max() == 1.0
    assert (found.predicted, found.confidence) == pytest.approx(
        (model.instant.predict_proba(found.features).argmax(), model.instant.predict_proba(found.features).max())
    )


BLANK = """const row = [...document.querySelectorAll(".shots")].find(each => each.children.length > 6);
return row.getBoundingClientRect().right - Math.max(...[...row.children].map(e => e.getBoundingClientRect().right));"""
SIDEWAYS = """const boxes = [...document.querySelectorAll(".scroll:has(> .confusion)")];
return Math.max(...boxes.map(e => e.scrollWidth - e.clientWidth));"""
VISIBLE = "return [...document.querySelectorAll(arguments[0])].filter(e => e.getBoundingClientRect().width > 0).length"


def test_the_page_works_in_a_browser(made: Path, tmp_path: Path) -> None:
    path = write_report(made / "run", out=tmp_path / "report.html")
    with browser(tmp_path / "browser") as shown:
        for width, scheme, media in ((1100, "light", "screen"), (390, "dark", "screen"), (700, "light", "print")):
            shown.emulate(width, scheme=scheme, media=media)
            shown.open(path)
            assert shown.run("return document.documentElement.scrollWidth") <= width
            if width == 390:
                assert shown.run(BLANK) < 8
                assert shown.run(SIDEWAYS) == 0
        shown.emulate(1100)
        shown.open(path)
        shown.run("for (const image of document.images) image.loading = 'eager'")
        shown.until("return [...document.images].every(image => image.complete && image.naturalWidth)")
        assert shown.run("return document.querySelectorAll('img[onerror]').length") == 0
        assert EVIL in shown.run("return document.body.textContent")
        points = "#map-plot use[data-i]"
        assert shown.run(VISIBLE, points) == 19 + 54
        shown.point_at(f"{points}.pile[data-class=ood]")
        assert "pile: " in shown.run("return document.getElementById('tip').textContent")
        assert "data:image" in shown.run("return document.querySelector('#tip i').style.backgroundImage")
        shown.run("document.getElementById('only-mistakes').click()")
        assert shown.run(VISIBLE, points) == 19
        shown.run("document.querySelector('.shot img').click()")
        assert shown.run("return document.getElementById('large').open")
        named = shown.run("return document.querySelector('#large a').textContent")
        assert named.startswith(str(made)), "a photo opens large, with the name of its file"
        assert shown.run("return document.querySelector('#large img').getBoundingClientRect().width") > 300
        shown.run("document.querySelector('#large button').click()")
        assert not shown.run("return document.getElementById('large').open")
        everything = shown.run(VISIBLE, ".shot")
        choose = (
            "const box = document.getElementById('gallery-class');"
            "box.value = '1'; box.dispatchEvent(new Event('change'))"
        )
        shown.run(choose)
        assert 0 < shown.run(VISIBLE, ".shot") < everything
        assert shown.run(VISIBLE, ".shot:not([data-class='1'])") == 0
        shown.run("document.querySelectorAll('#galleries .shot').forEach(shot => shot.dataset.class = '0')")
        shown.run(choose)
        assert shown.run("return document.getElementById('gallery-empty').textContent") == "No image of b&amp;b here."
        assert shown.run(VISIBLE, "#gallery-empty") == 1
        assert shown.complaints() == []


def test_the_command_knows_both_kinds_of_run(made: Path, tmp_path: Path, capsys: Any) -> None:
    from osp.cli.finished import report

    report(made / "alone", None, tmp_path / "p.html")
    assert "p.html" in capsys.readouterr().out
    assert json.loads((made / "alone" / "result.json").read_text())["kind"] == "photos"


def test_classes_that_begin_like_formulas_are_fitted_reported_and_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OSP_CACHE", str(tmp_path / "cache"))
    names = ("+1", "-1", "=x", "@home", "'+1")
    for number, name in enumerate(names):
        for seed in range(3):
            save(tmp_path / "sorted" / name / f"{seed}.png", "green", 10 * number + seed)
        save(tmp_path / "pile" / f"={number}.png", "green", 100 + number)
        save(tmp_path / "test" / name / "x.png", "green", 200 + number)
    done = fit(tmp_path / "sorted", tmp_path / "pile", tmp_path / "run", backbone="tiles", test=tmp_path / "test")
    tables = Run.read(done.path).tables
    assert set(tables.names) == set(names)
    assert {tables.names[truth] for truth in tables.test.truth} == set(names)
    assert [Path(file).name for file in tables.pile.where] == [f"={number}.png" for number in range(5)]
    assert write_report(done.path).exists()
    (verdict,) = verify(done.path)
    assert verdict.problems == []
