"""T2T: the partition and what each stream and term makes of it."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from digit_runs import POOL, FakePool, batch, by_hand, logged, short, step_at

from helpers.runs import run, weights
from osp import UserError
from osp.engine.schedule import Timetable, refreshes
from osp.methods.base import Batch, Step
from osp.methods.t2t import T2T
from osp.parts import otsu_threshold
from osp.parts.clusters import fit_clusters
from osp.parts.neighbors import fit_neighbors
from osp.parts.partition import ranked
from osp.parts.pool_score import ask_pool


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What each fine-tuning step of the runs to come saw: rows of the streams, and which rows were kept."""
    steps: list[dict[str, Any]] = []
    original = T2T.finetuning

    def spy(method: T2T, batch: Batch, step: Step) -> Any:
        rows = {name: sample.rows.clone() for name, sample in batch.items()}
        steps.append({**rows, "kept": method.kept_rows.clone()})
        return original(method, batch, step)

    monkeypatch.setattr(T2T, "finetuning", spy)
    return steps


def test_from_each_partition_on_only_kept_images_are_made_consistent(
    seen: list[dict[str, Any]], tmp_path: Path
) -> None:
    result = run(short("t2t", options={"refresh": 0.25}), tmp_path / "run").result
    assert len(seen) == 32
    partitions = {tuple(each["kept"].tolist()) for each in seen}
    assert len(partitions) > 1
    for each in seen:
        assert each["kept"][each["unlabeled"]].all()
    pool = torch.cat([each["pool"] for each in seen])
    assert not torch.stack([each["kept"] for each in seen]).all()
    assert not seen[0]["kept"][pool].all()  # rotations are learned from all
    assert 0 < result["purity"] <= 100
    assert 0 < result["recall"] <= 100
    assert not result["warnings"] or all("kept" not in warning for warning in result["warnings"])


def test_consistency_from_all_leaves_the_stream_alone(seen: list[dict[str, Any]], tmp_path: Path) -> None:
    run(short("t2t", options={"consistency_from": "all"}), tmp_path / "run")
    assert not all(bool(each["kept"][each["unlabeled"]].all()) for each in seen)


def test_the_log_and_the_result_tell_of_the_partition(tmp_path: Path) -> None:
    finished = run(short("t2t", eval_every=20, options={"refresh": 0.1}), tmp_path / "run")
    kept = weights(finished.path)["method/kept_rows"].float().mean().item()
    shares = [line["kept_share"] for line in logged(finished) if "kept_share" in line]
    assert len(shares) == 10
    assert shares[-1] == pytest.approx(kept, abs=1e-6)
    cuts = logged(finished, kind="cut")
    assert len(cuts) == 10
    assert (cuts[-1]["purity"], cuts[-1]["recall"]) == pytest.approx(
        (finished.result["purity"], finished.result["recall"]), abs=1e-3
    )
    evaluated = logged(finished, kind="eval")[-1]
    assert evaluated["purity"] == pytest.approx(finished.result["purity"], abs=1e-3)
    assert evaluated["recall"] == pytest.approx(finished.result["recall"], abs=1e-3)


@pytest.mark.parametrize("variant", ["partition", "entropy", "off"])
@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_every_variant_of_the_unlabeled_terms_trains(variant: str, noise: float, tmp_path: Path) -> None:
    finished = run(short("t2t", 20, options={"unlabeled_matching": variant, "noise": noise}), tmp_path / "run")
    lines = logged(finished)
    assert ("matching_u" in lines[-1]) == (variant != "off")
    assert ("noise" in logged(finished, "pretrain")[-1]) == (noise > 0)
    assert all(math.isfinite(line["loss"]) for line in lines)


def test_two_classes_train(tmp_path: Path) -> None:
    lines = logged(run(short("t2t", id_classes=[0, 1]), tmp_path / "run"))
    assert all(math.isfinite(line["loss"]) for line in lines)


