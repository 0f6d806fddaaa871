"""Files made to do harm: each must be refused, or shown harmlessly, without running, following or filling anything."""

from __future__ import annotations

import io
import json
import pickle
import shutil
import struct
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

from PIL import Image

from helpers.bombs import deep, endless, huge, pipe, progressive, tiled
from helpers.small_backbone import small_backbone, write_photo
from osp.data.decode import Unreadable, decode
from osp.data.fetch import extract
from osp.data.unpickle import load_plain
from osp.errors import UserError
from osp.models.model import Prediction
from osp.models.photo import load_model
from osp.photos.fit import fit
from osp.photos.sorting import sort_pile
from osp.recipe import Recipe
from osp.runs.checkpoint import load_checkpoint
from osp.runs.fitted import read_fit
from torture import slow, sorted_folders
from torture.trial import trial
from torture.works import _finished

MARK = "touched"
"""A file that malicious content tries to make."""


class _Evil:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[object, ...]:
        return (open, (str(self.target), "w"))


def cases(base: Path) -> Iterator[tuple[str, Callable[[], str]]]:
    base.mkdir(parents=True)
    for protocol in range(6):
        yield f"pickle, protocol {protocol}", lambda p=protocol: _refused(base, _pickle, p)  # type: ignore[misc]
    for text in ("!!python/object/apply:os.system [touch touched]", "&a [*a, *a]", "[" * 5000, "{<<: *x}"):
        yield f"YAML {text[:20]!r}", lambda t=text: _refused(base, _yaml, t)  # type: ignore[misc]
    for length in (2**63, 2**40, 100_000_001, 8, 0):
        yield f"safetensors header of {length}", lambda n=length: _refused(base, _safetensors, n)  # type: ignore[misc]
    for name in ("../touched", "/tmp/osp-touched", "set/../../touched", "link", "device", "bomb"):
        yield f"tar {name}", lambda n=name: _refused(base, _tar, n)  # type: ignore[misc]
        yield f"zip {name}", lambda n=name: _refused(base, _zip, n)  # type: ignore[misc]
    for mode in ("RGBA", "F", "P", "L", "RGB"):
        yield f"image bomb {mode}", lambda m=mode: _refused(base, _image, m)  # type: ignore[misc]
    yield from sorted_folders.cases(base / "sorted")
    for name, content in (("scans", progressive(7000, 1500)), ("tile", tiled(16, 8000))):
        yield f"image of one {name} too many", lambda c=content: _refused(base, _content, c)  # type: ignore[misc]
    for name in ("photos.json", "photos.safetensors", "result.json", "labels.json", "pile.csv", "sample.npz"):
        for harm in (deep, pipe, endless, huge):
            yield f"fit, {name} {harm.__name__}", lambda n=name, h=harm: _refused(base, _fit, n, h)  # type: ignore[misc]
    yield from slow.cases(base / "slow")
    yield "file names in sorted.csv", lambda: _names(base / "names")
    yield "names in report.html", lambda: _page(base / "page")


def _refused(base: Path, make: Callable[..., Callable[[], object]], *given: object) -> str:
    folder = base / f"{make.__name__}-{abs(hash(given))}"
    folder.mkdir()
    read = make(folder, *given)
    outcome = trial(read, seconds=120)
    if outcome.kind != "refused":
        return str(outcome)
    stray = [path for path in (folder / MARK, folder.parent / MARK, Path("/tmp/osp-touched")) if path.exists()]
    return f"made {stray}" if stray else ""


def _pickle(folder: Path, protocol: int) -> Callable[[], object]:
    (folder / "batch").write_bytes(pickle.dumps({"data": _Evil(folder / MARK)}, protocol))
    return lambda: load_plain(folder / "batch")


def _yaml(folder: Path, text: str) -> Callable[[], object]:
    (folder / "recipe.yaml").write_text(f"options: {text}\n", "utf-8")
    return lambda: Recipe.read(folder / "recipe.yaml")


