"""`osp report`: the page of a run, as text and in a real browser."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import osp
from helpers import commands
from helpers.bombs import endless, pipe
from helpers.browser import browser
from helpers.finished import finished
from osp import Recipe, UserError, plugins
from osp.report import write_report
from osp.report.page import page
from osp.report.trained import TrainedView
from osp.runs.folder import RunFolder
from osp.runs.run import Run

EVIL = "<img src=x onerror=alert(1)>"


def copied(tmp_path: Path, method: str = "osp") -> RunFolder:
    """A copy of a finished run that a test may damage."""
    return RunFolder(Path(shutil.copytree(finished(method).path, tmp_path / "copy")))


def test_the_page_says_the_result_in_three_sentences_with_the_numbers_of_the_run(tmp_path: Path) -> None:
    run = finished()
    path = write_report(run.path, out=tmp_path / "x.html")
    assert path == tmp_path / "x.html"
    text = path.read_text()
    assert text.count('<p class="lead">') == 3
    assert f"{run.result['accuracy']:.1f} % of 359 test images" in text
    assert "from 60 labeled images and 770 unlabeled ones, 60 % of which show none of the classes" in text
    assert "http://" not in text
    assert "https://" not in text
    for part in ("Surest of each class", "Least sure", "Most unknown", "Least unknown", "Mistakes", "Worst pairs"):
        assert part in text
    assert "osp train --recipe recipe.yaml" in text
    assert "steps: 12" in text


def test_a_baseline_adds_a_column_and_a_row_of_grad_cam() -> None:
    text = page(TrainedView(finished()), TrainedView(finished("supervised")))
    assert "supervised on digits" in text
    assert text.index('<th scope="row">this run</th>') < text.index('<th scope="row">supervised on ')  # Grad-CAM
    assert "paired OOD feature" in text
    assert "paired OOD feature" not in page(TrainedView(finished("supervised")))


def test_without_arrays_the_page_is_made_of_the_results_alone(tmp_path: Path) -> None:
    folder = copied(tmp_path)
    for path in (folder.predictions, folder.model, folder.split, folder.path / "bank.npz"):
        path.unlink()
    text = write_report(folder.path).read_text()
    assert (folder.path / "report.html").exists()
    assert "kept without its predictions" in text
    assert "Worst pairs" in text
    assert "Accuracy and AUROC over the steps" in text


def test_where_the_images_are_gone_the_page_says_so_and_has_the_rest(tmp_path: Path) -> None:
    folder = copied(tmp_path)
    folder.data.write_text('{"0 digits": "others"}')
    text = write_report(folder.path).read_text()
    assert "The images are not available: The images have changed" in text
    assert "Surest of each class" not in text
    assert 'id="map-plot"' in text
    assert '"atlas": null' in text


def test_a_page_from_the_folder_alone_needs_no_torch(tmp_path: Path) -> None:
    folder = copied(tmp_path)
    code = (
        "import sys\n"
        "class NoTorch:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'torch': raise ImportError('there is no torch')\n"
        "sys.meta_path.insert(0, NoTorch())\n"
        "from osp.report import write_report; print(write_report(sys.argv[1]))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(folder.path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    text = (folder.path / "report.html").read_text()
    assert "Images cannot be shown here" in text
    assert 'id="map-plot"' in text
    assert "histograms of OOD scores" in text


@pytest.mark.parametrize("unlabeled", [0, 30])
def test_runs_without_ood_or_validation_images_have_a_page(unlabeled: int, tmp_path: Path) -> None:
    recipe = Recipe(
        method="supervised", scale="demo", steps=3, unlabeled=unlabeled, ood_ratio=0.0, val_per_class=0,
        id_classes=tuple(range(10)),
    )  # fmt: skip
    text = write_report(osp.train(recipe, tmp_path / "run", progress=False).path).read_text()
    assert "95 % of the labeled images lie at or below it" in text
    assert ("It calls" in text) == (unlabeled > 0)
    assert ("and no unlabeled ones" in text) == (unlabeled == 0)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="pipes and devices")
@pytest.mark.parametrize("harm", [pipe, endless, "secret"])
def test_a_recipe_of_a_stranger_is_neither_followed_nor_waited_for(harm: Any, tmp_path: Path) -> None:
    folder = copied(tmp_path)
    if harm == "secret":
        (tmp_path / "secret").write_text("my password")
        folder.recipe.unlink()
        folder.recipe.symlink_to(tmp_path / "secret")
    else:
        harm(folder.recipe)
    text = write_report(folder.path).read_text()
    assert "my password" not in text
    assert "method: osp" in text  # from the plan


def test_a_split_of_another_pool_is_told_in_a_sentence(tmp_path: Path) -> None:
    folder = copied(tmp_path)
    with np.load(folder.split) as stored:
        arrays = {name: stored[name] for name in stored.files}
    np.savez(folder.split, **{**arrays, "unlabeled_is_ood": arrays["unlabeled_is_ood"][:-1]})
    with pytest.raises(UserError, match=r"split\.npz is of another pool than predictions\.npz"):
        write_report(folder.path)


@pytest.mark.parametrize("broken", ["nothing", "empty", "unfinished", "result", "predictions", "out"])
def test_what_is_no_finished_run_is_told_in_a_sentence(broken: str, tmp_path: Path) -> None:
    folder, out = copied(tmp_path), None
    if broken == "nothing":
        folder = RunFolder(tmp_path / "nothing")
    elif broken == "empty":
        folder = RunFolder(tmp_path / "empty")
        folder.path.mkdir()
    elif broken == "unfinished":
        folder.result.unlink()
    elif broken == "result":
        folder.result.write_text("{")
    elif broken == "predictions":
        folder.predictions.write_bytes(folder.predictions.read_bytes()[:1000])
    else:
        out = tmp_path / "no" / "such.html"
    with pytest.raises(UserError) as refused:
        write_report(folder.path, out=out)
    assert str(tmp_path) in str(refused.value)
    assert not (folder.path / "report.html").exists()


def test_the_command_writes_the_page(tmp_path: Path) -> None:
    done = commands.osp(tmp_path, "report", finished("supervised").path, "--out", tmp_path / "p.html")
    assert (done.returncode, done.stderr) == (0, "")
    assert "p.html" in done.stdout
    wrong = commands.osp(tmp_path, "report", tmp_path)
    assert wrong.returncode == 2
    assert "no run folder" in wrong.stderr


def photos(root: Path) -> Path:
    """Two classes of colored noise with names that would be markup, and loose images of neither."""
    draws = np.random.default_rng(0)
    for name, color in ((EVIL, 60), ("b&amp;b", 160), ("", 230)):
        (root / name).mkdir(parents=True, exist_ok=True)
        for number in range(14):
            pixels = np.clip(draws.normal(color, 30, (40, 40, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(root / name / f"{number}.png")
    return root


def photo_run(tmp_path: Path) -> Path:
    recipe = Recipe(
        data="folder", data_dir=str(photos(tmp_path / "photos")), method="supervised", scale="demo", steps=3,
        labels_per_class=3, val_per_class=2, network="small",
    )  # fmt: skip
    return osp.train(recipe, tmp_path / "run", progress=False).path


VISIBLE = "return [...document.querySelectorAll(arguments[0])].filter(e => e.getBoundingClientRect().width > 0).length"


def test_the_page_works_in_a_browser(tmp_path: Path) -> None:
    run = finished()
    path = write_report(run.path, finished("supervised").path, tmp_path / "report.html")
    with browser(tmp_path / "browser") as shown:
        for width, scheme, media in ((1100, "light", "screen"), (1100, "dark", "screen"), (390, "light", "screen"),
                                     (700, "light", "print")):  # fmt: skip
            shown.emulate(width, scheme=scheme, media=media)
            shown.open(path)
            assert shown.run("return document.documentElement.scrollWidth") <= width
            ink, paper = shown.run("const s = getComputedStyle(document.body); return [s.color, s.backgroundColor]")
            assert (brightness(ink) > brightness(paper)) == (scheme == "dark")
        shown.emulate(1100)
        shown.open(path)
        shown.run("for (const image of document.images) image.loading = 'eager'")
        loaded = "return [...document.images].map(i => i.decode().then(() => i.naturalWidth > 0, () => false))"
        assert all(shown.run(f"return Promise.all((() => {{ {loaded} }})())"))
        assert shown.run("return document.images.length") > 50

        points = "#map-plot use[data-i]"
        count = shown.run(VISIBLE, points)
        assert count == 359 + 237
        shown.point_at(f"{points}[data-class='2']")
        assert shown.run("return document.getElementById('tip').hidden") is False
        assert "2; predicted" in shown.run("return document.getElementById('tip').textContent")
        assert "data:image" in shown.run("return document.querySelector('#tip i').style.backgroundImage")
        shown.run("document.querySelector('.chip[data-class=ood]').click()")
        assert shown.run(VISIBLE, points) == 359
        shown.run("document.getElementById('only-mistakes').click()")
        wrong = 359 - np.trace(np.array(run.result["confusion"]))
        assert shown.run(VISIBLE, points) == wrong
        shown.run("document.getElementById('only-mistakes').click()")
        shown.run("document.querySelector('.chip[data-class=ood]').click()")
        assert shown.run(VISIBLE, points) == count

        everything = shown.run(VISIBLE, ".shot")
        box = "const box = document.getElementById('gallery-class');"
        choose = f"{box} box.value = arguments[0]; box.dispatchEvent(new Event('change'))"
        shown.run(choose, "1")
        some = shown.run(VISIBLE, ".shot")
        assert 0 < some < everything
        assert shown.run(VISIBLE, ".shot:not([data-class='1'])") == 0
        shown.run(choose, "")
        assert shown.run(VISIBLE, ".shot") == everything
        assert shown.complaints() == []


def brightness(color: str) -> float:
    return sum(float(part) for part in color.strip("rgba()").split(",")[:3])


def test_names_from_disk_are_text_in_the_browser(tmp_path: Path) -> None:
    path = write_report(photo_run(tmp_path))
    assert EVIL not in path.read_text()
    with browser(tmp_path / "browser") as shown:
        shown.open(path)
        options: list[Any] = shown.run("return [...document.querySelectorAll('option')].map(o => o.textContent)")
        assert sorted(options) == sorted(["all classes", EVIL, "b&amp;b"])
        assert shown.run("return document.querySelectorAll('img[onerror]').length") == 0
        assert "It calls" in shown.run("return document.body.textContent")
        assert shown.complaints() == []


def test_the_names_of_classes_come_with_the_result_and_else_are_numbers(tmp_path: Path) -> None:
    whole = finished().path
    assert Run.read(whole).class_names == ("0", "1", "2", "3", "4", "5")
    path = Path(shutil.copytree(whole, tmp_path / "run"))
    (path / "result.json").write_text('{"accuracy": null}', "utf-8")
    assert Run.read(path).class_names == tuple(f"class {number}" for number in range(6))
    assert "predicted class" in write_report(path).read_text("utf-8")


def test_the_page_of_a_run_with_code_of_the_users_own_says_how_to_name_it_and_takes_it(tmp_path: Path) -> None:
    source = """
from torch import nn

from osp.nets import NetworkSpec


def build(shape, width):
    return nn.Sequential(nn.Conv2d(shape[0], width, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())


NETWORK = NetworkSpec("tiny-WIDTH", build, "one convolution", "mine", "MIT", example="tiny-4", cam_layer="1")
"""
    (tmp_path / "tiny.py").write_text(source, encoding="utf-8")
    words = ["--data", "digits", "--scale", "demo", "--method", "supervised", "--set", "steps=2", "--out", "run"]
    trained = commands.osp(tmp_path, "train", *words, "--network", "./tiny.py")
    assert trained.returncode == 0, trained.stderr
    plugins._trusted.clear()
    done = commands.osp(tmp_path, "report", "run")
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "run" / "report.html").read_text()
    assert "osp train --recipe recipe.yaml --out again --network ./tiny.py" in text
    assert "network=" in text  # why there is no Grad-CAM
    assert commands.osp(tmp_path, "report", "run", "--code", "./tiny.py").returncode == 0
    assert "network=" not in (tmp_path / "run" / "report.html").read_text()
