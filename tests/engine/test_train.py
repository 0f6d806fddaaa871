"""From a recipe to a run folder, in runs of a fraction of a second."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_runs import everything, result, small
from torch import Tensor, nn

import osp
from helpers.runs import Recorder, run, weights
from osp import Recipe, UserError
from osp.data.split import Split
from osp.engine.data import open_again
from osp.evaluate.predictions import Predictions
from osp.files import read_arrays, write_arrays
from osp.methods import available
from osp.runs.checkpoint import load_checkpoint
from osp.runs.folder import RunFolder
from osp.runs.run import Run
from osp.verify import verify_run


def test_what_is_no_recipe_is_refused_in_a_sentence() -> None:
    with pytest.raises(UserError, match=r"not 'osp': osp\.train\(osp\.Recipe\(method='osp'\)\)"):
        osp.train("osp")  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"A recipe is wanted, not None: osp\.train\(osp\.Recipe\(data="):
        osp.train(None)  # type: ignore[arg-type]


def test_what_the_docs_name_is_reachable_from_the_package() -> None:
    for name in ("data", "methods", "nets", "parts", "scores"):
        assert name in dir(osp)
    assert "energy" in osp.scores.available()


KEYS = [
    "method",
    "dataset",
    "data_variant",
    "ood_ratio",
    "labels_per_class",
    "preset",
    "scale",
    "seed",
    "steps",
    "images_seen",
    "seconds",
    "accuracy",
    "auroc",
    "msp_auroc",
    "pool_auroc",
    "aupr_id",
    "aupr_ood",
    "fpr95",
    "purity",
    "recall",
    "angle",
    "interclass_variance",
    "warnings",
]


@pytest.fixture(scope="module")
def fixmatch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(small("fixmatch"), tmp_path_factory.mktemp("fixmatch") / "run").path


def test_a_result_holds_every_number_and_none_that_is_no_number(fixmatch: Path) -> None:
    text = (fixmatch / "result.json").read_text(encoding="utf-8")
    found = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} in result.json"))
    assert set(KEYS) <= found.keys()
    assert (found["steps"], found["images_seen"]) == (12, 12 * (8 + 2 * 16))
    assert (found["ood_ratio"], found["labels_per_class"], found["method"]) == (0.6, 10, "fixmatch")
    for key in ("accuracy", "auroc", "msp_auroc", "pool_auroc", "aupr_id", "aupr_ood", "fpr95"):
        assert 0 <= found[key] <= 100
    assert found["purity"] is found["recall"] is None  # it partitions nothing


def test_the_log_has_a_line_for_each_interval_and_the_end(fixmatch: Path) -> None:
    lines = RunFolder(fixmatch).read_metrics()
    assert [line["step"] for line in lines if line["kind"] == "train"] == [3, 6, 9, 12]
    assert [line["step"] for line in lines if line["kind"] == "eval"] == [9, 12]
    for line in lines:
        if line["kind"] == "train":
            assert {"loss", "ce", "consistency", "mask_rate", "lr", "images_seen"} <= line.keys()
            assert line["loss"] == pytest.approx(line["ce"] + line["consistency"], rel=1e-5)


def test_the_same_recipe_gives_the_same_run_and_another_seed_another(fixmatch: Path, tmp_path: Path) -> None:
    again = run(osp.Recipe.read(fixmatch / "recipe.yaml"), tmp_path / "again")
    assert result(again.path) == result(fixmatch)
    assert all(torch.equal(a, b) for a, b in zip(weights(again.path).values(), weights(fixmatch).values(), strict=True))
    other = run(small("fixmatch", seed=1), tmp_path / "other")
    assert other.result["interclass_variance"] != again.result["interclass_variance"]


def test_the_split_in_the_run_is_the_one_that_was_used(fixmatch: Path) -> None:
    split = Split.load(fixmatch / "split.npz")
    found = result(fixmatch)
    assert len(split.labeled) == 6 * found["labels_per_class"]
    assert len(split.unlabeled) == found["unlabeled"]
    assert split.unlabeled_is_ood.mean() == pytest.approx(0.6, abs=5e-3)  # equal numbers from each class


def test_without_ood_images_the_numbers_about_them_are_null(tmp_path: Path) -> None:
    found = run(small("fixmatch", ood_ratio=0.0, id_classes=tuple(range(10))), tmp_path / "run").result
    assert found["accuracy"] is not None
    for key in ("auroc", "msp_auroc", "pool_auroc", "aupr_id", "aupr_ood", "fpr95", "angle"):
        assert found[key] is None


def test_without_validation_images_the_last_model_is_tested_all_the_same(tmp_path: Path) -> None:
    found = run(small("fixmatch", val_per_class=0), tmp_path / "run")
    assert found.result["val_accuracy"] is None
    assert found.result["accuracy"] is not None
    assert not RunFolder(found.path).best.exists()
    assert 0 < found.model.thresholds["softmax"] < 1


def test_supervised_needs_no_unlabelled_images_and_others_say_that_they_do(tmp_path: Path) -> None:
    found = run(small("supervised", unlabeled=0), tmp_path / "run").result
    assert (found["unlabeled"], found["pool_auroc"]) == (0, None)
    for method in ("fixmatch", "curriculum"):  # a stream of unlabelled images, and one of both
        with pytest.raises(UserError, match="draws from unlabeled images, but the split has none"):
            run(small(method, unlabeled=0), tmp_path / "other")
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"network": "wrn-11-1"}, "depth must be 6n"),
        ({"network": "cnnn"}, "Did you mean 'cnn'"),
        ({"labels_per_class": 100_000}, "100"),
        ({"device": "cuda"}, "no CUDA device"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_is_written(fields: dict[str, Any], message: str, tmp_path: Path) -> None:
    if fields.get("device") == "cuda" and torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(UserError, match=message):
        run(small(**fields), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("every", [{"log_every": 1, "eval_every": 100}, {"log_every": 100, "eval_every": 1}])
def test_a_loss_that_is_no_longer_a_number_ends_the_run_with_its_step(every: dict[str, Any], tmp_path: Path) -> None:
    recipe = small(network="wrn-10-1", steps=30, options={"lr": 1e20}, **every)
    with pytest.raises(UserError, match=r"no longer (a number|numbers) at step \d+.* --set lr=3\.3e\+19"):
        run(recipe, tmp_path / "run")


def test_an_idle_mechanism_is_a_warning_and_an_active_one_is_not(tmp_path: Path) -> None:
    idle = run(small("fixmatch", options={"threshold": 1.0}), tmp_path / "idle").result
    assert idle["warnings"] == ["fixmatch: mask_rate was 0 on average; the method's mechanism was idle"]
    active = run(small("fixmatch", options={"threshold": 0.0}), tmp_path / "active").result
    assert active["warnings"] == []


def test_a_refresh_that_keeps_nothing_leaves_the_stream_as_it_was_and_warns(tmp_path: Path) -> None:
    source = Path(everything(tmp_path)).read_text(encoding="utf-8")
    (tmp_path / "nothing.py").write_text(
        source.replace("keep = confidence > confidence.median()", "keep = confidence > 2"), encoding="utf-8"
    )
    (tmp_path / "nothing.py").write_text(
        (tmp_path / "nothing.py").read_text(encoding="utf-8").replace("assert self.keep[", "assert not self.keep["),
        encoding="utf-8",
    )
    display = Recorder()
    found = run(small(str(tmp_path / "nothing.py"), steps=8), tmp_path / "run", display=display).result
    sentence = "nothing was kept for the unlabeled stream; it keeps what it had"
    assert found["warnings"].count(sentence) == 1
    assert f"step 2: {sentence}" in display.said
    assert (found["purity"], found["recall"]) == (None, 0.0)


def test_purity_and_recall_come_from_the_last_partition(tmp_path: Path) -> None:
    path = run(small(everything(tmp_path), steps=16), tmp_path / "run").path
    kept = weights(path)["method/keep"].numpy()
    is_ood = Split.load(path / "split.npz").unlabeled_is_ood
    expected = [100 * (kept & ~is_ood).sum() / kept.sum(), 100 * (kept & ~is_ood).sum() / (~is_ood).sum()]
    assert [result(path)["purity"], result(path)["recall"]] == pytest.approx(expected, abs=1e-3)


def test_a_network_of_ones_own_is_trained_and_loaded(tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.ReLU())
    done = run(small(steps=40), tmp_path / "run", network=network)
    assert done.result["network"] == "custom"
    assert done.result["accuracy"] > 30  # chance is 17; four seeds: 53.8 to 79.1
    images = np.zeros((2, 8, 8), np.uint8)
    assert done.model.features(images).shape == (2, 12)
    with pytest.raises(UserError, match=r"network of your own: give the module again"):
        osp.load(done.path)
    assert osp.load(done.path, network=network).features(images).shape == (2, 12)


class Wrong(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        return images


class Broken(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        raise ValueError("too small for me")


def test_a_network_of_the_wrong_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"must turn 2 images into 2 feature vectors .* gave \(2, 1, 8, 8\)"):
        run(small(), tmp_path / "run", network=Wrong())
    with pytest.raises(UserError, match=r"does not accept images of shape \(1, 8, 8\): too small for me"):
        run(small(), tmp_path / "run", network=Broken())
    lying = nn.Sequential(nn.Flatten(), nn.Linear(64, 12))
    lying.feature_dim = 99  # type: ignore[assignment]
    assert run(small(), tmp_path / "run", network=lying).result["steps"] == 12


def test_bf16_arithmetic_runs(tmp_path: Path) -> None:
    found = run(small("fixmatch", precision="bf16-mixed", network="small"), tmp_path / "run").result
    assert found["accuracy"] is not None


@pytest.mark.nightly
@pytest.mark.skipif(shutil.which("c++") is None and shutil.which("g++") is None, reason="no compiler")
def test_a_compiled_network_gives_a_model_that_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    done = run(small(compile=True, steps=2, eval_every=2), tmp_path / "run")
    assert done.model.predict(np.zeros((3, 8, 8), np.uint8)).shape == (3,)


def test_tensorboard_gets_the_numbers_of_the_log(tmp_path: Path) -> None:
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    done = run(small(tensorboard=True), tmp_path / "run")
    events = reader.EventAccumulator(str(done.path / "tensorboard"))
    events.Reload()
    logged = [line["loss"] for line in RunFolder(done.path).read_metrics() if "loss" in line]
    assert [event.step for event in events.Scalars("train/loss")] == [3, 6, 9, 12]
    assert [event.value for event in events.Scalars("train/loss")] == pytest.approx(logged)


def test_the_best_model_by_validation_is_kept_and_can_be_loaded(fixmatch: Path) -> None:
    best = osp.load(fixmatch / "checkpoints" / "best.safetensors")
    values = [line["val_accuracy"] for line in RunFolder(fixmatch).read_metrics() if "val_accuracy" in line]
    train, _ = osp.data.load("digits")
    split = Split.load(fixmatch / "split.npz")
    predicted = best.predict(train.images[split.val][:, 0])
    assert 100 * (predicted == split.val_targets).mean() == pytest.approx(max(values))


def test_the_averaged_weights_are_the_ones_that_are_tested(tmp_path: Path) -> None:
    """At a decay of almost one the average stays at the warm-up's; without one the last weights are reported."""
    with_average = run(small("fixmatch", options={"ema": 0.999999}), tmp_path / "average")
    without = run(small("fixmatch", options={"ema": None}), tmp_path / "last")
    first, second = (load_checkpoint(each.path / "model.safetensors")[0] for each in (with_average, without))
    assert not torch.equal(first["classifier/weight"], second["classifier/weight"])
    test = osp.data.load("digits")[1]
    assert test is not None
    split = Split.load(with_average.path / "split.npz")
    predicted = with_average.model.predict(test.images[split.test][:, 0])
    assert 100 * (predicted == split.test_targets).mean() == pytest.approx(with_average.result["accuracy"], abs=1e-3)


