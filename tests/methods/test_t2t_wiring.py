"""T2T's wires: which module and which image each term reaches, what scales it, where the pool is cut. All by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from digit_runs import NUM_CLASSES, POOL, TASK, FakePool, batch, by_hand, refreshed, step_at, with_batch_norm
from torch import Tensor, nn

from osp import UserError
from osp.methods.base import Batch, Task, published_options
from osp.methods.osp import OSP
from osp.methods.t2t import T2T, T2TOptions
from osp.nets import Network, build_network, set_batchnorm_momentum
from osp.parts import otsu_threshold
from osp.parts.rotation import rotate4

CONFIDENT = {"threshold": 0.26, "least_share": 0.0}
"""Of four classes: so that an untrained network is confident of most images."""


def modules_of(method: T2T) -> dict[str, nn.Module]:
    assert method.rotation_head is not None
    return {
        "encoder": method.net.encoder,
        "classifier": method.net.classifier,
        "rotation": method.rotation_head,
        "matching": method.matching,
    }


def reached(term: Tensor, method: T2T) -> set[str]:
    """The modules with a gradient of this term in every parameter; a parameter without one must have company."""
    found = set()
    for name, module in modules_of(method).items():
        gradients = torch.autograd.grad(term, list(module.parameters()), retain_graph=True, allow_unused=True)
        sizes = [0.0 if gradient is None else float(gradient.abs().sum()) for gradient in gradients]
        if any(sizes):
            found.add(name)
    return found


REACHED = {
    "ce": {"encoder", "classifier"},
    "matching": {"encoder", "matching"},
    "rotation": {"encoder", "rotation"},
    "noise": {"encoder", "classifier"},
    "consistency": {"encoder", "classifier"},
    "matching_u": {"encoder", "matching"},
}


@pytest.mark.parametrize("variant", ["partition", "entropy"])
@pytest.mark.parametrize("build", [by_hand, with_batch_norm])
def test_each_term_reaches_the_modules_that_it_should_and_no_other(build: Any, variant: str) -> None:
    method = build(T2T, noise=0.2, unlabeled_matching=variant, **CONFIDENT)
    refreshed(method, FakePool(), 0.0)
    method.train()
    pretraining, finetuning = method.pretraining(batch(), step_at()), method.finetuning(batch(), step_at())
    assert pretraining.keys() == {"ce", "matching", "rotation", "noise"}
    assert finetuning.keys() == {"ce", "matching", "rotation", "consistency", "matching_u"}
    for terms in (pretraining, finetuning):
        assert {name: reached(term, method) for name, term in terms.items()} == {name: REACHED[name] for name in terms}


def test_the_noise_of_pretraining_is_a_share_of_the_features_deviation() -> None:
    method, given, step = by_hand(T2T, noise=0.2).eval(), batch(), step_at()
    with torch.no_grad():
        features = method.net.encode(torch.cat([given["labeled"]["weak"], given["pool"]["weak"]]))
        drawn = torch.randn(features.shape, generator=step.generator("noise"))
        clean, changed = (method.net.classifier(z) for z in (features, features + 0.2 * features.std() * drawn))
    expected = nn.functional.kl_div(changed.log_softmax(1), clean.softmax(1), reduction="batchmean")
    assert method.pretraining(given, step)["noise"].item() == pytest.approx(expected.item(), rel=1e-4)


def differentiable(given: Batch) -> dict[str, Tensor]:
    """The views of a batch by stream and view, ready for a gradient."""
    return {
        f"{stream}/{view}": images.requires_grad_()
        for stream, sample in given.items()
        for view, images in sample.views.items()
    }


def learned_from(term: Tensor, images: dict[str, Tensor]) -> set[str]:
    gradients = torch.autograd.grad(term, list(images.values()), retain_graph=True, allow_unused=True)
    return {name for name, gradient in zip(images, gradients, strict=True) if gradient is not None and gradient.any()}


def test_each_term_learns_from_the_images_that_it_should_and_no_other() -> None:
    """On a network without batch norm, where images do not touch one another. No gradient flows into a target."""
    method = by_hand(T2T, noise=0.2, **CONFIDENT)
    refreshed(method, FakePool(), 0.0)
    given = batch()
    images = differentiable(given)
    terms = method.pretraining(given, step_at())
    assert {name: learned_from(term, images) for name, term in terms.items()} == {
        "ce": {"labeled/weak"},
        "matching": {"labeled/weak"},
        "rotation": {"pool/weak"},
        "noise": {"labeled/weak", "pool/weak"},
    }
    for joint in (False, True):
        method = by_hand(T2T, joint_weak=joint, **CONFIDENT)
        refreshed(method, FakePool(), 0.0)
        terms = method.finetuning(given, step_at())
        assert {name: learned_from(term, images) for name, term in terms.items()} == {
            "ce": {"labeled/weak"},
            "matching": {"labeled/weak"},
            "rotation": {"pool/weak"},
            "consistency": {"unlabeled/strong"},
            "matching_u": {"pool/weak"},
        }


def test_only_the_unlabeled_terms_rise_over_the_ramp_of_fine_tuning() -> None:
    method = by_hand(T2T, ramp=0.5, **CONFIDENT)
    refreshed(method, FakePool(), 0.0)
    half, whole = (method.finetuning(batch(), step_at(progress)) for progress in (0.25, 0.75))
    shares = {name: round(half[name].item() / whole[name].item(), 4) for name in whole}
    assert shares == {"ce": 1.0, "matching": 1.0, "rotation": 1.0, "consistency": 0.5, "matching_u": 0.5}


@pytest.mark.parametrize("stage", ["pretraining", "finetuning"])
def test_l_rot_is_weighted_by_its_option(stage: str) -> None:
    values = []
    for weight in (1.0, 0.3):
        method = by_hand(T2T, rotation_weight=weight)
        refreshed(method, FakePool(), 0.0)
        values.append(getattr(method, stage)(batch(), step_at())["rotation"].item())
    assert values[1] == pytest.approx(0.3 * values[0])


@pytest.mark.parametrize(("temperature", "threshold", "least"), [(0.4, 0.3, 0.0), (1.0, 0.3, 1.0), (0.4, 0.0, 0.0)])
def test_l_u_is_a_loop_over_the_confident_images(temperature: float, threshold: float, least: float) -> None:
    method = by_hand(T2T, temperature=temperature, threshold=threshold, least_share=least, ramp=0.0)
    refreshed(method, FakePool(), 0.0)
    given = batch()
    found = method.finetuning(given, step_at())["consistency"].item()
    total, count = 0.0, 0
    with torch.no_grad():
        weak, strong = (method.net(given["unlabeled"][view]) for view in ("weak", "strong"))
    for w, s in zip(weak, strong, strict=True):
        if float(w.softmax(dim=0).max()) < threshold:
            continue
        q, p = (w / temperature).softmax(dim=0), s.softmax(dim=0)
        total += sum(float(q[c]) * math.log(float(q[c]) / float(p[c])) for c in range(NUM_CLASSES))
        count += 1
    assert 0 < count < len(weak) or threshold == 0.0
    assert found == pytest.approx(total / max(count, least * len(weak)), rel=1e-4)


class Nothing(nn.Module):
    """A dropout that drops everything."""

    def forward(self, features: Tensor) -> Tensor:
        return features * 0.0


def test_labeled_and_strong_views_go_through_dropout_and_weak_views_do_not() -> None:
    """With all features dropped p is uniform: L_ce = ln 4, and L_u = ln 4 - H(q) of the undropped targets q."""
    method = by_hand(T2T, temperature=1.0, threshold=0.0, least_share=0.0, ramp=0.0)
    refreshed(method, FakePool(), 0.0)
    q = method.net(batch()["unlabeled"]["weak"]).softmax(dim=1).detach()
    method.net.dropout = Nothing()  # type: ignore[assignment]
    terms = method.finetuning(batch(), step_at())
    assert terms["ce"].item() == pytest.approx(math.log(4))
    entropy = -(q * q.log()).sum(dim=1).mean().item()
    assert entropy < math.log(4) - 0.01
    assert terms["consistency"].item() == pytest.approx(math.log(4) - entropy, rel=1e-4)
    assert method.pretraining(batch(), step_at())["ce"].item() == pytest.approx(math.log(4))


# Passes through the encoder


def passes(method: T2T, given: Batch) -> tuple[Any, list[int]]:
    """What `encode` gives, and how many images each pass in training mode had."""
    sizes: list[int] = []

    def note(module: nn.Module, arguments: tuple[Tensor]) -> None:
        if module.training:
            sizes.append(len(arguments[0]))

    hook = method.net.encoder.register_forward_pre_hook(note)
    encoded = method.encode(given)
    hook.remove()
    return encoded, sizes


@pytest.mark.parametrize(
    ("options", "stage", "sizes"),
    [
        ({}, "finetune", [8 + 48 + 16]),
        ({}, "pretrain", [8 + 48]),
        ({"joint_weak": True}, "finetune", [8 + 48 + 32]),
        ({"joint_weak": True, "rotation_pass": "own"}, "finetune", [8 + 32, 48]),
        ({"rotation_pass": "own"}, "finetune", [8 + 16, 48]),
        ({"rotation_pass": "own"}, "pretrain", [8, 48]),
        ({"rotation_weight": 0.0}, "finetune", [8 + 12 + 16]),
        ({"rotation_weight": 0.0, "rotation_pass": "own"}, "pretrain", [8, 12]),
    ],
    ids=str,
)
def test_which_images_learn_in_one_pass(options: dict[str, Any], stage: str, sizes: list[int]) -> None:
    """8 labeled images, 16 weak and 16 strong ones, 12 of the pool at four angles."""
    method = with_batch_norm(T2T, **options)
    given = batch()
    views = [given["labeled"]["weak"]]
    if stage == "finetune":
        views += [given["unlabeled"]["strong"]] + [given["unlabeled"]["weak"]] * method.options.joint_weak
    else:
        given = {name: sample for name, sample in given.items() if name != "unlabeled"}
    encoded, found = passes(method, given)
    assert found == sizes
    pool = given["pool"]["weak"]
    turned = rotate4(pool) if method.options.rotation_weight else pool
    own = method.options.rotation_pass == "own"
    expected = method.net.encoder(torch.cat(views if own else [*views, turned]))
    torch.testing.assert_close(encoded.labeled, expected[:8])
    expected_turned = method.net.encoder(turned) if own else expected[-len(turned) :]
    torch.testing.assert_close(encoded.turned, expected_turned)
    torch.testing.assert_close(encoded.pool, expected_turned[:12])


def test_weak_views_are_labeled_as_in_testing_or_in_the_joint_pass_if_asked_to() -> None:
    given = batch()
    weak = given["unlabeled"]["weak"]
    for joint in (False, True):
        method = with_batch_norm(T2T, joint_weak=joint)
        found = method.encode(given)
        tested = method.eval().net.encoder(weak).detach()
        assert torch.allclose(found.weak, tested) is not joint
        torch.testing.assert_close(found.weak_logits, method.net.classifier(found.weak).detach())
        assert method.net.encoder[2].num_batches_tracked == 1  # type: ignore[index]


def test_without_pixels_nothing_is_rotated() -> None:
    task = replace(TASK, shape=(64,))
    method = T2T(T2T.Options(), Network(nn.Linear(64, 16), 16, NUM_CLASSES), task)
    assert method.rotation_head is None
    given = batch()
    for sample in given.values():
        sample.views.update({name: view.flatten(1) for name, view in sample.views.items()})
    encoded, sizes = passes(method, given)
    assert sizes == [8 + 12 + 16]
    assert len(encoded.turned) == len(encoded.pool) == 12
    assert "rotation" not in method.pretraining(given, step_at())


def test_a_rotation_task_needs_square_images() -> None:
    task = replace(TASK, shape=(1, 8, 12))
    net = Network(nn.Sequential(nn.Flatten(), nn.Linear(96, 16)), 16, NUM_CLASSES)
    with pytest.raises(
        UserError, match=r"Images are 12x8; .* t2t needs square ones. Set image_size, or rotation_weight"
    ):
        T2T(T2T.Options(), net, task)
    assert T2T(T2TOptions(rotation_weight=0.0), net, task).rotation_head is None


def test_the_matching_head_keeps_its_batch_norm_momentum_however_long_the_run() -> None:
    method = with_batch_norm(T2T)
    set_batchnorm_momentum(method, 0.001)
    assert method.net.encoder[2].momentum == 0.001  # type: ignore[index]
    assert method.matching.norm.momentum == 0.1


# Where the pool is cut


class ScoredPool(FakePool):
    """Images that carry their own score in their first pixel."""

    def __init__(self, pool: list[float], val: list[float], labeled: list[float]) -> None:
        super().__init__()
        for part, scores in (("unlabeled", pool), ("val", val), ("labeled", labeled)):
            self.parts[part] = torch.tensor(scores)[:, None, None, None].expand(-1, 1, 8, 8)


def scored(**options: Any) -> T2T:
    """A method whose score is that pixel."""
    method = by_hand(T2T, partition_by="matching", **{"doubtful": 0.0, **options})
    method.ood_score = lambda features, logits: method.pixel  # type: ignore[method-assign, assignment, return-value]
    encode = method.net.encode

    def encode_and_note(images: Tensor) -> Tensor:
        object.__setattr__(method, "pixel", images[:, 0, 0, 0])
        return encode(images)

    method.net.encode = encode_and_note  # type: ignore[method-assign]
    return method


SCORES = [0.8, 0.1, 0.9, 0.2, 0.8, 0.3, 0.9, 0.9]
"""Three of eight look like ID images."""


def test_the_pool_is_cut_where_the_share_ends_that_validation_images_tell() -> None:
    """F_val reaches 1 at 0.3, where F_pool is 3/8: a share of 3/8, so the three lowest of eight are kept."""
    method, pool = scored(), ScoredPool(SCORES, [0.1, 0.2, 0.3], [0.9] * 8)
    refreshed(method, pool, 0.0)
    assert method.share.item() == pytest.approx(3 / 8)
    assert method.kept_rows.nonzero().flatten().tolist() == [1, 3, 5]
    assert method.aside_rows.nonzero().flatten().tolist() == [0, 2, 4, 6, 7]
    assert pool.restricted["unlabeled"] is not None
    assert pool.restricted["unlabeled"].tolist() == [1, 3, 5]


def test_the_share_is_estimated_once_at_the_first_partition() -> None:
    """It holds also where it would be 6/8 now, and where Otsu's threshold would keep five."""
    method = scored(score_memory=0.0)
    refreshed(method, ScoredPool(SCORES, [0.1, 0.2, 0.3], [0.9] * 8), 0.0)
    later = ScoredPool([0.0, 0.1, 0.2, 0.3, 0.4, 5.0, 5.1, 5.2], [5.0, 5.0, 5.0], [0.0] * 8)
    refreshed(method, later, 0.5)
    assert method.share.item() == pytest.approx(3 / 8)
    assert method.kept_rows.nonzero().flatten().tolist() == [0, 1, 2]


