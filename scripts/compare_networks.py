"""Which network learns most in the same time? Supervised CIFAR-100, all 50,000 labels, test accuracy at the end.

OMP_WAIT_POLICY=passive python scripts/compare_networks.py --data-dir DIR --seconds 100 --threads 2

The clock counts the work of the cores (processor time / threads), so that other load on the machine matters little.
With OMP_WAIT_POLICY=passive, threads that wait for each other do not count as working.
"""

from __future__ import annotations

import argparse
import math
import time

import torch
import torch.nn.functional as F

from osp.data import ImageSet, load
from osp.data.gather import Images
from osp.data.stream import Stream
from osp.data.views import Augmenter
from osp.nets import Network, build_network, set_batchnorm_momentum
from osp.randomness import generator

BATCH, LEARNING_RATE, WEIGHT_DECAY = 128, 0.1, 5e-4


def train(name: str, images: ImageSet, augmenter: Augmenter, seconds: float, threads: int) -> tuple[Network, float]:
    """Train for this long: SGD with Nesterov momentum, weak views, a cosine over the time. Gives images per second."""
    assert images.labels is not None
    torch.manual_seed(0)
    network = build_network(name, images.shape, len(images.class_names))
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    set_batchnorm_momentum(network, 0.05)
    optimizer = torch.optim.SGD(network.parameters(), momentum=0.9, nesterov=True, weight_decay=WEIGHT_DECAY)
    pool, stream = Images(images.images), Stream("labeled", len(images), BATCH, seed=0)
    labels = torch.from_numpy(images.labels)
    started, step, spent = time.process_time(), 0, 0.0
    while (spent := (time.process_time() - started) / threads) < seconds:
        rows = stream.rows(step)
        views = augmenter.apply(pool.take(rows), augmenter.plan("weak", BATCH, generator(0, step, "weak")))
        loss = F.cross_entropy(network(views.contiguous(memory_format=torch.channels_last)), labels[rows])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        warmup = min(1.0, (step + 1) / 50)
        optimizer.param_groups[0]["lr"] = LEARNING_RATE * warmup * math.cos(math.pi / 2 * spent / seconds)
        optimizer.step()
        step += 1
    return network, step * BATCH / spent


@torch.no_grad()
def accuracy(network: Network, images: ImageSet, augmenter: Augmenter) -> float:
    """Percent of the test images."""
    assert images.labels is not None
    network.eval()
    chunks = torch.split(torch.from_numpy(images.images), 500)
    predicted = torch.cat([network(augmenter.normalize(chunk)).argmax(dim=1) for chunk in chunks])
    return (predicted == torch.from_numpy(images.labels)).float().mean().item() * 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir")
    parser.add_argument("--seconds", type=float, default=100.0, help="for each network")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("networks", nargs="*", default=["small", "wrn-10-1", "wrn-16-1"])
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    images, test = load("cifar100", options.data_dir)
    assert test is not None
    augmenter = Augmenter(images.shape, images.mean, images.std)
    print("network      parameters  images/s  test accuracy (%)")
    for name in options.networks:
        network, speed = train(name, images, augmenter, options.seconds, options.threads)
        size = sum(parameter.numel() for parameter in network.parameters())
        print(f"{name:12} {size:10,} {speed:9,.0f} {accuracy(network, test, augmenter):10.1f}", flush=True)


if __name__ == "__main__":
    main()