def test_a_method_never_meets_the_truth_about_unlabelled_images(tmp_path: Path) -> None:
    source = """
import torch
from osp.methods import Method, StreamSpec

SEEN = []

class Spy(Method):
    def stages(self):
        return [self.stage(refresh=0.5)]

    def streams(self, stage):
        return {part: StreamSpec(part, 16, ("weak",)) for part in ("labeled", "unlabeled", "joint", "val")}

    def refresh(self, step, pool):
        assert sorted(pool.labels("labeled").unique().tolist()) == list(range(6))
        try:
            pool.labels("unlabeled")
        except KeyError:
            self.log("refused", 1.0)

    def losses(self, batch, step):
        assert batch["unlabeled"].labels is None
        joint = batch["joint"]
        assert (joint.labels[joint.rows >= self.task.num_labeled] == -1).all()
        assert (joint.labels[joint.rows < self.task.num_labeled] >= 0).all()
        assert not any("ood" in name for name in (*vars(self.task), *vars(step), *vars(joint)))
        return {"ce": torch.nn.functional.cross_entropy(self.net(batch["labeled"]["weak"]), batch["labeled"].targets)}
"""
    (tmp_path / "spy.py").write_text(source, encoding="utf-8")
    path = run(small(str(tmp_path / "spy.py"), steps=20, log_every=1), tmp_path / "run").path
    assert RunFolder(path).read_metrics()[0]["refused"] == 1.0