@pytest.mark.parametrize("cut_by", ["share", "otsu"])
def test_a_share_that_the_user_knows_cuts_the_pool_whatever_validation_images_or_otsu_say(cut_by: str) -> None:
    """Five of eight instead of the estimated three, and again at the next partition."""
    method, pool = scored(id_share=5 / 8, cut_by=cut_by), ScoredPool(SCORES, [0.1, 0.2, 0.3], [0.9] * 8)
    for progress in (0.0, 0.5):
        refreshed(method, pool, progress)
        assert method.share.item() == pytest.approx(5 / 8)
        assert method.kept_rows.nonzero().flatten().tolist() == sorted(sorted(range(8), key=SCORES.__getitem__)[:5])


@pytest.mark.parametrize("without", ["validation images", "the option"])
def test_otsus_threshold_cuts_where_there_is_no_share(without: str) -> None:
    method = scored(cut_by="share" if without == "validation images" else "otsu")
    if without == "validation images":
        method.task = replace(TASK, num_val=0)
    pool = ScoredPool([0.1, 0.1, 0.2, 0.2, 0.2, 0.9, 0.9], [0.1], [0.1])
    refreshed(method, pool, 0.0)
    assert method.share.item() == 0
    assert method.kept_rows.tolist() == [True] * 5 + [False] * 2
    assert 0.2 <= otsu_threshold(pool.images[:, 0, 0, 0]) < 0.9


