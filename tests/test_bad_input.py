"""Every mistake a user can make: one clear message, exit code 2, no traceback, nothing half-written."""

from __future__ import annotations

import os
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest

from helpers.commands import osp

BINARY = bytes(range(256)) * 4


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A working folder with the broken files that the cases name."""
    (tmp_path / "file").write_text("not a folder")
    (tmp_path / "empty").mkdir()
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "notes.txt").write_text("mine")
    recipes = {
        "misspelt.yaml": "metod: fixmatch\n",
        "misspelt_option.yaml": "method: fixmatch\noptions:\n  thresold: 0.9\n",
        "options_number.yaml": "options: 3\n",
        "not_yaml.yaml": "data: [digits\n",
        "list.yaml": "- digits\n- fixmatch\n",
        "text.yaml": "just words\n",
        "nothing.yaml": "",
        "code.yaml": "method: ./evil.py\n",
        "wrong_type.yaml": "steps: many\n",
    }
    for name, content in recipes.items():
        (tmp_path / name).write_text(content, "utf-8")
    (tmp_path / "binary.yaml").write_bytes(BINARY)
    write_mnist(tmp_path / "mnist_truncated", cut=100)
    write_cifar10(tmp_path / "cifar_truncated", cut=3000)
    write_photos(tmp_path / "one_class", {"cats": 12})
    write_photos(tmp_path / "two_classes", {"cats": 12, "dogs": 12})
    (tmp_path / "unreadable" / "cats").mkdir(parents=True)
    (tmp_path / "unreadable" / "cats" / "a.jpg").write_text("a text file named .jpg")
    (tmp_path / "broken.py").write_text("import a_package_that_does_not_exist\n")
    (tmp_path / "no_method.py").write_text("x = 1\n")
    (tmp_path / "evil.py").write_text("open('ran', 'w')\n")
    return tmp_path


def write_mnist(root: Path, cut: int) -> None:
    """Ten idx images of which the last `cut` bytes are missing."""
    raw = root / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for part in ("train", "t10k"):
        images = struct.pack(">IIII", 0x803, 10, 28, 28) + bytes(10 * 28 * 28)
        (raw / f"{part}-images-idx3-ubyte").write_bytes(images[:-cut])
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 0x801, 10) + bytes(range(10)))


def write_cifar10(root: Path, cut: int) -> None:
    """Five small batches, the second of which lacks its last bytes."""
    batches = root / "cifar-10-batches-py"
    batches.mkdir(parents=True)
    content = pickle.dumps({b"data": np.zeros((10, 3072), np.uint8), b"labels": list(range(10))}, protocol=2)
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        (batches / name).write_bytes(content[:-cut] if name == "data_batch_2" else content)


def write_photos(root: Path, counts: dict[str, int]) -> None:
    from PIL import Image

    draws = np.random.default_rng(0)
    for name, count in counts.items():
        (root / name).mkdir(parents=True)
        for number in range(count):
            pixels = draws.integers(0, 256, (16, 16, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / name / f"{number}.png")


def contents(folder: Path) -> dict[str, bytes | None]:
    """Every file and folder below, with what it holds; caches aside."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
        if path.relative_to(folder).parts[0] not in ("cache", "home", "__pycache__")
    }


def refused(folder: Path, arguments: list[str]) -> str:
    """Run a command that must be refused; gives what it said."""
    before = contents(folder)
    done = osp(
        folder,
        *arguments,
        OSP_DATA=None,
        XDG_CACHE_HOME=str(folder / "cache"),
        HOME=str(folder / "home"),
        OSP_MIRROR="http://127.0.0.1:9",  # nobody listens: no test fetches a data set
    )
    assert done.returncode == 2, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr
    *others, message = done.stderr.strip().splitlines()
    assert all(line.startswith(("Decoding ", "osp: warning: ")) for line in others), done.stderr
    assert message.startswith("osp: ")
    assert contents(folder) == before, "something was written"
    return message


ALL_CLASSES = "id_classes=[0,1,2,3,4,5,6,7,8,9]"

