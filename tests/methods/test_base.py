"""What every method promises, checked for all of them."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from typing import Any

import pytest
import torch

from osp import UserError, scores
from osp.methods import Method, Options, Published, Stage, Step, StreamSpec, Task, available, get
from osp.methods.base import check_terms, published_for, published_options
from osp.methods.declared import Sample
from osp.nets import build_network

TASK = Task(num_classes=4, shape=(1, 8, 8), num_labeled=8, num_unlabeled=30, num_val=4)


def build(name: str) -> Method:
    kind = get(name)
    return kind(kind.Options.model_validate({}), build_network("cnn", TASK.shape, 4), TASK)


@pytest.mark.parametrize("name", available())
def test_every_method_says_what_it_is_and_where_it_comes_from(name: str) -> None:
    kind = get(name)
    assert kind.name == name
    assert kind.summary
    assert kind.reference
    assert sys.modules[kind.__module__].__doc__


@pytest.mark.parametrize("name", available())
def test_every_published_value_is_an_option_that_validates_and_names_its_source(name: str) -> None:
    kind = get(name)
    assert kind.paper.keys() <= kind.Options.model_fields.keys()
    assert all(isinstance(entry, Published) and entry.source for entry in kind.paper.values())
    for data in (None, "digits", "mnist", "cifar10", "cifar100", "tinyimagenet"):
        published = published_options(kind, data)
        chosen = kind.Options.model_validate(published)
        assert {key: getattr(chosen, key) for key in published} == published


class Decayed(Method):
    paper = {"weight_decay": Published(5e-4, by_data={"cifar100": 1e-3, "svhn": 2e-4}), "clip": Published(1.0)}  # noqa: RUF012
    paper_data = ("cifar10", "cifar100")


@pytest.mark.parametrize(
    ("data", "decay", "published"),
    [
        (None, 5e-4, None),
        ("cifar10", 5e-4, True),
        ("cifar100", 1e-3, True),
        ("svhn", 2e-4, True),
        ("mnist", 5e-4, False),
    ],
)
def test_a_published_value_may_depend_on_the_data_set(data: str | None, decay: float, published: bool | None) -> None:
    """What the harness adds is off unless published; a set that the publication lacks takes the general value."""
    added = {"warmup": 0.0, "clip": 1.0, "ema": None, "score": "own"}
    assert published_options(Decayed, data) == {"weight_decay": decay, **added}
    if data is not None:
        assert published_for(Decayed, data) is published


@pytest.mark.parametrize("name", available())
def test_every_option_is_described(name: str) -> None:
    undescribed = [key for key, field in get(name).Options.model_fields.items() if not field.description]
    assert not undescribed


@pytest.mark.parametrize("name", available())
def test_every_stage_has_streams_of_known_parts_and_views(name: str) -> None:
    method = build(name)
    for stage in method.stages():
        assert stage.share > 0
        for spec in method.streams(stage).values():
            assert spec.part in ("labeled", "unlabeled", "joint", "val")
            assert {view.rstrip("0123456789") for view in spec.views} <= {"plain", "flip", "weak", "strong"}


@pytest.mark.parametrize("name", available())
def test_every_score_is_finite_and_one_an_image(name: str) -> None:
    method = build(name).eval()
    images = torch.randn(5, *TASK.shape)
    with torch.no_grad():
        features = method.net.encode(images)
        scores = method.ood_score(features, method.net.classify(features))
    assert scores.shape == (5,)
    assert scores.isfinite().all()


def test_a_stage_takes_the_options_unless_told_otherwise() -> None:
    method = Method(Options.model_validate({"lr": 0.7, "optimizer": "adam"}), build_network("cnn", (1, 8, 8), 4), TASK)
    assert method.stages() == [Stage(lr=0.7, optimizer="adam", warmup=0.05)]
    others: dict[str, Any] = {"momentum": 0.2, "nesterov": False, "weight_decay": 0.1, "decay_all": True}
    others |= {"schedule": "steps", "drops": (0.3,), "drop_factor": 0.4, "warmup": 0.1}
    method.options = Options(**others)
    assert method.stages() == [Stage(**others)]
    method.options = Options.model_validate({"lr": 0.7, "optimizer": "adam"})
    assert method.stage(lr=0.1, name="late").lr == 0.1
    assert method.stage(lr=0.1, name="late").optimizer == "adam"


@pytest.mark.parametrize("views", [("weak", "strong2"), ()])
def test_the_usual_streams_need_only_their_views(views: tuple[str, ...]) -> None:
    class Usual(Method):
        unlabeled_views = views

    method = Usual(Options.model_validate({"batch": 3, "mu": 4}), build_network("cnn", (1, 8, 8), 4), TASK)
    expected = {"labeled": StreamSpec("labeled", 3, ("weak",))}
    if views:
        expected["unlabeled"] = StreamSpec("unlabeled", 12, views)
    assert method.streams(Stage()) == expected


def test_what_a_method_must_define_is_said_by_name() -> None:
    method = Method(Options.model_validate({}), build_network("cnn", (1, 8, 8), 4), TASK)
    with pytest.raises(UserError, match="set unlabeled_views"):
        method.streams(Stage())
    with pytest.raises(UserError, match="must define losses"):
        method.losses({}, Step(0, 1, Stage(), 0, 0, 1, seed=0))


@pytest.mark.parametrize(
    ("terms", "problem"),
    [
        (torch.zeros(()), "a dictionary of named terms is wanted, such as .*, not a Tensor"),
        ({}, "not an empty one"),
        ({"ce": torch.zeros(32)}, r"the term 'ce' is a tensor of shape \(32,\); one number is wanted"),
        ({"ce": 0.5}, "the term 'ce' is a float"),
    ],
)
def test_losses_that_are_none_are_told(terms: object, problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        check_terms(terms)


def test_a_batch_tells_what_it_does_not_have() -> None:
    sample = Sample(torch.arange(2), {"weak": torch.zeros(2, 1, 8, 8)})
    with pytest.raises(UserError, match="has the views weak, not 'strong'"):
        sample["strong"]
    with pytest.raises(UserError, match="classes of unlabeled images never reach a method"):
        _ = sample.targets


def test_logged_numbers_carry_no_graph() -> None:
    method = Method(Options.model_validate({}), build_network("cnn", (1, 8, 8), 4), TASK)
    weight = next(method.parameters())
    method.log("norm", weight.sum())
    method.log("share", 0.25)
    assert not method.logged["norm"].requires_grad
    assert method.logged["share"].item() == 0.25


def test_a_steps_draws_depend_on_seed_step_and_name() -> None:
    def draw(index: int, seed: int, name: str) -> float:
        return torch.rand((), generator=Step(index, 9, Stage(), 0, index, 9, seed).generator(name)).item()

    assert draw(3, 0, "mix") == draw(3, 0, "mix")
    assert len({draw(3, 0, "mix"), draw(4, 0, "mix"), draw(3, 1, "mix"), draw(3, 0, "other")}) == 4


def test_the_default_score_is_one_minus_the_largest_probability() -> None:
    logits = torch.tensor([[2.0, 0.0, -1.0]])
    largest = math.exp(2) / (math.exp(2) + 1 + math.exp(-1))
    method = Method(Options.model_validate({}), build_network("cnn", (1, 8, 8), 3), replace(TASK, num_classes=3))
    assert method.ood_score(torch.zeros(1, method.net.feature_dim), logits).item() == pytest.approx(1 - largest)


def test_a_method_may_compute_its_score_itself() -> None:
    class Itself(Method):
        def ood_score(self, features: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
            return logits[:, 0]

    method = Itself(Options.model_validate({}), build_network("cnn", (1, 8, 8), 4), TASK).eval()
    _, logits, scores = method.outputs(torch.randn(3, 1, 8, 8))
    torch.testing.assert_close(scores, logits[:, 0])


@pytest.mark.parametrize("name", available())
def test_the_own_score_is_rebuilt_from_its_name_config_and_state_alone(name: str) -> None:
    method = build(name).eval()
    features = torch.randn(5, method.net.feature_dim)
    with torch.no_grad():
        logits = method.net.classify(features)
        rebuilt = scores.build(method.own_score.name, method.net.feature_dim, 4, **method.own_score.config()).eval()
        rebuilt.load_state_dict(method.own_score.state_dict())
        torch.testing.assert_close(rebuilt(features, logits, method.net.classifier), method.ood_score(features, logits))


def test_an_unknown_score_is_refused_with_a_near_miss() -> None:
    assert Options.model_validate({"score": "vim"}).score == "vim"
    with pytest.raises(ValueError, match="Did you mean 'energy'"):
        Options.model_validate({"score": "enrgy"})
    with pytest.raises(ValueError, match="matching"):  # a score of the methods' own cannot be asked for
        Options.model_validate({"score": "matching"})