def test_a_share_that_the_starter_of_the_run_has_estimated_needs_no_validation_images() -> None:
    task = Task(2, (16,), num_labeled=4, num_unlabeled=8, num_val=0, id_share=0.25)
    for cut_by, share in (("share", 0.25), ("otsu", 0.0)):
        method = T2T(T2T.Options.model_validate({"cut_by": cut_by}), build_network("adapter", (16,), 2), task)
        assert method.share.item() == share
        method.partition(torch.arange(8.0))
        assert (method.scores <= method.cut[0]).sum() == (2 if share else 3)  # Otsu's four less the doubtful


def test_doubtful_images_are_neither_kept_nor_set_aside_nor_matched() -> None:
    method = by_hand(T2T, doubtful=0.4, cut_by="otsu")
    method.partition(torch.cat([torch.linspace(0.0, 0.2, 10), torch.linspace(0.8, 1.0, POOL - 10)]))
    neither = ~(method.kept_rows | method.aside_rows)
    assert neither.nonzero().flatten().tolist() == [7, 8, 9, *range(10, 22)]  # 1 - 0.4 of ten, 0.4 of thirty
    rows = neither.nonzero().flatten()[:12]
    assert method.unlabeled_matching(method.net.encode(batch()["pool"]["weak"]), rows, step_at()).item() == 0.0


