"""The door: names, places, sizes, and the sets that need no reading of files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import osp.data
from osp.errors import UserError


def test_every_name_is_listed() -> None:
    expected = {
        "digits",
        "mnist",
        "cifar10",
        "cifar100",
        "tinyimagenet",
        "stl10",
        "lsun",
        "gaussian",
        "uniform",
        "folder",
        "pile",
        "shards",
    }
    assert set(osp.data.available()) == expected


def test_importing_the_package_stays_light() -> None:
    program = "import sys, osp.data; print([m for m in ('torch', 'sklearn', 'PIL') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_an_unknown_name_is_refused_with_a_near_miss() -> None:
    with pytest.raises(UserError, match=r"no data set 'cifar11'. Did you mean 'cifar10'\?"):
        osp.data.load("cifar11")


@pytest.mark.parametrize("size", [0, 7, -3, 5000, 2.5, "32"])
def test_an_impossible_size_is_refused(size: object) -> None:
    with pytest.raises(UserError, match="size is"):
        osp.data.load("digits", size=size)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["mnist", "cifar10", "cifar100", "tinyimagenet", "stl10", "lsun", "folder", "pile"])
def test_a_data_folder_that_is_a_file_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="is a file"):
        osp.data.load(name, tmp_path / "file")


@pytest.mark.parametrize("name", ["mnist", "cifar10", "tinyimagenet", "stl10", "lsun", "folder", "pile"])
@pytest.mark.parametrize("below", [False, True])
def test_a_data_folder_that_cannot_be_read_is_refused(tmp_path: Path, name: str, below: bool) -> None:
    folders = {"mnist": "MNIST", "cifar10": "cifar-10-batches-py", "stl10": "stl10_binary", "lsun": "LSUN_resize"}
    inside = folders.get(name, "tiny-imagenet-200") if below else ""
    if not hasattr(os, "seteuid"):
        pytest.skip("needs Unix permissions")
    folder = tmp_path / "data"
    (folder / inside).mkdir(parents=True, exist_ok=True)
    (folder / inside).chmod(0o000)
    for parent in (tmp_path, *list(tmp_path.parents)[:2]):
        parent.chmod(0o755)
    user = os.geteuid()
    if user == 0:  # root may read everything: become somebody else for a moment
        os.seteuid(65534)
    try:
        with pytest.raises(UserError, match=r"(?i)permission denied"):
            osp.data.load(name, folder)
    finally:
        os.seteuid(user)
        (folder / inside).chmod(0o755)


def test_the_folder_comes_from_the_argument_then_the_environment_then_the_users_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "osp" in str(osp.data.data_dir())
    monkeypatch.setenv("OSP_DATA", str(tmp_path / "env"))
    assert osp.data.data_dir() == tmp_path / "env"
    assert osp.data.data_dir(tmp_path / "arg") == tmp_path / "arg"
    with pytest.raises(UserError, match="name is empty"):
        osp.data.data_dir("")


def test_digits_are_split_by_class_once_and_for_all() -> None:
    train, test = osp.data.load("digits")
    assert test is not None
    assert train.labels is not None
    assert test.labels is not None
    assert len(train) + len(test) == 1797
    counts = np.bincount(np.concatenate([train.labels, test.labels]))
    assert np.bincount(test.labels).tolist() == [count // 3 for count in counts]
    assert (train.shape, train.images.min(), train.images.max()) == ((1, 8, 8), 0, 255)
    assert (train.mirror, train.cutout) == (False, False)
    again, _ = osp.data.load("digits", seed=5)
    np.testing.assert_array_equal(again.images, train.images)
    assert osp.data.load("digits", size=16)[0].shape == (1, 16, 16)
    np.testing.assert_allclose(train.mean, train.images.mean() / 255, atol=1e-4)


@pytest.mark.parametrize("name", ["gaussian", "uniform"])
def test_noise_has_its_distribution_and_follows_the_seed(name: str) -> None:
    train, test = osp.data.load(name, seed=3)
    assert test is not None
    assert train.images.shape == (10_000, 3, 32, 32)
    assert test.images.shape == (2_000, 3, 32, 32)
    assert train.labels is None
    black, white = (train.images == 0).mean(), (train.images == 255).mean()
    # N(0.5, 1) is below 0 with probability 0.3085, and below half a grey level with 0.0007 more
    expected = 0.3092 if name == "gaussian" else 0.5 / 255
    assert abs(black - expected) < 5e-4
    assert abs(white - expected) < 5e-4
    assert abs(train.images.mean() - 127.5) < 0.1
    flat = train.images[:, 0, 0, :2].astype(float)
    assert abs(np.corrcoef(flat.T)[0, 1]) < 0.05
    assert (train.images[:2000] != test.images).mean() > 0.5
    small, again, other = (osp.data.load(name, size=8, seed=seed)[0] for seed in (3, 3, 4))
    assert small.shape == (3, 8, 8)
    np.testing.assert_array_equal(again.images, small.images)
    assert (other.images != small.images).mean() > 0.5


def test_a_missing_lsun_says_what_to_put_where(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"LSUN_resize.tar.gz.*into"):
        osp.data.load("lsun", tmp_path)


def test_an_empty_folder_is_described_without_an_error(tmp_path: Path) -> None:
    infos = {info.name: info for info in osp.data.describe(tmp_path)}
    assert list(infos) == osp.data.available()
    own = {"folder", "pile", "shards"}
    assert {name for name, info in infos.items() if info.found} == {"digits", "gaussian", "uniform"} | own
    for name in ("mnist", "cifar10", "cifar100", "tinyimagenet", "stl10", "lsun"):
        assert str(tmp_path) in infos[name].where
        assert str(tmp_path) in infos[name].how


def test_a_broken_folder_is_described_with_its_problem(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    problems = {info.name: info.problem for info in osp.data.describe(tmp_path / "file")}
    assert "is a file" in str(problems["cifar10"])
    assert problems["digits"] is None
