"""CIFAR-10 (Krizhevsky, 2009): ten classes of 32x32 photographs."""

from __future__ import annotations

from osp.data.source import Remote, SplitDefaults
from osp.data.sources._cifar import Cifar, Layout

ADDRESS = "https://www.cs.toronto.edu/~kriz"

CIFAR10 = Cifar(
    layouts=(
        Layout(
            "cifar-10-batches-py",
            Remote(f"{ADDRESS}/cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a"),
            tuple(f"data_batch_{i}" for i in range(1, 6)),
            "test_batch",
            "batches.meta",
            {
                "data_batch_1": "c99cafc152244af753f735de768cd75f",
                "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
                "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
                "data_batch_4": "634d18415352ddfa80567beed471001a",
                "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
                "test_batch": "40351d587109b95175f43aff81a1287e",
            },
            "labels",
        ),
        Layout(
            "cifar-10-batches-bin",
            Remote(f"{ADDRESS}/cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"),
            tuple(f"data_batch_{i}.bin" for i in range(1, 6)),
            "test_batch.bin",
            "batches.meta.txt",
            {},
            "labels",
            label_bytes=1,
        ),
    ),
    names=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    train_per_class=5_000,
    test_per_class=1_000,
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2471, 0.2435, 0.2616),
)

SOURCE = CIFAR10.source(
    # Table 3 of the paper: the animals (bird, cat, deer, dog, frog, horse) are ID
    within=SplitDefaults(tuple(range(2, 8)), 400, unlabeled=20_000, ood_ratio=0.6, val_per_class=50),
    # the paper's inter-dataset setting
    across=SplitDefaults(labels_per_class=25, ood_count=10_000, val_per_class=500),
)
