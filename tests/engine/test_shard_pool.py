"""Whole OSP runs on a pool in tar shards: in less memory than its images take up, and stopped and resumed."""

from __future__ import annotations

import io
import json
import platform
import shutil
import subprocess
import sys
import tarfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from helpers.runs import Stopper, model, run
from osp import Recipe
from osp.engine.signals import Interrupted
from osp.evaluate.predictions import Predictions
from osp.runs.folder import RunFolder

CLASSES = 3


@cache
def picture(number: int, side: int) -> bytes:
    """An image of one of three colors, with a bright corner that tells it from the others."""
    color = [40, 40, 40]
    color[number % CLASSES] = 160 + number % 90
    pixels = np.full((side, side, 3), color, np.uint8)
    pixels[: side // 4, : side // 4] = number % 256
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "BMP")
    return file.getvalue()


def labeled_folder(folder: Path, side: int, per_class: int = 12) -> Path:
    for number in range(CLASSES * per_class):
        path = folder / f"class{number % CLASSES}" / f"{number}.bmp"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture(number, side))
    return folder


def shard_folder(folder: Path, count: int, side: int, per_shard: int) -> Path:
    folder.mkdir()
    for first in range(0, count, per_shard):
        with tarfile.open(folder / f"pool-{first:07d}.tar", "w") as tar:
            for number in range(first, min(first + per_shard, count)):
                content = picture(10_000 + number % 200, side)
                info = tarfile.TarInfo(f"{number}.bmp")
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    return folder


def recipe(data: Path, shards: Path, side: int, **fields: Any) -> Recipe:
    options = {"batch": 6, "mu": 2, "pool_batch": 4, "refresh": 0.34, "bank_total": 100, "references": 50}
    return Recipe(
        data="folder", data_dir=str(data), ood_data="shards", ood_dir=str(shards), image_size=side, scale="demo",
        labels_per_class=4, val_per_class=2, steps=30, eval_every=15, options=options, **fields,
    )  # fmt: skip


CHILD = """
import ctypes, json, resource, sys
from pathlib import Path
import numpy as np
from torch import nn
from osp import Recipe
from osp.engine import evaluation, passes
from osp.engine.train import train as engine_train
passes.IN_MEMORY = 1000  # scores and decisions of the pool are in files, too
passes.POOL_BATCH = 32  # what a chunk takes up is small beside the pool
evaluation.POOL_REFERENCES = 500  # and so is what scores are fitted to, whatever the size of the pool
first, second, out, side, count, room = sys.argv[1:]
side, count, room = int(side), int(count), int(room)

class Coarse(nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv2d(3, 8, 16, 16)
    def forward(self, images):
        return self.convolution(images).relu().mean((2, 3))

def train(fields, name):
    return engine_train(Recipe(**json.loads(fields)), Path(out) / name, network=Coarse())

if room:
    train(first, "first")  # whatever is imported or set up on first use
    ctypes.CDLL(None).malloc_trim(0)
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmData"))
    limit = int(line.split()[1]) * 1024 + room
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
try:
    np.ones((count, 3, side, side), np.uint8)
    print("the pool fits into memory")
except MemoryError:
    print(train(second, "second").result["unlabeled"])
"""


needs_linux = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc" or not Path("/proc/self/status").exists(), reason="asks Linux for its memory"
)


def trained(folder: Path, side: int, count: int, room: int, *limit: str) -> None:
    """Train on so many images in a process with `room` bytes beside its own needs, or under the command `limit`."""
    data = labeled_folder(folder / "data", side)
    few, many = shard_folder(folder / "few", 40, side, 20), shard_folder(folder / "many", count, side, 500)
    recipes = [json.dumps(recipe(data, shards, side).asked()) for shards in (few, many)]
    command = [*limit, sys.executable, "-c", CHILD, *recipes, str(folder / "runs"), str(side), str(count), str(room)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1500, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= count, done.stdout
    lines = RunFolder(folder / "runs" / "second").read_metrics()
    assert sum("kept_share" in line for line in lines) >= 3  # so often the pool was cut anew
    pool = Predictions.load(folder / "runs" / "second" / "predictions.npz").pool
    assert len(pool.ids) >= count
    assert np.isfinite(pool.scores["matching"]).all()


@needs_linux
@pytest.mark.nightly
def test_a_whole_run_with_refreshes_in_less_memory_than_the_pool_takes_up(tmp_path: Path) -> None:
    side, count, room = 48, 12_000, 64 << 20  # of it some 30 MB are scratch of fixed size, for fitting scores
    assert count * 3 * side * side > 1.2 * room
    trained(tmp_path, side, count, room)


@needs_linux
@pytest.mark.nightly
@pytest.mark.timeout(1800)
@pytest.mark.skipif(shutil.which("prlimit") is None, reason="needs prlimit")
def test_a_pool_larger_than_the_limit_on_all_memory_of_the_process(tmp_path: Path) -> None:
    side, count, limit = 224, 4500, 620 << 20  # Python and torch take up two thirds of it
    assert count * 3 * side * side > limit
    trained(tmp_path, side, count, 0, "prlimit", f"--data={limit}")


def test_a_run_on_shards_that_was_stopped_goes_on_as_if_it_had_not_been(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("osp.data.stream.MIXED", 16)
    data, shards = labeled_folder(tmp_path / "data", 16), shard_folder(tmp_path / "shards", 60, 16, 10)
    wanted = recipe(data, shards, 16, network="cnn", threads=1)
    whole = run(wanted, tmp_path / "whole")
    with pytest.raises(Interrupted):
        run(wanted, tmp_path / "stopped", display=Stopper(17))
    resumed = run(Recipe(), tmp_path / "stopped", resume=True)
    one, other = model(whole.path), model(resumed.path)
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert whole.result["accuracy"] == resumed.result["accuracy"]
    assert whole.result["pool_auroc"] is None  # nobody knows which of the pool are OOD
    assert whole.result["unlabeled"] >= 60