@pytest.mark.parametrize("kind", [T2T, OSP])
def test_one_schedule_lets_fine_tuning_go_on_where_pre_training_stands(kind: type[T2T]) -> None:
    given = {"lr": 0.4, "schedule": "steps", "drops": (0.5,), "pretrain_lr": 0.7, "pretrain_schedule": "constant"}
    for asked in (False, True):
        first, second = by_hand(kind, one_schedule=asked, **given).stages()
        assert (first.continues, second.continues) == (False, asked)
        assert (first.lr, first.schedule, first.drops) == ((0.4, "steps", (0.5,)) if asked else (0.7, "constant", ()))
        assert (second.lr, second.schedule, second.drops) == (0.4, "steps", (0.5,))


def test_rotation_can_end_with_pretraining() -> None:
    """Then fine-tuning encodes each pool image once, and L_ood^u still learns from it."""
    method = by_hand(T2T, rotation_until="pretrain")
    refreshed(method, FakePool())
    first = {name: sample for name, sample in batch().items() if name != "unlabeled"}
    assert "rotation" in method.pretraining(first, step_at())
    terms = method.finetuning(batch(), step_at())
    assert "rotation" not in terms
    assert "matching_u" in terms
    encoded = method.encode(batch())
    assert torch.equal(encoded.turned, encoded.pool)


