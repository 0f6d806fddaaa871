"""CIFAR-100 (Krizhevsky, 2009): a hundred classes of 32x32 photographs."""

from __future__ import annotations

from osp.data.source import Remote, SplitDefaults
from osp.data.sources._cifar import Cifar, Layout

ADDRESS = "https://www.cs.toronto.edu/~kriz"

CIFAR100 = Cifar(
    layouts=(
        Layout(
            "cifar-100-python",
            Remote(f"{ADDRESS}/cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85"),
            ("train",),
            "test",
            "meta",
            {"train": "16019d7e3df5f24257cddd939b257f8d", "test": "f0ef6b0ae62326f3e7ffdfab6717acfc"},
            "fine_labels",
        ),
        Layout(
            "cifar-100-binary",
            Remote(f"{ADDRESS}/cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8"),
            ("train.bin",),
            "test.bin",
            "fine_label_names.txt",
            {},
            "fine_labels",
            label_bytes=2,
        ),
    ),
    names=tuple(map(str, range(100))),
    train_per_class=500,
    test_per_class=100,
    mean=(0.5071, 0.4867, 0.4408),
    std=(0.2675, 0.2565, 0.2761),
)

SOURCE = CIFAR100.source(
    within=SplitDefaults(tuple(range(50)), 100, unlabeled=20_000, ood_ratio=0.6, val_per_class=50),  # Table 3
)
