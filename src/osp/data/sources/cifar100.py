"""CIFAR-100 (Krizhevsky, 2009): a hundred classes of 32x32 photographs."""

from __future__ import annotations

from osp.data.source import SplitDefaults
from osp.data.sources.cifar10 import Cifar, Layout, archive

CIFAR100 = Cifar(
    layouts=(
        Layout(
            archive("cifar-100-python", "eb9058c3a382ffc7106e4002c42a8d85", "cifar-100-python"),
            ("train",),
            "test",
            "meta",
            "fine_labels",
            md5={"train": "16019d7e3df5f24257cddd939b257f8d", "test": "f0ef6b0ae62326f3e7ffdfab6717acfc"},
        ),
        Layout(
            archive("cifar-100-binary", "03b5dce01913d631647c71ecec9e9cb8", "cifar-100-binary"),
            ("train.bin",),
            "test.bin",
            "fine_label_names.txt",
            "fine_labels",
            label_bytes=2,
        ),
    ),
    names=tuple(map(str, range(100))),
    mean=(0.5071, 0.4867, 0.4408),
    std=(0.2675, 0.2565, 0.2761),
)

SOURCE = CIFAR100.source(
    class_sizes=(500,) * 100,
    within=SplitDefaults(tuple(range(50)), 100, unlabeled=20_000, ood_ratio=0.6, val_per_class=50),  # Table 3
)
