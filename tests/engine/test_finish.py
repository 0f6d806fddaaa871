"""What the end of a run says of it."""

import textwrap
from pathlib import Path
from typing import Any

from osp import Recipe
from osp.engine.finish import pool_warnings, unseen_warnings
from osp.engine.train import train

UNLEARNS = textwrap.dedent(
    '''
    """Supervised learning, then its opposite."""

    import torch.nn.functional as F

    from osp.methods.supervised import Supervised


    class Mine(Supervised):
        def stages(self):
            return [self.stage(name="labels", share=0.5), self.stage(name="pool", share=0.5)]

        def losses(self, batch, step):
            sign = 1 if step.stage.name == "labels" else -1
            logits = self.net(batch["labeled"]["weak"])
            return {"ce": sign * F.cross_entropy(logits, batch["labeled"].targets).clamp(max=8)}
    '''
)


def lines(*accuracies: tuple[str, float | None]) -> list[dict[str, object]]:
    return [{"stage": stage, "val_accuracy": accuracy} for stage, accuracy in accuracies]


def test_a_pool_that_did_harm_is_named() -> None:
    # 100 validation images of which 90 are right: a standard error of 3, so 84 may be chance and 83 is not
    assert not pool_warnings(lines(("pretrain", 90.0), ("pretrain", 88.0), ("finetune", 84.0)), 100)
    (said,) = pool_warnings(lines(("pretrain", 90.0), ("pretrain", 88.0), ("finetune", 95.0), ("finetune", 83.0)), 100)
    assert "was 90.0 % in the first stage and is 83.0 % at the end" in said
    assert not pool_warnings(lines(("train", 90.0), ("train", 20.0)), 100)
    assert not pool_warnings(lines(("pretrain", None), ("finetune", None)), 100)
    assert not pool_warnings([{"stage": "pretrain", "loss": 1.0}], 100)


def test_a_run_whose_second_stage_unlearns_says_so_in_its_result(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(UNLEARNS)
    mine = str(tmp_path / "mine.py")
    recipe = Recipe(method=mine, scale="demo", data="digits", steps=120, unlabeled=60, device="cpu")
    result = train(recipe, tmp_path / "run").result
    assert any("more harm than good" in warning for warning in result["warnings"])


def test_a_reported_score_that_is_worse_than_simple_ones_on_unseen_kinds_says_so() -> None:
    def found(pool: float, knn: float, softmax: float) -> dict[str, Any]:
        scores = {name: {"auroc": value} for name, value in (("pool", pool), ("knn", knn), ("softmax", softmax))}
        return {"score": "pool", "other_ood": {"uniform": {"auroc": pool, "scores": scores}}}

    (warning,) = unseen_warnings(found(85.0, 99.0, 60.0))
    assert "on uniform" in warning
    assert "--set score=knn" in warning
    assert not unseen_warnings(found(97.5, 99.0, 60.0))
    assert not unseen_warnings({"score": "pool", "other_ood": {}})