# Published values

SHEET = {
    "batch": 64,
    "mu": 5,
    "pool_batch": 64,
    "rotation_weight": 1.0,
    "rotation_pass": "own",
    "rotation_until": "finetune",
    "optimizer": "sgd",
    "momentum": 0.9,
    "nesterov": True,
    "weight_decay": 5e-4,
    "decay_all": True,
    "pretrain_share": 50_000 / 250_000,
    "pretrain_lr": 0.1,
    "pretrain_schedule": "steps",
    "pretrain_drops": (0.3, 0.6, 0.8),
    "drop_factor": 0.2,
    "one_schedule": False,
    "lr": 0.03,
    "schedule": "cosine-7/16",
    "ema": None,
    "temperature": 0.4,
    "threshold": 0.8,
    "least_share": 0.0,
    "ramp": 40_000 / 200_000,
    "refresh": 20_000 / 200_000,
    "joint_weak": True,
    "consistency_from": "kept",
    "unlabeled_matching": "entropy",
    "partition_by": "matching",
    "cut_by": "otsu",
    "id_share": None,
    "doubtful": 0.0,
    "score_memory": 0.0,
    "noise": 0.0,
    "warmup": 0.0,
    "clip": None,
    "score": "own",
}
"""T2T's release: optimizer, batches, thresholds and passes of both stages; its epochs as shares of the stages."""


@pytest.mark.parametrize("data", ["cifar10", "cifar100", "tinyimagenet", "mnist", "folder"])
def test_the_paper_preset_is_the_release(data: str) -> None:
    assert published_options(T2T, data) == SHEET
    assert T2T.paper_steps == 250_000
    assert "Otsu" in T2T.validation
    assert OSP.validation == T2T.validation
