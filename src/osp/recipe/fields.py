"""What each field of a recipe means, in words: for `osp.Recipe`, `osp settings` and the options of `osp train`.

Nothing is imported here, so that help comes at once.
"""

from __future__ import annotations

from typing import NamedTuple


class Text(NamedTuple):
    """The words about one field."""

    meaning: str
    unset: str
    """What holds where the field is left out."""
    option: str = ""
    """The help of its own option of `osp train`; a field without one is given by `--set`."""
    kind: type = str
    """Of that option's value."""


GROUPS: dict[str, dict[str, Text]] = {
    "Data": {
        "data": Text(
            "data set; see `osp datasets`, or ./a_file.py",
            "digits",
            "Data set; `osp datasets` lists them. Or a file: ./farm.py",
        ),
        "data_dir": Text(
            "folder of the data; else OSP_DATA, else the user's cache folder",
            "OSP_DATA or cache",
            "Folder of the data; else OSP_DATA, else your cache folder.",
        ),
        "image_size": Text("resize images to this side", "the set's own"),
        "ood_data": Text(
            "another data set whose images pollute the pool",
            "the set's other classes",
            "Another data set in the pool; `pile` or `shards` for your own unsorted images.",
        ),
        "ood_dir": Text(
            "folder of `ood_data`, where it is not `data_dir`",
            "data_dir",
            "Folder of --ood-data, if it is not --data-dir.",
        ),
    },
    "Method and scale": {
        "method": Text(
            "method; see `osp methods`, or ./a_file.py",
            "osp",
            "Method; `osp methods` lists them. Or a file: ./mine.py",
        ),
        "preset": Text(
            "values of the method's options: default (one harness), paper (as published) or v0.1 (earlier defaults)",
            "default",
            "Method options: default (common harness), paper, or v0.1 (earlier defaults).",
        ),
        "options": Text("options of the method, by name: `osp settings METHOD` lists them", "the method's"),
        "scale": Text(
            "demo (seconds), cpu (minutes on two cores) or paper (the published network and steps)",
            "cpu",
            "demo (seconds), cpu (minutes) or paper (as published).",
        ),
    },
    "Split": {
        "ood_ratio": Text(
            "share of the unlabeled images that is OOD",
            "by the data set",
            "Share of the pool that shows none of the classes, 0 to 1.",
            float,
        ),
        "id_classes": Text("classes to learn, by number or name", "the set's usual ones"),
        "labels_per_class": Text("labeled images per class", "by the data set", "Labeled images per class.", int),
        "val_per_class": Text("validation images per class", "by the data set"),
        "unlabeled": Text(
            "unlabeled images in all", "as many as fit", "Unlabeled images in all; default: as many as fit.", int
        ),
        "id_count": Text(
            "number of unlabeled ID images, instead of a total",
            "what the total leaves",
            "Unlabeled ID images, in place of a total.",
            int,
        ),
        "ood_count": Text(
            "number of OOD images, instead of a ratio",
            "by ood_ratio",
            "Unlabeled OOD images, in place of a ratio.",
            int,
        ),
    },
    "Test": {
        "test_ood": Text(
            "other data sets that the trained model is tested on as OOD",
            "none",
            "Test the model on these OOD sets too, such as uniform,cifar10.",
        ),
    },
    "Network and length": {
        "network": Text(
            "cnn, fast, small, wrn-DEPTH-WIDTH, or ./a_file.py",
            "by data and scale",
            "cnn, fast, small, or wrn-DEPTH-WIDTH such as wrn-28-2. Or a file: ./tiny.py",
        ),
        "steps": Text(
            "optimizer steps in all, over all stages",
            "by data and scale",
            "Length of the run; a short one is a long one scaled down.",
            int,
        ),
        "bn_momentum": Text("batch-norm momentum", "by the length"),
        "eval_every": Text("steps between validations", "a 20th of the run"),
        "log_every": Text("steps between lines of metrics.jsonl", "a 100th of the run"),
        "save_every": Text("steps between checkpoints, beside those by time", "by time alone"),
        "save_seconds": Text("seconds between checkpoints", "60"),
        "tensorboard": Text(
            "write curves into RUN/tensorboard as well; look at them with `tensorboard --logdir runs` "
            "(the extra `tensorboard`)",
            "false",
        ),
        "tracker": Text(
            "also give every number to these: tensorboard,wandb,mlflow (extras of the same names). They write into "
            "the run's folder; `wandb:online` or `mlflow:online` sends them where that package is set up to",
            "none",
        ),
    },
    "Machine": {
        "seed": Text("seed of everything random", "0", "Seed of everything random.", int),
        "device": Text(
            "auto takes a CUDA GPU if there is one, else the CPU; `--set device=cpu` forces one",
            "auto",
        ),
        "precision": Text(
            "32-true is plain float32; bf16-mixed and 16-mixed are faster on GPUs and a little less exact", "32-true"
        ),
        "threads": Text(
            "CPU threads; results may differ in the last digits between numbers of threads", "torch's choice"
        ),
        "channels_last": Text("memory layout; faster on most devices", "true"),
        "group": Text("images per pass through the encoder; 0 = all", "by the device"),
        "compile": Text("torch.compile the encoder: a minute at the start, then faster steps on most GPUs", "false"),
    },
}

TEXTS = {name: text for group in GROUPS.values() for name, text in group.items()}