@pytest.mark.parametrize("partition_by", ["matching", "neighbors", "clusters"])
def test_a_run_that_diverges_says_so_when_the_pool_is_cut(partition_by: str, tmp_path: Path) -> None:
    wild = {"pretrain_lr": 1e20, "pretrain_schedule": "constant", "partition_by": partition_by}
    with pytest.raises(UserError, match=r"no longer numbers at step 8\."):
        run(short("t2t", options=wild, log_every=40, eval_every=40), tmp_path / "run")


def test_the_pool_is_cut_at_otsus_threshold_and_the_stream_restricted_to_what_is_kept() -> None:
    method, pool = by_hand(T2T, partition_by="matching", doubtful=0.0, cut_by="otsu"), FakePool()
    assert method.kept() is None
    method.refresh(step_at(0.0), pool)
    features = method.net.encode(pool.images)
    logits = method.net.classify(features)
    match = torch.sigmoid(method.matching.eval()(features, logits.argmax(dim=1)))
    assert len(method.scores) == POOL
    assert torch.equal(method.kept_rows, method.scores <= otsu_threshold(method.scores))
    assert 0 < method.kept_rows.sum() < POOL
    rows = pool.restricted["unlabeled"]
    assert rows is not None
    assert rows.tolist() == [row for row in range(POOL) if method.kept_rows[row]]
    torch.testing.assert_close(method.ood_score(features, logits), 1 - match)


@pytest.mark.parametrize("partition_by", ["pool", "clusters", "neighbors"])
def test_the_pool_can_be_cut_by_a_score_that_asks_it(partition_by: str) -> None:
    method, pool = by_hand(T2T, partition_by=partition_by, doubtful=0.0, cut_by="otsu"), FakePool()
    method.refresh(step_at(0.0), pool)
    labeled, others = (method.net.encode(images).detach() for images in (pool.labeled, pool.images))
    if partition_by == "neighbors":
        expected = fit_neighbors(labeled, others).score(others)
    else:
        fit = ask_pool if partition_by == "pool" else fit_clusters
        expected = fit(labeled, pool.labels("labeled"), others, method.task.num_classes).score(others)
    torch.testing.assert_close(method.scores, expected, rtol=1e-3, atol=1e-3)
    assert torch.equal(method.kept_rows, method.scores <= otsu_threshold(method.scores))
    assert set(pool.passes) == {("labeled", True), ("unlabeled", True)}


def test_scores_are_averaged_with_those_of_earlier_partitions() -> None:
    method = by_hand(T2T, score_memory=0.25)
    first, second = torch.rand(POOL), torch.rand(POOL)
    method.partition(first)
    assert torch.equal(method.scores, first)
    method.partition(second)
    torch.testing.assert_close(method.scores, 0.25 * first + 0.75 * second)


@pytest.mark.parametrize("doubtful", [0.0, 0.2, 0.5])
def test_the_images_around_the_threshold_are_doubtful(doubtful: float) -> None:
    method = by_hand(T2T, doubtful=doubtful)
    scores = torch.cat([torch.linspace(0.0, 0.3, 30), torch.linspace(0.8, 0.9, 10)])
    method.partition(scores)
    sure_kept, sure_aside = scores <= method.cut[0], scores >= method.cut[1]
    assert not (sure_kept & sure_aside).any()
    assert method.kept_rows[sure_kept].all()
    assert not method.kept_rows[sure_aside].any()
    assert int(sure_kept.sum()) == pytest.approx((1 - doubtful) * 30, abs=1)
    assert int(sure_aside.sum()) == pytest.approx((1 - doubtful) * 10, abs=1)


def test_a_pool_of_equal_scores_is_kept_whole() -> None:
    method, pool = by_hand(T2T), FakePool()
    method.partition(torch.full((POOL,), 0.25))
    assert method.kept_rows.all()
    loss = method.unlabeled_matching(method.net.encode(pool.images[:6]), torch.arange(6), step_at())
    assert loss.isfinite()