def _safetensors(folder: Path, length: int) -> Callable[[], object]:
    header = json.dumps({"a": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", length) + header)
    return lambda: load_checkpoint(folder / "model.safetensors")


def _tar(folder: Path, name: str) -> Callable[[], object]:
    with tarfile.open(folder / "set.tar.gz", "w:gz") as archive:
        member = tarfile.TarInfo(name if "touched" in name else "set/x")
        if name == "link":
            member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
        elif name == "device":
            member.type = tarfile.CHRTYPE
        member.size = 10**8 if name == "bomb" else 0
        archive.addfile(member, io.BytesIO(bytes(member.size)))
    return lambda: _unpack(folder / "set.tar.gz")


def _zip(folder: Path, name: str) -> Callable[[], object]:
    with zipfile.ZipFile(folder / "set.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        member = zipfile.ZipInfo(name if "touched" in name else "set/x")
        kinds = {"link": 0o120777, "device": 0o020666}
        member.external_attr = kinds.get(name, 0o100644) << 16
        member.compress_type = zipfile.ZIP_DEFLATED
        archive.writestr(member, bytes(10**8) if name == "bomb" else b"x")
    return lambda: _unpack(folder / "set.zip")


def _unpack(archive: Path) -> object:
    from osp.data import fetch

    fetch.LARGEST_UNPACKED = 10**7  # the limit itself is 16 GB, which nobody wants to write in a test
    return extract(archive, archive.parent, "set")


def _image(folder: Path, mode: str) -> Callable[[], object]:
    file = folder / ("a.tif" if mode == "F" else "a.png")
    Image.new(mode, (13_000, 13_000)).save(file)
    return _decoded(file)


def _decoded(file: Path) -> Callable[[], object]:
    def read() -> object:
        try:
            return decode(str(file), 32)
        except Unreadable as reason:
            raise UserError(str(reason)) from None

    return read


def _content(folder: Path, content: bytes) -> Callable[[], object]:
    (folder / "a.jpg").write_bytes(content)
    return _decoded(folder / "a.jpg")


def _fit(folder: Path, name: str, harm: Callable[[Path], None]) -> Callable[[], object]:
    """A fit of which one file is none of ours; read as `osp report` and `osp predict` read it."""
    good, backbone = folder.parent / "fitted", small_backbone()
    if not good.exists():
        for number in range(12):
            write_photo(good / ("sorted/a", "sorted/b", "pile")[number % 3] / f"{number}.png", number)
        fit(good / "sorted", good / "pile", good / "run", backbone=backbone)
    shutil.copytree(good / "run", folder / "run")
    harm(folder / "run" / name)
    return lambda: (read_fit(folder / "run"), load_model(folder / "run", backbone))


NAMES = ("=cmd|' /C calc'!A0.jpg", "+1.jpg", "@x.jpg", "-2+3.jpg", "<script>alert(1)<", "a\nb.jpg", "\x1b[2J.jpg")


def _names(base: Path) -> str:
    (base / "pile").mkdir(parents=True)
    files = [base / "pile" / name.replace("/", "_") for name in NAMES]
    for file in files:
        file.write_bytes(b"x")
    sort_pile([Prediction(file.name, "=cat()", 0.9, 0.1, True) for file in files], base / "out", "csv")
    cells = [cell for line in (base / "out/sorted.csv").read_text("utf-8").split("\n") for cell in line.split(",")]
    return next((f"the cell {cell!r}" for cell in cells if cell.lstrip('"')[:1] in ("=", "+", "@", "\t")), "")


def _page(base: Path) -> str:
    from osp.report.page import write_report

    base.mkdir(parents=True)
    _finished(base)
    path = base / "run/result.json"
    fields = json.loads(path.read_text("utf-8"))
    evil = "<script>alert(1)</script><img src=x onerror=alert(1)>"
    fields |= {"class_names": [evil] * len(fields["class_names"]), "warnings": [evil]}
    fields |= {"method": evil, "data_variant": evil}
    path.write_text(json.dumps(fields), "utf-8")
    page = write_report(base / "run", None, base / "report.html").read_text("utf-8")
    return "markup reached the page" if "<script>alert" in page or "<img src=x" in page else ""
