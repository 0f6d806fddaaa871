"""OOD scores against hand-worked values and slow loops."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from osp import scores
from osp.parts.clusters import fit_clusters
from osp.parts.neighbors import fit_neighbors
from osp.parts.one_vs_all import linear_layers
from osp.scores import PoolScore, Score

NONE = torch.zeros(0)
LOGITS = torch.tensor([[1.0, 2.0, -1.0], [0.0, 0.0, 0.0]])


def clusters() -> tuple[Tensor, Tensor]:
    """Two classes, long in the first direction and thin in the second."""
    draws = torch.Generator().manual_seed(0)
    noise = torch.randn(200, 2, generator=draws) * torch.tensor([3.0, 0.1])
    labels = torch.arange(200) % 2
    return noise + torch.tensor([[0.0, 0.0], [0.0, 5.0]])[labels], labels


def linear(weight: list[list[float]], bias: list[float]) -> nn.Linear:
    layer = nn.Linear(len(weight[0]), len(weight))
    with torch.no_grad():
        layer.weight.copy_(torch.tensor(weight))
        layer.bias.copy_(torch.tensor(bias))
    return layer


def score_of(name: str, features: Tensor, logits: Tensor, classifier: nn.Module | None = None) -> list[float]:
    """Values of a score that is not fitted."""
    score = scores.build(name, features.shape[1] if features.ndim == 2 else 1, logits.shape[1])
    values: list[float] = score(features, logits, classifier or nn.Identity()).tolist()
    return values


def fitted(name: str, features: Tensor, labels: Tensor, classifier: nn.Module | None = None, **config: int) -> Score:
    classifier = classifier or nn.Linear(features.shape[1], int(labels.max()) + 1)
    score = scores.build(name, features.shape[1], int(labels.max()) + 1, **config)
    with torch.no_grad():
        score.fit(features, classifier(features), labels, classifier)
    return score


# From the logits alone


def test_softmax_logit_and_energy_are_as_written() -> None:
    total = math.exp(1) + math.exp(2) + math.exp(-1)
    assert score_of("softmax", NONE, LOGITS) == pytest.approx([1 - math.exp(2) / total, 2 / 3])
    assert score_of("logit", NONE, LOGITS) == [-2.0, -0.0]
    assert score_of("energy", NONE, LOGITS) == pytest.approx([-math.log(total), -math.log(3)])


def test_energy_discrepancy_is_what_the_energy_owes_to_the_predicted_class() -> None:
    total = math.exp(0.1) + math.exp(0.2) + math.exp(-0.1)
    expected = 10 * math.log(total) - 10 * math.log(total - math.exp(0.2))
    assert score_of("energy-discrepancy", NONE, LOGITS)[0] == pytest.approx(-expected, rel=1e-5)


# From the labeled features


def test_the_nearest_score_is_the_distance_to_the_kth_neighbor() -> None:
    known, labels = clusters()
    asked = torch.randn(7, 2, generator=torch.Generator().manual_seed(1))
    score = fitted("knn", known, labels, k=3)
    for row, found in zip(asked, score(asked, NONE, nn.Identity()), strict=True):
        distances = sorted((row / row.norm() - other / other.norm()).norm().item() for other in known)
        assert found.item() == pytest.approx(distances[2], abs=1e-3)


def test_few_labels_are_enough_for_the_nearest_score() -> None:
    score = fitted("knn", torch.eye(2), torch.tensor([0, 1]), k=50)
    assert score(torch.tensor([[1.0, 0.0]]), NONE, nn.Identity()).item() == pytest.approx(math.sqrt(2), abs=1e-5)


def test_mahalanobis_counts_distance_in_units_of_the_spread() -> None:
    known, labels = clusters()
    score = fitted("mahalanobis", known, labels)
    along, across = score(torch.tensor([[3.0, 0.0], [0.0, 1.0]]), NONE, nn.Identity()).tolist()
    assert along == pytest.approx(1.0, abs=0.5)  # one standard deviation along the long direction
    assert across > 10  # many across the thin one, a third of the length


def test_mahalanobis_stands_fewer_labels_than_features() -> None:
    draws = torch.Generator().manual_seed(2)
    features, labels = torch.randn(9, 64, generator=draws), torch.arange(9) % 3
    score = fitted("mahalanobis", features + 4 * torch.eye(64)[labels], labels)
    inside = score(4 * torch.eye(64)[labels], NONE, nn.Identity())
    outside = score(torch.randn(20, 64, generator=draws) * 5, NONE, nn.Identity())
    assert inside.isfinite().all()
    assert outside.min() > inside.max()


# From the features and the classifier


def test_vim_by_hand() -> None:
    """W = I, b = 0, so that the origin is 0; the features lie along (1, 0), two of them a little off it."""
    layer = linear([[1.0, 0.0], [0.0, 1.0]], [0.0, 0.0])
    score = fitted("vim", torch.tensor([[4.0, 1.0], [4.0, -1.0]]), torch.tensor([0, 1]), layer)
    scale = (4 + 4) / (1 + 1)  # largest logits over residuals
    asked = torch.tensor([[2.0, 3.0]])
    energy = math.log(math.exp(2) + math.exp(3))
    assert score(asked, layer(asked), layer).item() == pytest.approx(scale * 3 - energy, rel=1e-5)


def test_vim_against_the_formulas_of_the_paper() -> None:
    draws = np.random.default_rng(0)
    known = draws.normal(size=(40, 6)) * [5, 4, 3, 1, 1, 1] + 1
    weight, bias = draws.normal(size=(3, 6)), draws.normal(size=3)
    layer = linear(weight.tolist(), bias.tolist())
    score = fitted("vim", torch.tensor(known).float(), torch.arange(40) % 3, layer)

    origin = -np.linalg.pinv(weight) @ bias
    np.testing.assert_allclose(weight @ origin + bias, 0, atol=1e-12)  # where all logits are 0
    centered = known - origin
    values, vectors = np.linalg.eigh(centered.T @ centered)
    rest = vectors[:, np.argsort(-values)[3:]]  # all but half of the six dimensions
    logits = known @ weight.T + bias
    scale = logits.max(axis=1).sum() / np.linalg.norm(centered @ rest, axis=1).sum()
    asked = draws.normal(size=(9, 6))
    asked_logits = asked @ weight.T + bias
    virtual = scale * np.linalg.norm((asked - origin) @ rest, axis=1)
    probability = np.exp(virtual) / (np.exp(virtual) + np.exp(asked_logits).sum(axis=1))
    with torch.no_grad():
        found = score(torch.tensor(asked).float(), torch.tensor(asked_logits).float(), layer)
    np.testing.assert_allclose(found.sigmoid().numpy(), probability, rtol=1e-4)


def test_react_cuts_activations_off_before_the_energy() -> None:
    layer = linear([[1.0, 0.0], [0.0, -1.0]], [0.5, 0.0])
    score = fitted("react", torch.arange(1.0, 11.0).view(5, 2), torch.tensor([0, 1, 0, 1, 0]), layer)
    ceiling = 9.1  # the 90th percentile of 1, ..., 10
    asked = torch.tensor([[3.0, 2.0], [100.0, 50.0]])
    expected = [-math.log(math.exp(3.5) + math.exp(-2)), -math.log(math.exp(ceiling + 0.5) + math.exp(-ceiling))]
    assert score(asked, layer(asked), layer).tolist() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("layers", [1, 3])
def test_gradnorm_is_the_norm_of_a_gradient(layers: int) -> None:
    """That of KL(uniform ‖ p) with respect to the weights of the last layer, by autograd, image by image."""
    torch.manual_seed(0)
    classifier = nn.Linear(5, 4) if layers == 1 else linear_layers([5, 7, 6, 4])
    last = classifier if isinstance(classifier, nn.Linear) else classifier[-1]
    assert isinstance(last, nn.Linear)
    features = torch.randn(6, 5)
    found = scores.build("gradnorm", 5, 4)(features, classifier(features), classifier)
    for row, value in zip(features, found, strict=True):
        divergence = -classifier(row[None]).log_softmax(dim=1).mean()  # plus a constant
        (gradient,) = torch.autograd.grad(divergence, last.weight)
        assert value.item() == pytest.approx(-gradient.abs().sum().item(), rel=1e-4)


@pytest.mark.parametrize("name", ["vim", "react", "gradnorm"])
def test_a_classifier_of_several_layers_will_do(name: str) -> None:
    """The last of them counts: on top of other layers a score says what it says of their outputs alone."""
    torch.manual_seed(1)
    classifier = linear_layers([5, 7, 3])
    features, labels, asked = torch.randn(20, 5), torch.arange(20) % 3, torch.randn(4, 5)
    with torch.no_grad():
        whole = fitted(name, features, labels, classifier)(asked, classifier(asked), classifier)
        alone = fitted(name, classifier[:-1](features), labels, classifier[-1])
        torch.testing.assert_close(
            whole, alone(classifier[:-1](asked), classifier(asked), classifier[-1]), rtol=1e-4, atol=1e-4
        )


def test_a_classifier_without_a_last_linear_layer_is_refused() -> None:
    with pytest.raises(TypeError, match="ends in a linear layer, not in ReLU"):
        score_of("gradnorm", torch.zeros(1, 2), torch.zeros(1, 2), nn.Sequential(nn.Linear(2, 2), nn.ReLU()))


# From heads that methods train


def test_scores_of_heads_are_as_written() -> None:
    torch.manual_seed(0)
    features, logits = torch.randn(6, 5), torch.randn(6, 3)
    predicted = logits.argmax(dim=1).tolist()
    for hidden in ((), (7, 8)):
        one_vs_all = scores.build("one-vs-all", 5, 3, hidden=hidden)
        pairs = one_vs_all.get_submodule("head.layers")(features).view(6, 2, 3).softmax(dim=1)  # "out" first
        expected = [pairs[row, 0, c].item() for row, c in enumerate(predicted)]
        assert one_vs_all(features, logits, nn.Identity()).tolist() == pytest.approx(expected)

    matching = scores.build("matching", 5, 3).eval()
    head = matching.get_submodule("head")
    expected = [1 - head(features[row, None], torch.tensor([c])).sigmoid().item() for row, c in enumerate(predicted)]
    assert matching(features, logits, nn.Identity()).tolist() == pytest.approx(expected, abs=1e-6)

    domain = scores.build("domain", 5, 3)
    expected = [1 - domain.get_submodule("head")(row).sigmoid().item() for row in features]
    assert domain(features, logits, nn.Identity()).tolist() == pytest.approx(expected, abs=1e-6)

    open_set = scores.build("open-set", 5, 3, width=9)
    projected = open_set.get_submodule("projection")(features)
    expected = open_set.get_submodule("open_classifier")(projected).softmax(dim=1)[:, 3].tolist()
    assert open_set(features, logits, nn.Identity()).tolist() == pytest.approx(expected)

    diverse = scores.build("disagreement", 5, 3, heads=4, width=9)
    heads = diverse.get_submodule("heads")(diverse.get_submodule("projection")(features)).view(6, 4, 3).softmax(dim=2)
    expected = (heads[:, :, None] - heads[:, None]).abs().mean(dim=(1, 2, 3)).tolist()
    assert diverse(features, logits, nn.Identity()).tolist() == pytest.approx(expected, abs=1e-6)


# All of them


def setting() -> tuple[Tensor, Tensor, nn.Linear]:
    """Labeled features of two classes and a classifier that is sure of them."""
    draws = torch.Generator().manual_seed(3)
    labels = torch.arange(60) % 2
    known = torch.randn(60, 8, generator=draws).abs() * 0.1
    known[:, :2] += 3 * torch.eye(2)[labels]
    layer = linear([[4.0, 0, 0, 0, 0, 0, 0, 0], [0, 4.0, 0, 0, 0, 0, 0, 0]], [0.0, 0.0])
    return known, labels, layer


@pytest.mark.parametrize("name", scores.available())
def test_every_score_is_larger_for_a_foreign_image(name: str) -> None:
    known, labels, layer = setting()
    score = fitted(name, known, labels, layer)
    asked = torch.zeros(2, 8)
    asked[0, 1] = 3.0
    asked[1] = torch.tensor([0.3, 0.2, 1.0, 0.0, 0.0, 2.0, 0.0, 0.0])
    with torch.no_grad():
        familiar, foreign = score(asked, layer(asked), layer).tolist()
    assert foreign > familiar


@pytest.mark.parametrize("name", [*scores.available(), "matching", "one-vs-all", "open-set", "domain"])
def test_state_and_config_are_all_there_is_to_a_score(name: str) -> None:
    known, labels, layer = setting()
    score = fitted(name, known, labels, layer).eval()
    copy = scores.build(name, 8, 2, **score.config()).eval()
    copy.load_state_dict(score.state_dict())
    asked = torch.randn(5, 8, generator=torch.Generator().manual_seed(4))
    with torch.no_grad():
        expected, found = (each(asked, layer(asked), layer) for each in (score, copy))
    assert expected.isfinite().all()
    assert torch.equal(expected, found)


@pytest.mark.parametrize("name", [name for name in scores.available() if scores.get(name).fitted])
def test_a_score_that_was_not_fitted_gives_no_number(name: str) -> None:
    known, _, layer = setting()
    with torch.no_grad():
        assert scores.build(name, 8, 2)(known, layer(known), layer).isnan().all()


@pytest.mark.parametrize("name", [name for name in scores.available() if scores.get(name).fitted])
@pytest.mark.parametrize("labels", [2, 3])
def test_very_few_labels_give_finite_scores(name: str, labels: int) -> None:
    known, _, layer = setting()
    score = scores.build(name, 8, 2)
    with torch.no_grad():
        score.fit(known[:labels], layer(known[:labels]), torch.arange(labels) % 2, layer)
        assert score(known, layer(known), layer).isfinite().all()


# From the labeled features and the pool


def asking(name: str, features: Tensor, labels: Tensor, pool: Tensor) -> Score:
    score = scores.build(name, features.shape[1], int(labels.max()) + 1)
    assert isinstance(score, PoolScore)
    assert score(features, NONE, nn.Identity()).isnan().all()  # not before it was fitted
    score.fit_pool(features, labels, pool)
    return score


@pytest.mark.parametrize("name", ["clusters", "neighbors", "pool"])
def test_scores_that_ask_the_pool_are_those_of_the_part_and_survive_saving(name: str) -> None:
    draws = torch.Generator().manual_seed(0)
    known, pool, asked = (torch.randn(n, 12, generator=draws) for n in (30, 200, 9))
    labels = torch.arange(30) % 3
    score = asking(name, known, labels, pool)
    clusters, neighbors = fit_clusters(known, labels, pool, 3), fit_neighbors(known, pool)
    expected = {"clusters": clusters.score(asked), "neighbors": neighbors.score(asked)}.get(name)
    if expected is None:
        of_pool, of_asked = ([each.score(rows).double() for each in (clusters, neighbors)] for rows in (pool, asked))
        both = [(a - p.mean()) / p.std(correction=0) for a, p in zip(of_asked, of_pool, strict=True)]
        novelty = [neighbors.score_and_novelty(rows)[1].double() for rows in (pool, asked)]
        limit = novelty[0].sort().values[int(0.99 * 199)]
        beyond = ((novelty[1] - limit) / novelty[0].std(correction=0)).clamp(min=0)
        expected = score(asked, NONE, nn.Identity())
        torch.testing.assert_close(expected.double(), (both[0] + both[1]) / 2 + beyond, rtol=1e-4, atol=1e-4)
    assert torch.equal(score(asked, NONE, nn.Identity()), expected)
    again = scores.build(name, 12, 3, **score.config())
    again.load_state_dict(score.state_dict())
    assert torch.equal(again(asked, NONE, nn.Identity()), expected)


def test_what_is_unlike_everything_in_the_pool_is_ood_by_that_alone() -> None:
    """Nearest to a class of all that is there, and far from it: clusters and neighbors are fooled."""
    draws = torch.Generator().manual_seed(0)
    near = 0.1 * torch.randn(300, 6, generator=draws)
    known, others = near[:150] + torch.eye(6)[0], near[150:] + torch.eye(6)[1]
    score = asking("pool", known[:10], torch.arange(10) % 2, torch.cat([known[10:], others]))
    strange = torch.eye(6)[0] + 1.5 * torch.eye(6)[5]
    usual, odd = score(known, NONE, nn.Identity()), score(strange[None], NONE, nn.Identity())
    assert odd.item() > usual.max().item() + 1


@pytest.mark.parametrize("name", ["clusters", "neighbors", "pool"])
@pytest.mark.parametrize("pool", [0, 1, 15])
def test_scores_that_ask_the_pool_do_without_much_of_it(name: str, pool: int) -> None:
    rows = torch.randn(4 + pool, 6, generator=torch.Generator().manual_seed(1))
    score = asking(name, rows[:4], torch.tensor([0, 1, 2, 3]), rows[4:])
    assert score(rows, NONE, nn.Identity()).isfinite().all()


@pytest.mark.parametrize("name", ["clusters", "neighbors", "pool"])
def test_what_a_thousand_classes_keep_fits_in_twenty_megabytes(name: str) -> None:
    draws = torch.Generator().manual_seed(0)
    known, labels = torch.randn(8000, 384, generator=draws), torch.arange(8000) % 1000
    score = asking(name, known, labels, torch.randn(1000, 384, generator=draws))
    assert sum(each.numel() * each.element_size() for each in score.buffers()) <= 20e6
