"""Answers about single photos: on the disk before they count, the last one wins, and "none of mine" teaches."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from osp.errors import UserError
from osp.photos.labels import BOOK, NONE, Book, Label, current, read_labels


def label(number: int, name: str, file: str = "") -> Label:
    return Label(file or f"/pile/{number}.jpg", name, f"{number:032x}")


def names(path: Path) -> dict[int, str]:
    return {int(content, 16): each.name for content, each in current(read_labels(path)).items()}


def test_the_last_answer_of_a_photo_counts_and_an_empty_one_takes_it_back(tmp_path: Path) -> None:
    book = Book(tmp_path / BOOK)
    book.add([label(1, "cat"), label(2, "cat")])
    book.add([label(2, NONE)])
    book.add([label(3, "dog")])
    book.add([label(1, "")])
    assert names(book.path) == {2: NONE, 3: "dog"}
    assert [len(answer) for answer in Book(book.path).answers] == [2, 1, 1, 1]
    assert book.path.read_text().splitlines()[0] == "path,checksum,class,time"


def test_names_that_look_like_tables_formulas_or_several_lines_come_back(tmp_path: Path) -> None:
    odd = ["=1+1", 'a,"b"\nc', "'quoted", " -x ", "ünï 🐘", "none?"]
    book = Book(tmp_path / BOOK)
    for number, name in enumerate(odd):
        book.add([label(number, name, f"/pile/{name}.jpg")])
    found = current(read_labels(book.path))
    assert [(each.name, each.file) for each in found.values()] == [(name, f"/pile/{name}.jpg") for name in odd]


@pytest.mark.parametrize("name", ["cat", 'two\nlines "of" text'])
def test_a_line_cut_anywhere_is_passed_over_and_what_comes_after_it_counts(tmp_path: Path, name: str) -> None:
    book = Book(tmp_path / BOOK)
    book.add([label(1, name)])
    whole = book.path.read_bytes()
    book.add([label(2, name)])
    both = book.path.read_bytes()
    for end in range(len(whole), len(both)):
        book.path.write_bytes(both[:end])
        assert names(book.path) == {1: name}
        Book(book.path).add([label(3, "dog")])
        assert names(book.path) == {1: name, 3: "dog"}


def test_damaged_lines_are_passed_over_and_another_table_is_refused(tmp_path: Path) -> None:
    path = tmp_path / BOOK
    path.write_bytes(
        b"\xef\xbb\xbfchecksum,path,class\n" + f"{1:032x},/a.jpg,cat\n".encode() + b"x,/b.jpg,cat\n,,\n\xff\n"
    )
    assert names(path) == {1: "cat"}
    path.write_text("file,label\na.jpg,cat\n")
    with pytest.raises(UserError, match="its first line should be path,checksum,class,time"):
        read_labels(path)
    with pytest.raises(UserError, match="cannot be read: No such file"):
        read_labels(tmp_path / "absent.csv")


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("diary")
    (tmp_path / BOOK).symlink_to(tmp_path / "mine")
    with pytest.raises(UserError, match="it is a link"):
        Book(tmp_path / BOOK)
    assert (tmp_path / "mine").read_text() == "diary"


def test_an_answer_that_cannot_be_written_leaves_the_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = Book(tmp_path / BOOK)
    book.add([label(1, "cat")])
    before = book.path.read_bytes()
    write = __import__("os").write
    monkeypatch.setattr("osp.photos.labels.os.write", lambda handle, content: write(handle, content[:10]))
    with pytest.raises(UserError, match="the disk is full"):
        book.add([label(2, "cat")])
    assert book.path.read_bytes() == before
    assert len(book.answers) == 1
    assert json.dumps(names(book.path)) == '{"1": "cat"}'
