"""Answers about single photos: on the disk before they count, the last one wins, and "none of mine" teaches."""

from __future__ import annotations

import json
import os
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
        there = {1: name} if end < len(both) - 2 else {1: name, 2: name}  # only the end of the line is missing
        assert names(book.path) == there
        Book(book.path).add([label(3, "dog")])
        assert names(book.path) == {**there, 3: "dog"}
        assert b"\r\r" not in book.path.read_bytes()


def test_files_whose_names_are_not_utf_8_keep_their_labels(tmp_path: Path) -> None:
    name = os.fsdecode(b"/pile/caf\xe9.png")
    Book(tmp_path / BOOK).add([label(1, "cat", name)])
    assert b"caf\xe9.png" in (tmp_path / BOOK).read_bytes()
    assert [each.file for each in current(read_labels(tmp_path / BOOK)).values()] == [name]


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


@pytest.mark.parametrize(
    "content", [b"my notes", b"file,label\na.jpg,cat\nb.jpg,dog", b"[1, 2]\n", b'"never closed\n' * 3]
)
def test_a_file_of_somebody_elses_is_refused_and_left_as_it_is(tmp_path: Path, content: bytes) -> None:
    (tmp_path / BOOK).write_bytes(content)
    with pytest.raises(UserError, match=BOOK):
        Book(tmp_path / BOOK)
    assert (tmp_path / BOOK).read_bytes() == content


@pytest.mark.parametrize("line", [0, 1, 2, 40, 398])
def test_a_quotation_mark_that_was_damaged_into_the_file_deletes_no_answer(tmp_path: Path, line: int) -> None:
    book = Book(tmp_path / BOOK)
    for number in range(400):
        book.add([label(number, "cat")])
    lines = book.path.read_bytes().splitlines(keepends=True)
    lines[line] = b'"' + lines[line][1:]
    book.path.write_bytes(b"".join(lines))
    for read in (read_labels, Book):
        with pytest.raises(UserError, match="a quotation mark in it is never closed"):
            read(book.path)
    assert book.path.read_bytes() == b"".join(lines)


def test_a_file_that_is_no_book_by_its_size_is_not_read(tmp_path: Path) -> None:
    Book(tmp_path / BOOK)
    os.truncate(tmp_path / BOOK, 1 << 30)
    for read in (read_labels, Book):
        with pytest.raises(UserError, match="longer than 64 MB"):
            read(tmp_path / BOOK)
    assert (tmp_path / BOOK).stat().st_size == 1 << 30


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
