"""Run a grid of recipes and print their results as a table; what is finished is not run again.

    python scripts/run_table.py --data mnist --data-dir DIR --methods osp,t2t --ratios 0.3,0.6 --seeds 0,1,2,3,4 \
        --out runs/mnist --workers 2

Each run is one `osp train` command in OUT/<method>-r<ratio>-s<seed>; options after `--` are passed on to it. Stopped
runs are resumed. With several workers each command gets one thread.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

COLUMNS = ("accuracy", "auroc", "pool_auroc", "purity", "recall", "angle", "interclass_variance", "seconds")


def run_one(command: list[str], folder: Path) -> None:
    """Start or resume one run; its output goes beside it."""
    if (folder / "result.json").exists():
        return
    resume = ["--resume"] if (folder / "recipe.yaml").exists() else []
    folder.parent.mkdir(parents=True, exist_ok=True)
    output = folder.with_name(f"{folder.name}.log")
    with open(output, "a") as log:
        ended = subprocess.run([*command, "--out", str(folder), *resume], stdout=log, stderr=log, check=False)
    state = "done" if ended.returncode == 0 else f"failed, see {output}"
    print(f"{folder.name}: {state}", file=sys.stderr, flush=True)


def summarise(results: list[dict[str, Any]]) -> list[str]:
    """Mean over seeds, and the lowest AUROC; a dash where nothing was measured."""
    cells = []
    for column in COLUMNS:
        values = [result[column] for result in results if result[column] is not None]
        text = f"{statistics.fmean(values):.{3 if column == 'interclass_variance' else 2}f}" if values else "-"
        if column in ("accuracy", "auroc") and len(values) > 1:
            text += f" (min {min(values):.2f})"
        cells.append(text)
    return cells


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--methods", default="osp,t2t")
    parser.add_argument("--ratios", default="0.6")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=1)
    arguments, passed_on = parser.parse_known_args()
    passed_on = [word for word in passed_on if word != "--"]
    if arguments.workers > 1:
        passed_on += ["--set", "threads=1"]
    grid = list(product(arguments.seeds.split(","), arguments.ratios.split(","), arguments.methods.split(",")))

    def folder(seed: str, ratio: str, method: str) -> Path:
        out: Path = arguments.out
        return out / f"{method}-r{ratio}-s{seed}"

    def start(cell: tuple[str, str, str]) -> None:
        seed, ratio, method = cell
        options = ["--data", arguments.data, "--data-dir", arguments.data_dir, "--method", method]
        options += ["--ood-ratio", ratio, "--seed", seed, *passed_on]
        run_one([sys.executable, "-m", "osp", "train", *options], folder(*cell))

    with ThreadPoolExecutor(arguments.workers) as workers:
        list(workers.map(start, grid))
    print("| method | ratio | seeds | " + " | ".join(COLUMNS) + " |")
    print("|---" * (3 + len(COLUMNS)) + "|")
    for ratio, method in product(arguments.ratios.split(","), arguments.methods.split(",")):
        files = [folder(seed, ratio, method) / "result.json" for seed in arguments.seeds.split(",")]
        results = [json.loads(file.read_text()) for file in files if file.exists()]
        if results:
            print(f"| {method} | {ratio} | {len(results)} | " + " | ".join(summarise(results)) + " |")


if __name__ == "__main__":
    main()
