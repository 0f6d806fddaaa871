"""Batches and passes from either source of views: a method learns from stored features without knowing it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from osp import UserError
from osp.data.images import Images
from osp.data.split import Split
from osp.data.view_source import FeatureViews, PixelViews, ViewSource
from osp.data.views import Augmenter
from osp.engine.batches import Feed
from osp.engine.passes import FeedPool, Passes
from osp.methods import StreamSpec
from osp.methods.base import Stage, Step, Task
from osp.methods.fixmatch import FixMatch
from osp.nets import build_network

CPU = torch.device("cpu")
LABELED, POOL, VAL = 12, 60, 6
ROWS = LABELED + POOL + VAL


def split() -> Split:
    index = np.arange(ROWS)
    return Split(
        labeled=index[:LABELED],
        unlabeled=index[LABELED : LABELED + POOL],
        val=index[LABELED + POOL :],
        test=np.empty(0, np.int64),
        test_ood=np.empty(0, np.int64),
        unlabeled_is_ood=np.zeros(POOL, bool),
        id_classes=np.arange(3),
        labeled_targets=index[:LABELED] % 3,
        val_targets=index[:VAL] % 3,
        test_targets=np.empty(0, np.int64),
    )


def pixels() -> PixelViews:
    images = np.random.default_rng(0).integers(0, 256, (ROWS, 1, 8, 8), dtype=np.uint8)
    return PixelViews(Images(images), Augmenter((1, 8, 8), [0.5], [0.5]), CPU)


def features() -> FeatureViews:
    """Three clouds far apart, one per class; each stored view is the plain one with noise of its own."""
    draws = np.random.default_rng(0)
    centers = 4 * np.eye(3, 16)[np.arange(ROWS) % 3]
    names = ("plain", "flip", "weak", "weak2", "strong", "strong2")
    return FeatureViews({name: (centers + draws.normal(size=(ROWS, 16))).astype(np.float16) for name in names}, CPU)


SOURCES = [pixels, features]
SPECS = {
    "labeled": StreamSpec("labeled", 8, ("weak",)),
    "unlabeled": StreamSpec("unlabeled", 24, ("weak", "weak2", "strong")),
    "joint": StreamSpec("joint", 4, ("flip", "plain")),
}


def step_at(index: int, rank: int = 0, world: int = 1) -> Step:
    return Step(index, 100, Stage(), 0, index, 100, seed=0, rank=rank, world=world)


def feed_of(source: ViewSource) -> Feed:
    feed = Feed(source, split(), seed=0, device=CPU)
    feed.open_streams(SPECS)
    return feed


@pytest.mark.parametrize("source", SOURCES)
def test_a_batch_has_the_views_rows_and_classes_that_were_asked_for(source: type[ViewSource]) -> None:
    feed = feed_of(source())
    batch = feed.batch(step_at(3))
    for name, spec in SPECS.items():
        sample = batch[name]
        assert tuple(sample.views) == spec.views
        assert all(view.shape == (spec.batch, *feed.views.shape) for view in sample.views.values())
    assert torch.equal(batch["labeled"].targets, batch["labeled"].rows % 3)
    assert batch["unlabeled"].labels is None
    joint = batch["joint"]
    assert torch.equal(joint.targets, torch.where(joint.rows < LABELED, joint.rows % 3, -1))
    assert torch.equal(joint["plain"], feed.views.plain(feed.index["joint"][joint.rows.numpy()]))


@pytest.mark.parametrize("source", SOURCES)
def test_each_process_has_its_slice_of_the_global_batch(source: type[ViewSource]) -> None:
    feed = feed_of(source())
    whole = feed.batch(step_at(7))
    for rank in range(2):
        part = feed.batch(step_at(7, rank, 2))
        for name, sample in part.items():
            assert torch.equal(sample.rows, whole[name].rows[rank::2])
            assert all(torch.equal(view, whole[name][key][rank::2]) for key, view in sample.views.items())


@pytest.mark.parametrize("source", SOURCES)
def test_a_pass_gives_the_plain_views_in_row_order(source: type[ViewSource]) -> None:
    feed = feed_of(source())
    pool = FeedPool(Passes(torch.nn.Identity(), feed), 0)
    rows = torch.tensor([5, 1, 30])
    (found,) = pool.map(lambda images: images.flatten(1), "unlabeled", rows)
    assert torch.equal(found, feed.views.plain(LABELED + rows.numpy()).flatten(1))
    (nothing,) = Passes(torch.nn.Identity(), feed).map(lambda images: images.flatten(1), np.empty(0, np.int64))
    assert nothing.shape == (0, found.shape[1])


@pytest.mark.parametrize(("source", "message"), [(pixels, "Unknown view 'wek2'"), (features, "'wek2' are not stored")])
def test_a_misspelt_view_is_told_when_streams_are_opened(source: type[ViewSource], message: str) -> None:
    feed = Feed(source(), split(), 0, CPU)
    with pytest.raises(UserError, match=rf"stream 'unlabeled': .*{message}\. Did you mean 'weak'\?"):
        feed.open_streams({"unlabeled": StreamSpec("unlabeled", 4, ("weak", "wek2"))})


def test_an_empty_part_and_a_batch_that_cannot_be_shared_are_told() -> None:
    feed = Feed(pixels(), replace(split(), unlabeled=np.empty(0, np.int64)), 0, CPU)
    with pytest.raises(UserError, match="unlabeled images, but the split has none"):
        feed.open_streams(SPECS)
    with pytest.raises(UserError, match="8 labeled images per step cannot be shared by 3"):
        feed.open_streams({"labeled": SPECS["labeled"]}, world=3)


def test_restrictions_of_streams_survive_a_checkpoint() -> None:
    feed, other = feed_of(pixels()), feed_of(pixels())
    FeedPool(Passes(torch.nn.Identity(), feed), 5).restrict("unlabeled", torch.tensor([3, 4]))
    assert set(feed.batch(step_at(6))["unlabeled"].rows.tolist()) == {3, 4}
    other.load_state(feed.state())
    for index in (4, 6):
        assert torch.equal(feed.batch(step_at(index))["unlabeled"].rows, other.batch(step_at(index))["unlabeled"].rows)


def test_a_method_trains_on_stored_features_through_the_adapter() -> None:
    """FixMatch on three clouds of features: from chance to nearly all, the pool's images included."""
    source = features()
    feed = Feed(source, split(), 0, CPU)
    torch.manual_seed(0)
    network = build_network("adapter", source.shape, 3)
    task = Task(3, source.shape, LABELED, POOL, VAL)
    method = FixMatch(FixMatch.Options(batch=8, mu=3), network, task)
    feed.open_streams(method.streams(method.stages()[0]))
    torch.testing.assert_close(network.encode(source.plain(np.arange(4))), source.plain(np.arange(4)))
    optimizer = torch.optim.SGD(method.parameters(), lr=0.05, momentum=0.9)
    for index in range(40):
        terms = method.losses(feed.batch(step_at(index)), step_at(index))
        optimizer.zero_grad()
        torch.stack(list(terms.values())).sum().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    (logits,) = Passes(method, feed).map(network, feed.index["unlabeled"])
    truth = torch.from_numpy(feed.index["unlabeled"] % 3)
    assert (logits.argmax(dim=1) == truth).float().mean() > 0.8  # 0.98 or more over four seeds; chance is a third
    assert F.cross_entropy(logits, truth) < 1.0
    stored = source.plain(np.arange(4))
    assert not torch.equal(network.encode(stored), stored)  # the adapter has learned too
