"""What is pruning worth with a perfect partition? OSP and its control, told which pool images are OOD.

python scripts/oracle.py --data-dir DIR --seeds 100 101 --steps 1000 [--data cifar100] [--set labels_per_class=20 ...]

The file is also the method `oracle`: OSP whose partition and bank are made from the truth, which no method may see. Its
results say so by their name and are never those of `osp`. If it does not beat its control (`alpha=0`), poor partitions
are not what keeps pruning from helping.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor

import osp
from osp.methods.osp import OSP as Pruning
from osp.recipe import apply_assignments

TOLD = "osp_oracle_truth"
"""Where `main` leaves the truth: this file is imported a second time, as a method."""


class Oracle(Pruning):
    name = "oracle"
    summary = "OSP with the true partition: not a method, a measurement"

    def partition(self, scores: Tensor) -> None:
        super().partition(scores)
        is_ood = torch.from_numpy(sys.modules[TOLD].is_ood).to(scores.device)
        self.kept_rows, self.aside_rows = ~is_ood, is_ood


def main() -> None:
    from osp.engine.data import open_data
    from osp.recipe.deciding import make_plan

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="cifar100")
    parser.add_argument("--data-dir")
    parser.add_argument("--seeds", type=int, nargs="+", default=[100])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--out", type=Path, default=Path("runs/oracle"))
    given = parser.parse_args()
    fields = {"data": given.data, "data_dir": given.data_dir, "ood_ratio": 0.6, "steps": given.steps, "threads": 1}
    fields |= {"method": str(Path(__file__).resolve()), "eval_every": 10**6}
    sys.modules[TOLD] = ModuleType(TOLD)
    for seed in given.seeds:
        for alpha in (0.8, 0.0):
            asked = apply_assignments({**fields, "seed": seed, "options": {"alpha": alpha}}, given.set)
            recipe = osp.Recipe(**asked)
            sys.modules[TOLD].is_ood = open_data(make_plan(recipe)).truth  # type: ignore[attr-defined]
            out = given.out / f"{given.data}-{given.steps}-s{seed}-alpha{alpha:g}"
            result = osp.train(recipe, out=out, resume=out.exists()).result
            numbers = ", ".join(f"{key} {result[key]:.1f}" for key in ("accuracy", "auroc", "purity", "angle"))
            print(f"oracle, seed {seed}, alpha {alpha:g}: {numbers}", flush=True)


if __name__ == "__main__":
    main()