@pytest.mark.parametrize("method", available())
def test_every_method_runs_and_its_model_loads(method: str, short_run: Callable[[str], tuple[Recipe, Path]]) -> None:
    recipe, path = short_run(method)
    assert result(path)["steps"] == recipe.steps
    assert osp.load(path).predict(np.zeros((2, 8, 8), np.uint8)).shape == (2,)


@pytest.mark.parametrize("network", ["cnn", "small", "wrn-10-1"])
def test_a_pass_over_no_images_gives_results_of_the_right_shape(network: str, tmp_path: Path) -> None:
    source = """
import torch
from osp.methods.supervised import Supervised as Base

class Empty(Base):
    def begin_stage(self, step, pool):
        features, logits = pool.map(lambda images: (self.net.encode(images), self.net(images)), part="val")
        assert features.shape == (0, self.net.feature_dim) and logits.shape == (0, self.task.num_classes)
        (none,) = pool.map(self.net, part="unlabeled", rows=torch.arange(0))
        assert none.shape == (0, self.task.num_classes)
        self.log("looked", 1.0)
"""
    (tmp_path / "empty.py").write_text(source, encoding="utf-8")
    recipe = small(str(tmp_path / "empty.py"), steps=2, log_every=1, val_per_class=0, unlabeled=30, network=network)
    assert RunFolder(run(recipe, tmp_path / "run").path).read_metrics()[0]["looked"] == 1.0