def test_unlabeled_pairs_are_matched_as_the_partition_says() -> None:
    method, pool = by_hand(T2T, doubtful=0.3), FakePool()
    method.matching.eval()
    method.partition(torch.linspace(0, 1, POOL))
    kept, aside = method.cut.tolist()
    assert kept < 0.4 < 0.6 < aside
    rows = torch.tensor([0, 5, 13, 18, 20, 35, 39, 39])
    features = method.net.encode(pool.images[rows])
    found = method.unlabeled_matching(features, rows, step_at())
    total, count = 0.0, 0
    for row, feature in zip(rows.tolist(), features, strict=True):
        score = method.scores[row].item()
        if kept < score < aside:
            continue
        predicted = method.net.classifier(feature[None]).argmax(dim=1)
        s = method.matching(feature[None], predicted).sigmoid().item()
        total -= math.log(s if score <= kept else 1 - s)
        count += 1
    assert count == 6
    assert found.item() == pytest.approx(total / count, rel=1e-5)


def test_unlabeled_terms_rise_over_the_ramp() -> None:
    method = by_hand(T2T, ramp=0.5)
    method.refresh(step_at(0.0), FakePool())
    method.matching.eval()
    first, half, last = (method.finetuning(batch(), step_at(progress)) for progress in (0.0, 0.25, 0.75))
    for name in ("consistency", "matching_u"):
        assert first[name].item() == 0.0
        assert half[name].item() == pytest.approx(0.5 * last[name].item(), rel=1e-5)
    for name in ("ce", "rotation"):
        assert first[name].item() == last[name].item()


def test_weak_views_need_no_graph() -> None:
    encoded = by_hand(T2T).encode(batch())
    assert not encoded.weak.requires_grad
    assert not encoded.weak_logits.requires_grad
    assert encoded.strong.requires_grad
    assert encoded.labeled.requires_grad
    assert encoded.pool.requires_grad


def test_ranked_is_the_score_below_which_a_share_lies() -> None:
    scores = torch.tensor([0.4, 0.1, 0.3, 0.2])
    assert ranked(scores, 0.5, 0.0).item() == pytest.approx(0.3)
    assert ranked(scores, 0.0, 0.0).item() == pytest.approx(0.1)
    assert ranked(scores, 1.0, 0.0).item() == pytest.approx(0.4)
    assert ranked(scores[:0], 0.5, 0.7).item() == pytest.approx(0.7)


def test_pre_training_and_fine_tuning_share_the_run() -> None:
    pretraining, finetuning = by_hand(T2T, pretrain_share=0.25, pretrain_lr=0.1, lr=0.01, refresh=0.2).stages()
    assert (pretraining.share, pretraining.lr, pretraining.refresh) == (0.25, 0.1, None)
    assert (finetuning.share, finetuning.lr, finetuning.refresh) == (0.75, 0.01, 0.2)


@pytest.mark.parametrize(
    ("steps", "unlabeled", "passes"),
    [(1500, 800, 10), (3000, 20_000, 10), (1500, 29_500, 3), (1500, 30_000, 3), (1500, 44_000, 2), (100, 10**6, 1)],
)
def test_passes_over_a_large_pool_are_fewer(steps: int, unlabeled: int, passes: int) -> None:
    """A step of 64 + 320 + 256 images with a gradient and 320 without counts as 3 * 640 + 320 = 2,240 images."""
    method = by_hand(T2T, refresh_cost=1 / 25)
    method.task = replace(method.task, steps=steps, num_unlabeled=unlabeled)
    timetable = Timetable.make(method.stages(), steps, seed=0)
    at = [index for index in range(steps) if refreshes(timetable.step(index))]
    assert len(at) == passes
    assert at[-1] <= 0.2 * steps + 0.8 * steps * (passes - 1) / passes + 1  # none shortly before the end
    images, afforded = passes * unlabeled, 2240 * 0.8 * steps / 25
    assert images <= afforded or passes == 1
    assert passes == 10 or images + unlabeled > afforded