CASES: dict[str, tuple[str, list[str]]] = {
    # name: (arguments, words that the message must hold)
    "unknown command": ("trian", ["'trian'", "'train'"]),
    "unknown option": ("train --ood-rato 0.5", ["--ood-rato", "'--ood-ratio'"]),
    "a recipe's field as an option": ("train --eval-every 9", ["--eval-every", "--set eval_every=9"]),
    "a method's option as an option": ("train --lr 0.1", ["--lr", "--set lr=0.1", "osp settings METHOD"]),
    "a method's option near an option": ("train --score=knn", ["--score", "--set score=knn"]),
    "another program's word": ("train --gpu", ["--gpu", "--set device=cuda"]),
    "another program's word for an option": ("train --epochs 3", ["--epochs", "--steps N"]),
    "an option of nobody": ("train --zzz 3", ["--zzz", "--data-dir", "--seed"]),
    "unknown method to explain": ("settings fixmach", ["'fixmach'", "'fixmatch'"]),
    "recipe with a method file": ("train --recipe code.yaml", ["code.yaml", "--method ./evil.py"]),
    "out folder of nobody's home": ("train --out ~nobody_here/run", ["~nobody_here"]),
    "data folder of nobody's home": ("train --data-dir ~nobody_here", ["~nobody_here"]),
    "OOD folder of nobody's home": ("train --ood-dir ~nobody_here", ["~nobody_here"]),
    "recipe in nobody's home": ("train --recipe ~nobody_here/r.yaml", ["~nobody_here"]),
    "demo in nobody's home": ("demo --out ~nobody_here/run", ["~nobody_here"]),
    "data folder of nobody's home, to look in": ("datasets --data-dir ~nobody_here", ["~nobody_here"]),
    "out folder with too long a name": (f"train --out {'x' * 300}", ["xxx", "name too long"]),
    "unknown data set": ("train --data minst", ["'minst'", "'mnist'"]),
    "unknown data set, nothing near": ("train --data zzz", ["'zzz'", "cifar100", "folder"]),
    "unknown OOD data set": ("train --ood-data lsum", ["'lsum'", "'lsun'"]),
    "unknown method": ("train --method fixmach", ["'fixmach'", "'fixmatch'"]),
    "unknown method to show": ("methods fixmach", ["'fixmach'", "'fixmatch'"]),
    "method file missing": ("train --method ./none.py", ["none.py", "does not exist"]),
    "method file broken": ("train --method ./broken.py", ["broken.py", "a_package_that_does_not_exist"]),
    "method file without a method": ("train --method ./no_method.py", ["no_method.py", "none"]),
    "unknown key of --set": ("train --set thresold=0.9", ["'thresold'", "'threshold'"]),
    "unknown key of --set, near a field": ("train --set eval_evry=9", ["'eval_evry'", "'eval_every'"]),
    "--set without a value": ("train --set lr", ["'lr'", "key=value"]),
    "--set with a value out of range": ("train --set lr=-1", ["lr", "-1", "greater than 0"]),
    "--set with a value of a wrong kind": ("train --set batch=many", ["batch", "'many'", "integer"]),
    "unknown network": ("train --network resnet", ["'resnet'", "small", "wrn"]),
    "impossible network": ("train --network wrn-11-2", ["wrn-11-2", "16"]),
    "unknown preset": ("train --preset papr", ["'papr'", "'default', 'paper' or 'v0.1'"]),
    "unknown preset to show": ("methods fixmatch --preset papr", ["'papr'", "'paper'"]),
    "unknown scale": ("train --scale gpu", ["'gpu'", "'demo', 'cpu' or 'paper'"]),
    "unknown recipe field": ("train --recipe misspelt.yaml", ["'metod'", "'method'"]),
    "unknown option in a recipe": ("train --recipe misspelt_option.yaml", ["'thresold'", "'threshold'"]),
    "recipe options not a mapping": ("train --recipe options_number.yaml", ["options", "3"]),
    "recipe value of a wrong kind": ("train --recipe wrong_type.yaml", ["steps", "'many'", "integer"]),
    "recipe not YAML": ("train --recipe not_yaml.yaml", ["not_yaml.yaml", "YAML", "line"]),
    "recipe a list": ("train --recipe list.yaml", ["list.yaml", "field: value"]),
    "recipe a text": ("train --recipe text.yaml", ["text.yaml", "field: value"]),
    "recipe empty": ("train --recipe nothing.yaml", ["nothing.yaml", "field: value"]),
    "recipe binary": ("train --recipe binary.yaml", ["binary.yaml", "text"]),
    "recipe missing": ("train --recipe none.yaml", ["none.yaml", "No such file"]),
    "recipe a folder": ("train --recipe empty", ["empty", "directory"]),
    "ratio above 1": ("train --ood-ratio 1.5", ["ood_ratio", "1.5", "less than or equal to 1"]),
    "ratio below 0": ("train --ood-ratio -0.1", ["ood_ratio", "-0.1", "greater than or equal to 0"]),
    "ratio not a number": ("train --ood-ratio nan", ["ood_ratio", "nan", "0 to 1"]),
    "ratio infinite": ("train --ood-ratio inf", ["ood_ratio", "inf"]),
    "ratio a word": ("train --ood-ratio half", ["--ood-ratio"]),
    "ratio without an OOD class": (
        f"train --ood-ratio 0.5 --set {ALL_CLASSES}",
        ["0.5", "all 10 classes", "ood_ratio"],
    ),
    "more labels than images": (
        "train --labels-per-class 5000",
        ["5000", "largest that fits beside 10 validation images (val_per_class) is 108"],
    ),
    "no label": ("train --labels-per-class 0", ["labels_per_class", "0"]),
    "more unlabelled than images": ("train --unlabeled 100000", ["100000", "largest total that fits", "779"]),
    "unknown class": ("train --set id_classes=[0,77]", ["77", "0 to 9"]),
    "no step": ("train --steps 0", ["steps", "0", "greater than or equal to 1"]),
    "half a step": ("train --steps 1.5", ["--steps", "integer"]),
    "negative seed": ("train --seed -1", ["seed", "-1"]),
    "negative seed of the demo": ("demo --seed -1", ["seed", "-1"]),
    "device that is not there": ("train --set device=tpu", ["device", "'tpu'", "'cpu'"]),
    "data folder a file": ("train --data mnist --data-dir file", ["file", "is a file"]),
    "data folder a file, for datasets": ("datasets --data-dir file", ["file", "is a file"]),
    "data folder of photos a file": ("train --data folder --data-dir file", ["file", "is a file"]),
    "data folder empty": ("train --data folder --data-dir empty", ["empty", "no image"]),
    "data folder missing": ("train --data folder --data-dir none", ["none", "does not exist"]),
    "data folder not named": ("train --data folder", ["data_dir"]),
    "data folder's name empty": ("train --data mnist --data-dir=", ["folder"]),
    "data folder without the files": ("train --data mnist --data-dir empty", ["mnist", "train-images-idx3-ubyte.gz"]),
    "CIFAR folder without the files": ("train --data cifar100 --data-dir empty", ["cifar-100-python.tar.gz"]),
    "photos unreadable": ("train --data folder --data-dir unreadable", ["unreadable"]),
    "photos of one class": ("train --data folder --data-dir one_class", ["1", "at least 2"]),
    "photos fewer than labels": ("train --data folder --data-dir two_classes --labels-per-class 50", ["50", "10"]),
    "idx file truncated": (
        "train --data mnist --data-dir mnist_truncated",
        ["train-images-idx3-ubyte", "7,856", "7,756"],
    ),
    "CIFAR batch truncated": ("train --data cifar10 --data-dir cifar_truncated", ["data_batch_2", "cut short"]),
    "out folder a file": ("train --out file", ["file", "is a file"]),
    "out folder below a file": ("train --out file/run", ["file", "is a file; name a folder"]),
    "out folder cannot be made": ("train --out /proc/osp_run", ["/proc/osp_run", "cannot"]),
    "out folder in use": ("train --out used", ["used", "not empty", "--resume"]),
    "out folder of the demo a file": ("demo --out file", ["file", "is a file; name a folder"]),
    "nothing to resume": ("train --resume --out empty", ["empty", "no run", "plan.yaml"]),
}


@pytest.mark.parametrize("case", CASES)
def test_a_mistake_is_refused_in_one_sentence_and_leaves_nothing(folder: Path, case: str) -> None:
    text, words = CASES[case]
    arguments = text.split()
    if arguments[0] == "train" and "--out" not in arguments:
        arguments += ["--out", "run"]
    message = refused(folder, arguments)
    for word in words:
        assert word.lower() in message.lower()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read and write everything")
def test_folders_without_permission_are_refused(folder: Path) -> None:
    locked = folder / "locked"
    locked.mkdir(mode=0o000)
    try:
        for arguments in (["--out", "locked/run"], ["--data", "mnist", "--data-dir", "locked", "--out", "run"]):
            done = osp(folder, "train", "--steps", "1", *arguments)
            assert done.returncode == 2
            assert "locked" in done.stderr
            assert "Traceback" not in done.stderr
            assert not (folder / "run").exists()
    finally:
        locked.chmod(0o700)
