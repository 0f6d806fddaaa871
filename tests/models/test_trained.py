"""The trained model: what it says, of which images, and what it refuses."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import osp
from osp import Predictor, Recipe, Run, UserError
from osp.data.split import Split
from osp.engine.progress import Display
from osp.engine.train import train
from osp.evaluate.predictions import Predictions
from osp.runs.checkpoint import load_checkpoint, save_checkpoint


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    recipe = Recipe(method="fixmatch", scale="demo", steps=60, eval_every=60, ood_ratio=0.3, options={"mu": 2})
    return train(recipe, tmp_path_factory.mktemp("model") / "run")


@pytest.fixture(scope="module")
def images(run: Run) -> np.ndarray:
    """The run's test images, N×H×W."""
    test = osp.data.load("digits")[1]
    assert test is not None
    chosen: np.ndarray = test.images[Split.load(run.path / "split.npz").test][:, 0]
    return chosen


def test_the_model_has_the_accuracy_that_the_run_reports(run: Run, images: np.ndarray) -> None:
    targets = Split.load(run.path / "split.npz").test_targets
    accuracy = 100 * (run.model.predict(images) == targets).mean()
    assert accuracy == pytest.approx(run.result["accuracy"], abs=1e-3)
    assert accuracy > 60


def test_outputs_have_one_row_an_image(run: Run, images: np.ndarray) -> None:
    model = run.model
    assert model.class_names == ("0", "1", "2", "3", "4", "5")
    some = images[:300]
    probabilities = model.predict_proba(some)
    assert probabilities.shape == (300, 6)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-5)
    assert np.array_equal(probabilities.argmax(axis=1), model.predict(some))
    np.testing.assert_allclose(model.ood_score(some, "softmax"), 1 - probabilities.max(axis=1), atol=1e-6)
    assert np.array_equal(model.ood_score(some), model.ood_score(some, "pool"))
    assert model.features(some).shape == (300, 32 * 2 * 2)
    assert all(output.dtype == np.float32 for output in (probabilities, model.ood_score(some), model.features(some)))


def test_95_percent_of_the_validation_images_lie_below_the_threshold(run: Run) -> None:
    training, _ = osp.data.load("digits")
    split = Split.load(run.path / "split.npz")
    scores = run.model.ood_score(training.images[split.val][:, 0])
    assert run.model.threshold == run.result["threshold"]
    assert run.model.threshold == pytest.approx(float(np.quantile(scores, 0.95)), rel=1e-4)


def test_grey_images_may_come_with_a_channel_or_as_rgb(run: Run, images: np.ndarray) -> None:
    some = images[:20]
    expected = run.model.predict_proba(some)
    np.testing.assert_allclose(run.model.predict_proba(some[..., None]), expected, rtol=1e-5)
    rgb = np.repeat(some[..., None], 3, axis=3)
    np.testing.assert_allclose(run.model.predict_proba(rgb), expected, rtol=1e-4, atol=1e-5)


def resized(images: np.ndarray, width: int, height: int) -> np.ndarray:
    bilinear = Image.Resampling.BILINEAR
    return np.stack([np.asarray(Image.fromarray(image).resize((width, height), bilinear)) for image in images])


def test_images_of_another_size_are_resized(run: Run, images: np.ndarray) -> None:
    larger = resized(images, 24, 24)
    assert (run.model.predict(larger) == run.model.predict(images)).mean() > 0.9
    wide = np.pad(larger, ((0, 0), (0, 0), (8, 8)))  # the middle square is what counts, as in training
    assert np.array_equal(run.model.predict(wide), run.model.predict(larger))


def test_paths_pillow_images_and_lists_of_mixed_sizes_will_do(run: Run, images: np.ndarray, tmp_path: Path) -> None:
    Image.fromarray(images[0]).save(tmp_path / "zero.png")
    mixed = [tmp_path / "zero.png", Image.fromarray(images[1]), images[2], resized(images[3:4], 16, 16)[0]]
    found = run.model(mixed)
    assert np.array_equal(found.classes[:3], run.model.predict(images[:3]))
    assert found.probabilities.shape == (4, 6)
    assert np.array_equal(found.is_ood, found.ood_score > run.model.threshold)


def test_every_score_can_be_asked_for_after_the_fact(run: Run, images: np.ndarray) -> None:
    model = run.model
    probabilities = model.predict_proba(images[:50])
    np.testing.assert_allclose(model.ood_score(images[:50], score="softmax"), 1 - probabilities.max(axis=1), atol=1e-6)
    for name in ("energy", "knn", "mahalanobis", "vim"):
        assert np.isfinite(model.ood_score(images[:50], score=name)).all()
        assert run.result["scores"][name]["auroc"] is not None
    with pytest.raises(UserError, match=r"no OOD score 'enrgy'.* Did you mean 'energy'"):
        model.ood_score(images[:2], score="enrgy")


def test_a_model_says_what_it_is(run: Run) -> None:
    assert "6 classes: 0, 1, 2, 3, 4, 5" in repr(run.model)
    assert "fixmatch on digits" in repr(run.model)
    assert run.model.about["method"] == "fixmatch"
    assert run.model.about["method_version"] == run.plan.versions["method"]


def test_a_model_of_version_0_1_which_says_its_method_s_version_for_its_name_is_loaded(
    run: Run, tmp_path: Path
) -> None:
    tensors, meta = load_checkpoint(run.path / "model.safetensors")
    about = {"method": "1", "data": "digits", "seed": 0, "osp": "0.1.0", "harness": "1"}
    save_checkpoint(tmp_path / "old.safetensors", tensors, {**meta, "about": about})
    assert repr(osp.load(tmp_path / "old.safetensors")).endswith("; digits)")