def test_a_pass_in_pieces_gives_the_rows_in_their_order(tmp_path: Path) -> None:
    source = """
import torch
from osp.methods.supervised import Supervised as Base

class Looks(Base):
    def begin_stage(self, step, pool):
        images, brightness = pool.map(lambda images: (images, images.mean((1, 2, 3))))
        assert len(images) == self.task.num_unlabeled > 560
        rows = torch.tensor([560, 0, 255, 256, 511, 512])
        (chosen,) = pool.map(lambda images: images, rows=rows)
        assert torch.equal(chosen, images[rows])
        torch.testing.assert_close(brightness, images.mean((1, 2, 3)))
        self.log("distinct", float(len(images.unique(dim=0))))
"""
    (tmp_path / "looks.py").write_text(source, encoding="utf-8")
    recipe = small(str(tmp_path / "looks.py"), steps=2, log_every=1, unlabeled=590, ood_ratio=0.0)
    assert RunFolder(run(recipe, tmp_path / "run").path).read_metrics()[0]["distinct"] > 560


def test_a_pass_whose_function_loses_rows_is_refused(tmp_path: Path) -> None:
    source = """
from osp.methods.supervised import Supervised as Base

class Loses(Base):
    def begin_stage(self, step, pool):
        pool.map(lambda images: self.net(images)[:1])
"""
    (tmp_path / "loses.py").write_text(source, encoding="utf-8")
    with pytest.raises(ValueError, match=r"gave \(1, 6\) for \d+ images"):
        run(small(str(tmp_path / "loses.py"), steps=2, unlabeled=30), tmp_path / "run")


def test_a_large_gradient_is_clipped_to_the_option(tmp_path: Path) -> None:
    """One step of plain SGD at rate 1 moves the weights by the norm of the gradient."""

    def moved(clip: float | None) -> float:
        options = {"clip": clip, "lr": 1.0, "momentum": 0.0, "weight_decay": 0.0, "warmup": 0.0}
        name = f"clip-{clip}"
        before = run(small("supervised", steps=1, options={**options, "lr": 1e-12}), tmp_path / f"{name}-before")
        after = run(small("supervised", steps=1, options=options), tmp_path / name)
        first, last = weights(before.path), weights(after.path)
        names = [name for name in first if name.startswith("method/net")]
        return float(torch.cat([(last[name] - first[name]).flatten() for name in names]).norm())

    assert moved(0.01) == pytest.approx(0.01, rel=1e-3)
    assert moved(None) > 0.02


