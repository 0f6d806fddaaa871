"""Keywords in XMP sidecars: read by other programs, added to what is there, and taken back byte for byte."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_sorting import killed_at, make_pile, tree

from osp.models.model import Prediction
from osp.photos.journal import JOURNAL
from osp.photos.sidecars import merged
from osp.photos.sorting import sort_pile
from osp.photos.undoing import undo
from osp.verify import verify

RDF, DC = "{http://www.w3.org/1999/02/22-rdf-syntax-ns#}", "{http://purl.org/dc/elements/1.1/}"
LR = "{http://ns.adobe.com/lightroom/1.0/}"

OURS = b"""<?xml version="1.0" encoding="UTF-8"?>
<x:xmpmeta xmlns:x="adobe:ns:meta/" x:xmptk="XMP Core 4.4.0-Exiv2">
 <R:RDF xmlns:R="http://www.w3.org/1999/02/22-rdf-syntax-ns#">
  <R:Description R:about="some &amp; thing" xmlns:d="http://purl.org/dc/elements/1.1/"
    xmlns:darktable="http://darktable.sf.net/" darktable:xmp_version="5">
   <!-- a remark -->
   <d:subject><R:Seq><R:li>holiday</R:li><R:li>a &lt; b</R:li></R:Seq></d:subject>
  </R:Description>
 </R:RDF>
