"""Scores are found by name; one more is one file, or one entry point."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import torch
from torch import nn

from osp import scores
from osp.errors import UserError
from osp.scores import registry

MINE = '''
"""-Σ_c f_c"""
from torch import Tensor, nn

from osp.scores import Score


class Mine(Score):
    summary = "-Σ_c f_c"

    def forward(self, features: Tensor, logits: Tensor, classifier: nn.Module) -> Tensor:
        return -logits.sum(dim=1)
'''


def check_mine(name: str) -> None:
    assert name in scores.available()
    assert scores.check(name) == name
    score = scores.build(name, 3, 2)
    assert score.name == name
    assert score(torch.zeros(1, 3), torch.tensor([[1.0, 2.0]]), nn.Identity()).tolist() == [-3.0]


def test_a_file_in_the_folder_is_a_score(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_sum.py").write_text(MINE, encoding="utf-8")
    monkeypatch.setattr(scores, "__path__", [*scores.__path__, str(tmp_path)])
    try:
        check_mine("my-sum")
    finally:
        sys.modules.pop("osp.scores.my_sum", None)
        vars(scores).pop("my_sum", None)
    monkeypatch.undo()
    assert "my-sum" not in scores.available()


@pytest.mark.parametrize("value", ["my_package_sum", "my_package_sum:Mine"])
def test_an_entry_point_is_a_score(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    (tmp_path / "my_package_sum.py").write_text(MINE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry._scores, "installed", lambda: {"total": EntryPoint("total", value, "osp.scores")})
    try:
        check_mine("total")
    finally:
        sys.modules.pop("my_package_sum", None)


@pytest.mark.parametrize("value", ["missing_package", "os.path", "os.path:join"])
def test_a_broken_entry_point_is_named(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setattr(registry._scores, "installed", lambda: {"broken": EntryPoint("broken", value, "osp.scores")})
    with pytest.raises(UserError, match="broken"):
        scores.get("broken")


def test_every_score_carries_its_files_name_and_says_what_it_is() -> None:
    names = list(registry._scores.files())
    assert {"softmax", "energy", "vim", "matching"} <= set(names)
    for name in names:
        kind = scores.get(name)
        assert kind.name == name
        assert kind.summary
        assert isinstance(scores.build(name, 4, 3), scores.Score)


def test_scores_of_the_methods_own_are_not_listed() -> None:
    listed = {"energy", "gradnorm", "knn", "logit", "mahalanobis", "react", "softmax", "vim"}
    assert listed <= set(scores.available())
    assert not {"matching", "one-vs-all", "open-set", "domain", "energy-discrepancy"} & set(scores.available())


def test_a_near_miss_is_suggested() -> None:
    with pytest.raises(UserError, match=r"Unknown OOD score 'mahalanobi'\. Did you mean 'mahalanobis'"):
        scores.build("mahalanobi", 4, 3)
    with pytest.raises(UserError, match=r"Choose from: .*own"):
        scores.check("qqqqq")


def test_a_config_that_does_not_fit_is_a_sentence() -> None:
    with pytest.raises(UserError, match="'knn' cannot be made from"):
        scores.build("knn", 4, 3, neighbors=2)