def test_images_of_the_wrong_kind_are_refused(run: Run, images: np.ndarray) -> None:
    with pytest.raises(UserError, match=r"must be uint8 .* these are float64"):
        run.model.predict(images / 255)
    with pytest.raises(UserError, match=r"N×C×H×W .* these are \(8, 8\)"):
        run.model.predict(images[0])
    with pytest.raises(UserError, match=r"1 or 3 channels; these are \(2, 8, 8, 4\)"):
        run.model.predict(np.zeros((2, 8, 8, 4), np.uint8))
    with pytest.raises(UserError, match="no images to look at"):
        run.model.predict(images[:0])


def test_a_model_can_be_moved_to_another_folder(run: Run, images: np.ndarray, tmp_path: Path) -> None:
    target = tmp_path / "model.safetensors"
    target.write_bytes((run.path / "model.safetensors").read_bytes())
    assert np.array_equal(osp.load(target).predict(images), run.model.predict(images))
    assert isinstance(osp.load(str(target)), Predictor)


def test_what_is_no_model_is_refused(run: Run, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no run folder"):
        osp.load(tmp_path)
    with pytest.raises(UserError, match="is not there"):
        osp.load(tmp_path / "nowhere")
    (tmp_path / "text.safetensors").write_text("hello", encoding="utf-8")
    with pytest.raises(UserError, match="is damaged"):
        osp.load(tmp_path / "text.safetensors")
    tensors, meta = load_checkpoint(run.path / "model.safetensors")
    for lacking in ("network", "scores", "layers"):
        save_checkpoint(tmp_path / "part.safetensors", tensors, {k: v for k, v in meta.items() if k != lacking})
        with pytest.raises(UserError, match=f"no trained model .it lacks '{lacking}'"):
            osp.load(tmp_path / "part.safetensors")
    odd: list[dict[str, object]] = [
        {"layers": []},
        {"scores": []},
        {"std": [0.1, 0.2]},
        {"shape": [1]},
        {"class_names": 3},
    ]
    for broken in odd:
        save_checkpoint(tmp_path / "odd.safetensors", tensors, meta | broken)
        with pytest.raises(UserError):
            osp.load(tmp_path / "odd.safetensors")


@pytest.mark.parametrize("part", ["encoder/", "classifier/", "scores/knn/"])
def test_weights_that_are_no_numbers_or_of_another_type_are_refused(run: Run, tmp_path: Path, part: str) -> None:
    tensors, meta = load_checkpoint(run.path / "model.safetensors")
    name = next(each for each in tensors if each.startswith(part) and tensors[each].is_floating_point())
    for value in (torch.nan, torch.inf):
        changed = tensors[name].clone()
        changed.view(-1)[0] = value
        save_checkpoint(tmp_path / "odd.safetensors", {**tensors, name: changed}, meta)
        with pytest.raises(UserError, match=f"{name} holds a number that is infinite, or none"):
            osp.load(tmp_path / "odd.safetensors")
    if not part.startswith("scores"):
        save_checkpoint(tmp_path / "odd.safetensors", {**tensors, name: tensors[name].to(torch.int32)}, meta)
        with pytest.raises(UserError, match=r"holds torch\.int32"):
            osp.load(tmp_path / "odd.safetensors")


def test_an_unfinished_run_is_refused_with_what_to_do(tmp_path: Path) -> None:
    import signal

    from osp.engine.signals import Interrupted

    class Stop(Display):
        def step(self, done: int, stage: str) -> None:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted):
        train(Recipe(scale="demo", steps=3, options={"batch": 8}), tmp_path / "run", display=Stop())
    with pytest.raises(UserError, match="is not finished; continue it with --resume"):
        osp.load(tmp_path / "run")


def test_predictions_leave_torch_as_it_was(run: Run, images: np.ndarray) -> None:
    model = run.model
    torch.manual_seed(0)
    before = torch.get_rng_state()
    first = model.predict_proba(images[:9])
    assert torch.equal(torch.get_rng_state(), before)
    assert np.array_equal(first, model.predict_proba(images[:9]))
    assert torch.is_grad_enabled()


def test_a_photo_in_place_of_the_run_is_told(tmp_path: Path) -> None:
    (tmp_path / "cat.jpg").write_bytes(b"\xff\xd8")
    with pytest.raises(UserError, match=r"cat\.jpg is a file; the folder of a run is wanted, such as `osp predict RUN"):
        osp.load(tmp_path / "cat.jpg")


def test_one_threshold_holds_for_arrays_and_files_and_follows_the_accepted_share(tmp_path: Path) -> None:
    recipe = osp.Recipe(method="supervised", scale="demo", steps=3, threads=1, val_per_class=0)
    trained = train(recipe, tmp_path / "run")
    model = osp.load(trained.path)
    assert model.threshold_for(0.95) == model.threshold == trained.result["threshold"]
    assert model.threshold_for(0.5) < model.threshold < model.threshold_for(0.999)
    with pytest.MonkeyPatch.context() as patched:  # which is asked for every batch
        patched.setattr(Predictions, "load", lambda _: pytest.fail("read again"))
        assert model.threshold_for(0.9) <= model.threshold
    (trained.path / "predictions.npz").unlink()
    model = osp.load(trained.path)
    assert model.threshold_for(0.95) == model.threshold
    with pytest.raises(UserError, match=r"has only its threshold for 0\.95"):
        model.threshold_for(0.5)


def test_files_for_a_model_of_images_that_are_not_square_are_refused_in_a_sentence(run: Run, tmp_path: Path) -> None:
    model = osp.load(run.path)
    assert isinstance(model, Predictor)
    model.shape = (1, 8, 16)
    with pytest.raises(UserError, match="8×16 pixels, but files are cut to squares"):
        model.predict_files(tmp_path / "a.png")