</x:xmpmeta>
"""
"""As another program writes it, with prefixes of its own."""
USUAL = OURS.replace(b"R:", b"rdf:").replace(b":R=", b":rdf=").replace(b"d:s", b"dc:s").replace(b":d=", b":dc=")
"""With the prefixes that all programs know, which exiv2 needs."""


def keywords(content: bytes) -> tuple[list[str], list[str]]:
    root = ET.fromstring(content)
    found = [
        [item.text or "" for item in root.findall(f".//{name}/*/{RDF}li")]
        for name in (f"{DC}subject", f"{LR}hierarchicalSubject")
    ]
    return found[0], found[1]


def test_a_new_sidecar_has_both_keywords_and_no_date() -> None:
    made = merged(None, "cat", "osp|cat")
    assert keywords(made) == (["cat"], ["osp|cat"])
    assert b"ate" not in made.replace(b"adobe", b"")  # no Date of any kind
    assert merged(made, "cat", "osp|cat") == made


def test_an_old_sidecar_keeps_every_byte_and_gets_the_keywords() -> None:
    made = merged(OURS, "cat", "osp|cat")
    assert keywords(made) == (["holiday", "a < b", "cat"], ["osp|cat"])
    assert merged(OURS, "a < b", "osp|x").count(b"a &lt; b") == 1
    rest = iter(made)
    assert all(byte in rest for byte in OURS)  # in this order
    abouts = [each.get(f"{RDF}about") for each in ET.fromstring(made).iter(f"{RDF}Description")]
    assert abouts == ["some & thing"] * 2


@given(st.text(min_size=1, max_size=20))
def test_any_class_name_is_text(name: str) -> None:
    first, path = keywords(merged(OURS, name, f"osp|{name}"))
    assert len(first[-1]) == len(name)
    assert path[0].startswith("osp|")


@pytest.mark.parametrize(
    "old",
    [
        b"",
        b"no xml",
        b"<x/>",
        OURS[:-20],
        OURS.replace(b"UTF-8", b"ISO-8859-1"),
        OURS.decode().replace("UTF-8", "UTF-16").encode("utf-16"),
        b'<!DOCTYPE x [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]>' + OURS[39:],
        b'<!DOCTYPE x SYSTEM "file:///etc/passwd">' + OURS[39:],
        b'<R:RDF xmlns:R="http://www.w3.org/1999/02/22-rdf-syntax-ns#"/>',
        OURS.replace(b"<R:li>holiday</R:li><R:li>a &lt; b</R:li>", b"").replace(b"<R:Seq></R:Seq>", b"<R:Seq/>"),
        b"<a>" * 5000 + b"</a>" * 5000,
    ],
)
def test_a_sidecar_of_another_form_is_left_alone(old: bytes, tmp_path: Path) -> None:
    (decision,) = make_pile(tmp_path / "pile", ["x.jpg"])
    (tmp_path / "pile/x.jpg.xmp").write_bytes(old)
    before = tree(tmp_path / "pile")
    done = sort_pile([decision], tmp_path / "out", "xmp")
    assert done.failed == ((decision.file, "its sidecar has a form that cannot be added to"),)
    assert not done.counts
    assert tree(tmp_path / "pile") == before


def test_links_pipes_and_giants_are_no_sidecars(tmp_path: Path) -> None:
    decisions = make_pile(tmp_path / "pile", ["a.jpg", "b.jpg", "c.jpg"])
    (tmp_path / "victim").write_bytes(OURS)
    (tmp_path / "pile/a.jpg.xmp").symlink_to(tmp_path / "victim")
    os.mkfifo(tmp_path / "pile/b.jpg.xmp")
    with open(tmp_path / "pile/c.jpg.xmp", "wb") as file:
        file.truncate(1 << 32)
    done = sort_pile(decisions, tmp_path / "out", "xmp")
    assert {why for _, why in done.failed} == {"its sidecar is a link, no file, or too large"}
    assert len(done.failed) == 3
    assert (tmp_path / "victim").read_bytes() == OURS


def make(root: Path) -> list[Prediction]:
    """Sure, unsure, unknown; the first has a sidecar, the second one in another place."""
    decisions = make_pile(root / "pile", ["a.jpg", "sub/b.jpg", "c.jpg"])
    (root / "pile/a.jpg.xmp").write_bytes(OURS)
    os.utime(root / "pile/a.jpg.xmp", ns=(10**18, 10**18))
    return decisions


def test_sidecars_are_written_beside_the_photos_and_taken_back(tmp_path: Path) -> None:
    decisions, pile, out = make(tmp_path), tmp_path / "pile", tmp_path / "out"
    before = tree(pile)
    done = sort_pile(decisions, out, "xmp")
    assert (done.counts, done.failed) == ({"cat": 1, "_unsure/dog": 1, "_unknown": 1}, ())
    assert keywords((pile / "a.jpg.xmp").read_bytes()) == (["holiday", "a < b", "cat"], ["osp|cat"])
    assert keywords((pile / "sub/b.jpg.xmp").read_bytes()) == (["_unsure"], ["osp|_unsure|dog"])
    assert keywords((pile / "c.jpg.xmp").read_bytes()) == (["_unknown"], ["osp|_unknown"])
    written = tree(pile)
    assert {name: written[name] for name in before if name.endswith("jpg")} == {
        name: content for name, content in before.items() if name.endswith("jpg")
    }
    (verdict,) = verify(out)
    assert verdict.whole, verdict
    assert sort_pile(decisions, out, "xmp").counts == done.counts  # nothing twice
    assert tree(pile) == written
    undone = undo(out)
    assert (undone.sidecars, undone.restored, undone.problems) == (3, 0, ())
    assert tree(pile) == before
    assert os.stat(pile / "a.jpg.xmp").st_mtime_ns == 10**18
    assert not out.exists()


def test_keywords_of_an_earlier_sort_give_way_to_those_of_this_one(tmp_path: Path) -> None:
    decisions, pile, out = make(tmp_path), tmp_path / "pile", tmp_path / "out"
    before = tree(pile)
    sort_pile(decisions, out, "xmp")
    first = tree(pile)
    others = [replace(each, label="owl", inside=True, probability=0.99) for each in decisions]
    sort_pile(others, out, "xmp")
    assert keywords((pile / "a.jpg.xmp").read_bytes()) == (["holiday", "a < b", "owl"], ["osp|owl"])
    assert keywords((pile / "c.jpg.xmp").read_bytes()) == (["owl"], ["osp|owl"])
    sort_pile(decisions, out, "xmp")
    assert tree(pile) == first
    (verdict,) = verify(out)
    assert verdict.whole, verdict
    assert not undo(out).problems
    assert tree(pile) == before
    assert not out.exists()


def test_a_sidecar_that_was_changed_since_is_left(tmp_path: Path) -> None:
    decisions, pile, out = make(tmp_path), tmp_path / "pile", tmp_path / "out"
    sort_pile(decisions, out, "xmp")
    for name in ("a.jpg.xmp", "c.jpg.xmp"):
        (pile / name).write_bytes((pile / name).read_bytes() + b"<!-- mine -->")
    changed = tree(pile)
    undone = undo(out)
    assert undone.sidecars == 1
    assert sum("was changed after it was sorted" in why for _, why in undone.problems) == 2
    assert {name: content for name, content in changed.items() if name != "sub/b.jpg.xmp"} == tree(pile)
    assert (out / "_sidecars/a.jpg.xmp").read_bytes() == OURS
    shutil.rmtree(out / "_sidecars")
    (pile / "a.jpg.xmp").write_bytes(changed["a.jpg.xmp"][: -len(b"<!-- mine -->")])
    (verdict,) = verify(out)
    assert any("what the sidecar was before is gone" in each for each in verdict.problems)
    assert any("is gone" in why for _, why in undo(out).problems)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize(
    "links", [pytest.param(True, marks=pytest.mark.slow), pytest.param(False, marks=pytest.mark.nightly)]
)
def test_killed_at_any_operation_every_sidecar_comes_back(
    tmp_path: Path, links: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_link(*_: object, **__: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    if not links:
        monkeypatch.setattr(os, "link", no_link)
    number = 0
    while True:
        root = tmp_path / str(number)
        decisions = make(root)
        before = tree(root / "pile")
        killed = killed_at(number, lambda root=root, given=decisions: sort_pile(given, root / "out", "xmp"))  # type: ignore[misc]
        assert OURS in {*tree(root / "pile").values(), *tree(root / "out").values()}
        step = number % 3
        while (root / "out" / JOURNAL).exists() and killed_at(step, lambda root=root: undo(root / "out")):  # type: ignore[misc]
            step += 3
        if (root / "out" / JOURNAL).exists():
            undo(root / "out")
        assert tree(root / "pile") == before
        if not killed:
            break
        number += 1
    assert number > 12


def test_a_journal_of_a_stranger_deletes_no_file_but_a_sidecar_that_it_wrote(tmp_path: Path) -> None:
    victim, out = tmp_path / "pile", tmp_path / "out"
    victim.mkdir()
    out.mkdir()
    (victim / "diary.txt").write_bytes(b"precious")
    (victim / "x.jpg.xmp").write_bytes(OURS)
    digest = hashlib.blake2b(b"precious", digest_size=16).hexdigest()
    entries: list[dict[str, Any]] = [
        {"action": "xmp", "from": str(victim / "diary.txt"), "to": "", "size": 8, "content": digest},
        {"action": "xmp", "from": str(victim / "x.jpg.xmp"), "to": "", "size": 8, "content": digest},
        {"action": "xmp", "from": str(victim / "y.xmp"), "to": "cat/diary.txt", "size": 8, "content": digest},
    ]
    (out / JOURNAL).write_text("".join(json.dumps(each) + "\n" for each in entries))
    before = tree(victim)
    undo(out, trust_journal=True)
    assert tree(victim) == before


@pytest.mark.parametrize("old", [None, USUAL])
def test_exiftool_and_exiv2_read_the_keywords(tmp_path: Path, old: bytes | None) -> None:
    """Where they are installed (Debian: libimage-exiftool-perl, exiv2); our own reading is tested above."""
    if not any(map(shutil.which, ("exiftool", "exiv2"))):
        pytest.skip("neither exiftool nor exiv2 is there")
    file = tmp_path / "x.jpg.xmp"
    file.write_bytes(merged(old, "cät & dog", "osp|cät & dog"))
    if shutil.which("exiftool"):
        said = subprocess.run(["exiftool", "-j", file], capture_output=True, check=True).stdout
        (found,) = json.loads(said)
        wanted = ["holiday", "a < b", "cät & dog"] if old else "cät & dog"
        assert found["Subject"] == wanted
        assert found["HierarchicalSubject"] == "osp|cät & dog"
        assert "Warning" not in found
        assert not [key for key in found if "Date" in key and not key.startswith("File")]
    if shutil.which("exiv2"):
        said = subprocess.run(["exiv2", "-PXkt", file], capture_output=True, check=True).stdout
        lines = dict(line.split(None, 1) for line in said.decode().splitlines())
        assert lines["Xmp.dc.subject"].strip().endswith("cät & dog")
        assert lines["Xmp.lr.hierarchicalSubject"].strip() == "osp|cät & dog"
