"""Which network and optimiser learn most in the same time? Supervised CIFAR-100, judged by validation images.

OMP_WAIT_POLICY=passive python scripts/compare_networks.py --data-dir DIR --seconds 45 --threads 1 --seeds 100 101
python scripts/compare_networks.py --data-dir DIR fast/muon/0.05 small/sgd/0.1      # NETWORK/OPTIMISER/RATE

The first 50 classes with 100 labels each, as in the paper's Table 1; 60 other training images per class are looked at
in the end. The clock counts the work of the cores (processor time / threads), so that other load on the machine matters
little. With OMP_WAIT_POLICY=passive, threads that wait for each other do not count as working.
"""

from __future__ import annotations

import argparse
import math
import time

import numpy as np
import torch
import torch.nn.functional as F

from osp.data import ImageSet, load
from osp.data.images import Images
from osp.data.stream import Stream
from osp.data.views import Augmenter
from osp.engine.optim import build_optimizer
from osp.methods import Stage
from osp.nets import Network, build_network, set_batchnorm_momentum
from osp.randomness import generator

BATCH, CLASSES, LABELS, HELD_OUT = 64, 50, 100, 60
DEFAULT = ["small/sgd/0.03", "small/sgd/0.1", "fast/sgd/0.1", "small/muon/0.05", "fast/muon/0.05"]


def split(images: ImageSet, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows to learn from, and rows to judge by."""
    assert images.labels is not None
    draws = np.random.default_rng(seed)
    rows = [draws.permutation(np.flatnonzero(images.labels == k))[: LABELS + HELD_OUT] for k in range(CLASSES)]
    labeled, held_out = zip(*(np.split(each, [LABELS]) for each in rows), strict=True)
    return torch.from_numpy(np.concatenate(labeled)), torch.from_numpy(np.concatenate(held_out))


def train(
    which: str, images: ImageSet, rows: torch.Tensor, augmenter: Augmenter, seconds: float, threads: int, seed: int
) -> tuple[Network, int]:
    """Train for this long, on weak views, with a cosine over the time. Gives the number of steps."""
    assert images.labels is not None
    name, optimizer_name, rate = which.split("/")
    torch.manual_seed(seed)
    network = build_network(name, images.shape, CLASSES)
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    set_batchnorm_momentum(network, 0.05)
    stage = Stage(optimizer=optimizer_name, lr=float(rate))  # type: ignore[arg-type]
    optimizer = build_optimizer(stage, network.parameters())
    pool, stream = Images(images.images), Stream("labeled", len(rows), BATCH, seed=seed)
    labels = torch.from_numpy(images.labels)
    started, step, spent = time.process_time(), 0, 0.0
    while (spent := (time.process_time() - started) / threads) < seconds:
        drawn = rows[stream.rows(step)]
        views = augmenter.apply(pool.take(drawn), augmenter.plan("weak", BATCH, generator(seed, step, "weak")))
        loss = F.cross_entropy(network(views.contiguous(memory_format=torch.channels_last)), labels[drawn])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(network.parameters(), 5.0)
        for group in optimizer.param_groups:
            group["lr"] = stage.lr * min(1.0, (step + 1) / 50) * 0.5 * (1 + math.cos(math.pi * spent / seconds))
        optimizer.step()
        step += 1
    return network, step


@torch.no_grad()
def accuracy(network: Network, images: ImageSet, rows: torch.Tensor, augmenter: Augmenter) -> float:
    """Percent of these images."""
    assert images.labels is not None
    network.eval()
    chunks = torch.split(torch.from_numpy(images.images)[rows], 500)
    predicted = torch.cat([network(augmenter.normalize(chunk)).argmax(dim=1) for chunk in chunks])
    return (predicted == torch.from_numpy(images.labels)[rows]).float().mean().item() * 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir")
    parser.add_argument("--seconds", type=float, default=45.0, help="for each")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seeds", type=int, nargs="+", default=[100])
    parser.add_argument("which", nargs="*", default=DEFAULT)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    images, _ = load("cifar100", options.data_dir)
    augmenter = Augmenter(images.shape, images.mean, images.std)
    print("network/optimiser/rate  seed  steps  images/s  validation accuracy (%)")
    for seed in options.seeds:
        labeled, held_out = split(images, seed)
        for which in options.which:
            network, steps = train(which, images, labeled, augmenter, options.seconds, options.threads, seed)
            speed = steps * BATCH / options.seconds
            found = accuracy(network, images, held_out, augmenter)
            print(f"{which:23} {seed:4} {steps:6,} {speed:9,.0f} {found:10.1f}", flush=True)


if __name__ == "__main__":
    main()
