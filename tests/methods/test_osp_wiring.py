"""OSP's wires: which module and image L_odc reaches, its ramp and weights, what enters the bank and when; by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from digit_runs import NUM_CLASSES, POOL, TASK, FakePool, batch, by_hand, refreshed, step_at, with_batch_norm
from test_t2t_wiring import REACHED, differentiable, learned_from, reached

from osp.engine.schedule import Timetable, refreshes
from osp.methods.base import published_options
from osp.methods.osp import OSP
from osp.methods.t2t import T2T
from osp.parts import prune
from osp.parts.clusters import aliasing_prototypes, fit_clusters

EASY = {"delta": 0.26, "threshold": 0.26, "ramp": 0.0}
"""Of four classes: an untrained network then has anchors."""


def filled(build: Any = by_hand, **options: Any) -> OSP:
    """After one partition, with partners for every class."""
    method: OSP = refreshed(build(OSP, **{**EASY, **options}), FakePool())
    draws = torch.Generator().manual_seed(3)
    method.bank.push(torch.rand(40, 16, generator=draws), torch.arange(40) % NUM_CLASSES, torch.arange(40))
    return method


@pytest.mark.parametrize("build", [by_hand, with_batch_norm])
def test_each_term_reaches_the_modules_that_it_should_and_no_other(build: Any) -> None:
    method = filled(build)
    pretraining, finetuning = method.pretraining(batch(), step_at()), method.finetuning(batch(), step_at())
    assert pretraining.keys() == {"ce", "matching", "rotation", "noise"}
    assert finetuning.keys() == {"ce", "matching", "rotation", "consistency", "matching_u", "odc_l", "odc_u"}
    expected = REACHED | {name: {"encoder", "classifier"} for name in ("odc_l", "odc_u")}
    for terms in (pretraining, finetuning):
        assert {name: reached(term, method) for name, term in terms.items()} == {name: expected[name] for name in terms}
        assert not method.bank.features.requires_grad


@pytest.mark.parametrize("view", ["strong", "weak"])
def test_pruning_learns_from_labeled_images_and_from_the_view_that_is_pruned(view: str) -> None:
    method, given = filled(anchor_view=view), batch()
    images = differentiable(given)
    terms = method.orthogonality_terms(method.encode(given), given["labeled"].targets, step_at())
    assert learned_from(terms["odc_l"], images) == {"labeled/weak"}
    assert learned_from(terms["odc_u"], images) == {f"unlabeled/{view}"}


def test_only_the_unlabeled_terms_rise_over_the_ramp_of_fine_tuning() -> None:
    method = filled(ramp=0.5)
    half, whole = (method.finetuning(batch(), step_at(progress)) for progress in (0.25, 0.75))
    rising = {"consistency", "matching_u", "odc_u"}
    shares = {name: round(half[name].item() / whole[name].item(), 4) for name in whole}
    assert shares == {name: 0.5 if name in rising else 1.0 for name in whole}


@pytest.mark.parametrize(("name", "option"), [("odc_l", "odc_labeled"), ("odc_u", "odc_unlabeled")])
def test_each_loss_is_weighted_by_its_option(name: str, option: str) -> None:
    whole, part = (filled(**{option: weight}).finetuning(batch(), step_at()) for weight in (1.0, 0.25))
    for key in whole:
        assert part[key].item() == pytest.approx((0.25 if key == name else 1.0) * whole[key].item(), rel=1e-5)


@pytest.mark.parametrize("stop", [True, False])
def test_the_prediction_of_labeled_anchors_is_a_target_unless_asked_otherwise(stop: bool) -> None:
    """The gradient of mean over anchors of KL(sg[p] ‖ p_r) - ln p_r[y], or of the same without sg."""
    method, given = filled(stop_gradient=stop, least_share=0.0, alpha=0.6), batch()
    targets = given["labeled"].targets
    loss = method.orthogonality_terms(method.encode(given), targets, step_at())["odc_l"]
    z = method.net.encode(given["labeled"]["weak"])
    weak = method.net(given["unlabeled"]["weak"]).argmax(dim=1)
    partners = method.partners(torch.cat([targets, weak]), step_at())[0][: len(targets)]
    p, p_r = method.net.classifier(z).softmax(dim=1), method.net.classifier(prune(z, partners, 0.6)).softmax(dim=1)
    q = p.detach() if stop else p
    each = (q * (q / p_r).log()).sum(dim=1) - p_r.gather(1, targets[:, None]).squeeze(1).log()
    expected = each[p.gather(1, targets[:, None]).squeeze(1) > 0.26].mean()
    weights = list(method.net.parameters())
    torch.testing.assert_close(loss, expected, rtol=1e-4, atol=1e-6)
    found, wanted = torch.autograd.grad(loss, weights), torch.autograd.grad(expected, weights)
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("match", ["class", "random"])
def test_anchors_get_partners_of_their_class_or_of_any_as_asked(match: str) -> None:
    method = by_hand(OSP, match=match)
    stored = torch.arange(40) % NUM_CLASSES
    method.bank.push(stored[:, None].expand(-1, 16).float(), stored)
    classes = torch.arange(100) % NUM_CLASSES
    partners, found = method.partners(classes, step_at())
    assert found.all()
    assert torch.equal(partners[:, 0].long(), classes) is (match == "class")
    assert set(partners[:, 0].tolist()) == {0.0, 1.0, 2.0, 3.0}


def test_a_prototype_is_the_mean_of_the_unknown_kind_most_like_the_class() -> None:
    """Anchors of a class share one partner, that of the last partition; before it there is none."""
    method = by_hand(OSP, match="prototype", **EASY)
    classes = torch.arange(8) % NUM_CLASSES
    assert not method.partners(classes, step_at())[1].any()
    pool = FakePool()
    refreshed(method, pool)
    partners, found = method.partners(classes, step_at())
    labeled, others = (method.net.encode(images).detach() for images in (pool.labeled, pool.images))
    clusters = fit_clusters(labeled, pool.labels("labeled"), others, NUM_CLASSES)
    torch.testing.assert_close(partners, aliasing_prototypes(clusters, others)[classes])
    assert found.all()


def test_a_prototype_needs_clusters() -> None:
    with pytest.raises(ValueError, match="match=prototype needs partition_by"):
        OSP.Options(match="prototype", partition_by="neighbors")


# What enters the bank


def stored_ids(method: OSP) -> list[int]:
    rows: list[int] = method.bank.ids[: int(method.bank.size)].tolist()
    return rows


def cut_by_hand(**options: Any) -> OSP:
    """Rows 0-9 are ID, 10-39 OOD; of each side the share `doubtful` next to the cut is neither."""
    method = by_hand(OSP, cut_by="otsu", **{"doubtful": 0.4, **options}).eval()
    method.partition(torch.cat([torch.linspace(0.0, 0.2, 10), torch.linspace(0.8, 1.0, POOL - 10)]))
    assert method.aside_rows.nonzero().flatten().tolist() == list(range(22, POOL))
    return method


def test_a_partition_puts_the_least_confident_quarter_of_what_is_set_aside_into_the_bank() -> None:
    """18 rows are set aside, of which a quarter is the four of lowest confidence. Doubtful rows stay out."""
    method = cut_by_hand(recyclable_share=0.25)
    confidence = 1 - torch.arange(POOL) / 100
    confidence[10:22] = 0.05  # doubtful, and least confident of all
    method.after_partition(FakePool(), confidence, torch.arange(POOL) % NUM_CLASSES)
    assert sorted(stored_ids(method)) == [36, 37, 38, 39]
    assert method.confidence_limit.item() == pytest.approx(1 - 0.35)
    assert method.bank.counts.tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("below", [1.0, 0.3])
def test_a_step_puts_only_recyclable_rows_that_are_set_aside_into_the_bank(below: float) -> None:
    method = cut_by_hand(recyclable="absolute", recyclable_below=below, bank_feed="iteration", pool_batch=POOL)
    features = method.net.encode(FakePool().images)
    method.feed_bank(features, torch.arange(POOL))
    confidence, predicted = method.net.classifier(features).softmax(dim=1).max(dim=1)
    expected = [row for row in range(22, POOL) if confidence[row] < below]
    assert len(expected) > 0
    assert len(expected) < 18 or below == 1.0
    ids = stored_ids(method)
    assert sorted(ids) == expected
    torch.testing.assert_close(method.bank.features[: len(ids)], features[ids].detach())
    counts = [sum(int(predicted[row]) == c for row in expected) for c in range(NUM_CLASSES)]
    assert method.bank.counts.tolist() == counts


@pytest.mark.parametrize(("feed", "fed"), [("iteration", True), ("both", True), ("refresh", False), ("epoch", False)])
def test_which_feeds_fill_the_bank_in_a_step_with_rows_of_the_pool_stream(feed: str, fed: bool) -> None:
    method = cut_by_hand(recyclable="absolute", recyclable_below=1.0, bank_feed=feed).train()
    given = batch()
    method.finetuning(given, step_at())
    aside = [row for row in given["pool"].rows.tolist() if row >= 22]
    assert aside
    assert sorted(stored_ids(method)) == (sorted(aside) if fed else [])


@pytest.mark.parametrize(("feed", "fed"), [("iteration", False), ("both", True), ("refresh", True), ("epoch", True)])
def test_which_feeds_fill_the_bank_at_a_partition(feed: str, fed: bool) -> None:
    method = refreshed(by_hand(OSP, bank_feed=feed), FakePool())
    assert (int(method.bank.size) > 0) is fed
    if fed:
        assert method.aside_rows[stored_ids(method)].all()


def test_between_partitions_the_bank_takes_what_the_present_network_is_least_sure_of() -> None:
    method, pool = refreshed(by_hand(OSP, bank_feed="epoch", recyclable_share=0.5, refresh=0.5), FakePool()), FakePool()
    kept, aside, before = method.kept_rows.clone(), method.aside_rows.clone(), int(method.bank.size)
    with torch.no_grad():
        method.net.classifier.weight.copy_(torch.randn(4, 16, generator=torch.Generator().manual_seed(9)))
    refreshed(method, pool, 0.25)
    assert torch.equal(method.kept_rows, kept)
    assert "unlabeled" not in pool.restricted
    logits = method.net(pool.images).detach()
    confidence = logits.softmax(dim=1).amax(dim=1)
    rows = sorted(aside.nonzero().flatten().tolist(), key=lambda row: float(confidence[row]))
    expected = rows[: len(rows) // 2]
    added = stored_ids(method)[before:]
    assert sorted(added) == sorted(expected) != []
    stored = method.bank.features[before : int(method.bank.size)]
    torch.testing.assert_close(stored, method.net.encode(pool.images[added]).detach())


@pytest.mark.parametrize(
    ("steps", "unlabeled", "refresh", "partitions", "fillings"),
    [
        (10_000, 1_000, None, 10, 100),  # ten epochs from one partition to the next
        (250_000, 20_000, 0.05, 20, 200),  # the paper: 200 epochs of 1,000 steps, cut every ten
        (1_500, 3_000, None, 10, 30),  # 35 passes can be afforded
        (1_500, 30_000, None, 3, 3),
        (100, 10**6, None, 1, 1),
    ],
)
def test_the_bank_is_filled_each_epoch_and_the_pool_cut_every_tenth(
    steps: int, unlabeled: int, refresh: float | None, partitions: int, fillings: int
) -> None:
    method = by_hand(OSP, bank_feed="epoch", refresh=refresh, refresh_cost=1 / 25)
    method.task = replace(TASK, steps=steps, num_unlabeled=unlabeled)
    timetable = Timetable.make(method.stages(), steps, seed=0)
    due = [step for step in map(timetable.step, range(steps)) if refreshes(step)]
    assert len(due) == fillings
    cuts = [step.index for step in due if step.falls_on(method.refresh_share())]
    assert len(cuts) == partitions
    by_refresh = by_hand(OSP, bank_feed="refresh", refresh=refresh, refresh_cost=1 / 25)
    by_refresh.task = method.task
    other = Timetable.make(by_refresh.stages(), steps, seed=0)
    assert cuts == [index for index in range(steps) if refreshes(other.step(index))]


# Published values

SHEET = {
    "pretrain_share": 50_000 / 250_000,
    "pretrain_lr": 0.03,
    "pretrain_schedule": "cosine-7/16",
    "lr": 0.001,
    "schedule": "cosine-7/16",
    "ema": None,
    "one_schedule": False,
    "optimizer": "sgd",
    "momentum": 0.9,
    "nesterov": True,
    "weight_decay": 5e-4,
    "decay_all": True,
    "batch": 64,
    "mu": 320 / 64,
    "pool_batch": 64,
    "rotation_weight": 1.0,
    "rotation_pass": "own",
    "rotation_until": "finetune",
    "temperature": 0.4,
    "threshold": 0.8,
    "least_share": 0.0,
    "ramp": 0.0,
    "refresh": 10 / 200,
    "joint_weak": True,
    "consistency_from": "kept",
    "partition_by": "matching",
    "unlabeled_matching": "entropy",
    "cut_by": "otsu",
    "id_share": None,
    "doubtful": 0.0,
    "score_memory": 0.0,
    "alpha": 0.8,
    "delta": 0.8,
    "odc_labeled": 1.0,
    "odc_unlabeled": 1.0,
    "match": "class",
    "recyclable": "absolute",
    "recyclable_below": 0.2,
    "bank_feed": "iteration",
    "bank_capacity": 5000,
    "stop_gradient": True,
    "anchor_view": "strong",
    "odc_temperature": 1.0,
    "noise": 0.1,
    "warmup": 0.0,
    "clip": None,
    "score": "own",
}
"""The paper's implementation details; where it is silent, the release's; the size of the noise is ours."""


@pytest.mark.parametrize("data", ["cifar10", "cifar100", "tinyimagenet", "mnist", "folder"])
def test_the_paper_preset_is_the_papers(data: str) -> None:
    assert published_options(OSP, data) == SHEET
    assert OSP.paper_steps == 250_000
    assert set(T2T.paper) - {"pretrain_drops", "drop_factor"} <= set(OSP.paper)