def test_mixed_precision_keeps_no_casts_of_weights_from_passes_without_a_graph(tmp_path: Path) -> None:
    source = """
import torch
from osp.methods.fixmatch import FixMatch as Base


class Asks(Base):
    name = "asks"

    def losses(self, batch, step):
        assert torch.is_autocast_enabled("cpu") and not torch.is_autocast_cache_enabled()
        return super().losses(batch, step)
"""
    (tmp_path / "asks.py").write_text(source, encoding="utf-8")
    run(small(str(tmp_path / "asks.py"), steps=2, precision="bf16-mixed"), tmp_path / "run")
    assert torch.is_autocast_cache_enabled()


def test_testing_on_another_set_keeps_what_was_found_on_the_earlier_ones(tmp_path: Path) -> None:
    first = run(small(test_ood=["uniform"]), tmp_path / "run")
    again = run(small(test_ood=["gaussian"]), tmp_path / "run", resume=True)
    assert again.result["other_ood"].keys() == {"uniform", "gaussian"}
    assert again.result["other_ood"]["uniform"] == first.result["other_ood"]["uniform"]
    assert run(small(), tmp_path / "run", resume=True).result == again.result
    assert not verify_run(tmp_path / "run").problems
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    result["other_ood"]["lsun"] = result["other_ood"].pop("uniform")  # of which the images are no longer here
    (tmp_path / "run" / "result.json").write_text(json.dumps(result))
    arrays = read_arrays(tmp_path / "run" / "predictions.npz")
    write_arrays(
        tmp_path / "run" / "predictions.npz",
        {key.replace("ood:uniform/", "ood:lsun/"): values for key, values in arrays.items()},
    )
    more = run(small(test_ood=["uniform"]), tmp_path / "run", resume=True)
    assert more.result["other_ood"] == {**again.result["other_ood"], "lsun": again.result["other_ood"]["uniform"]}
    with pytest.raises(UserError, match="test_ood digits: these images are in the run already"):
        run(small(test_ood=["digits"]), tmp_path / "run", resume=True)
    with pytest.raises(UserError, match="Unknown data set 'unifrom'"):
        run(small(test_ood=["unifrom"]), tmp_path / "run", resume=True)
    with pytest.raises(UserError, match="threads: 5000 asked for"):
        run(small(threads=5000), tmp_path / "run", resume=True)


def test_images_of_a_run_are_shown_without_the_other_ood_sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = run(small(test_ood=["uniform"]), tmp_path / "run").path
    monkeypatch.setattr("osp.engine.data.other_images", lambda *_: pytest.fail("opened"))
    data = open_again(Run.read(path))
    assert not data.other_ood
    predictions = Predictions.load(path / "predictions.npz")
    ids = predictions.pool.ids.copy()
    ids[0] = 10**9
    others = replace(predictions, pool=replace(predictions.pool, ids=ids))
    write_arrays(path / "predictions.npz", others.arrays())
    with pytest.raises(UserError, match=r"predictions.npz is not of this run: its .* images of pool are not the"):
        open_again(Run.read(path))


OWN_NAMES = """
import torch
from osp.methods import Method


class Mine(Method):
    unlabeled_views = ()

    def losses(self, batch, step):
        loss = self.net(batch["labeled"]["weak"]).square().mean()
        LOG
        return TERMS

    def artifacts(self):
        return {"split": {"a": torch.zeros(1)}, "more": {"a": torch.zeros(1)}}
"""


@pytest.mark.parametrize(
    ("log", "terms", "problem"),
    [
        ('self.log("step", 0.5)', '{"loss": loss}', "log: the log of a run has a 'step' of its own"),
        ("", '{"loss": loss, "reg": loss}', "losses: the log of a run has a 'loss' of its own"),
        ("", '{"loss": loss}', None),
    ],
)
def test_a_method_cannot_overwrite_numbers_or_files_of_the_run(
    log: str, terms: str, problem: str | None, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(OWN_NAMES.replace("LOG", log or "pass").replace("TERMS", terms), "utf-8")
    recipe = small(str(tmp_path / "mine.py")).model_copy(update={"options": {"batch": 8}})
    if problem:
        with pytest.raises(UserError, match=problem):
            run(recipe, tmp_path / "run")
        return
    run(recipe, tmp_path / "run")
    assert {"method-split.npz", "more.npz"} <= {file.name for file in (tmp_path / "run").iterdir()}
    assert len(Split.load(tmp_path / "run" / "split.npz").labeled)
