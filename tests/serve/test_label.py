"""`osp label`: answers are on the disk before they count, and whoever does not know the token learns nothing."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("starlette")
from starlette.testclient import TestClient

from helpers.commands import osp
from helpers.small_backbone import small_backbone
from osp.errors import UserError
from osp.models.photo import BACKBONES
from osp.photos import labeling
from osp.photos.asking import OPEN
from osp.photos.features import compute
from osp.photos.fit import fit
from osp.photos.folder import FILES, SUMS
from osp.photos.labeling import Labeling, checked_name, finish, labeling_in
from osp.photos.labels import BOOK, NONE, current, read_labels
from osp.photos.photographs import Listed, list_pile
from osp.report import write_report
from osp.serve.label import make_app
from osp.verify import verify

COLORS = {"red": (200, 40, 40), "blue": (40, 40, 200), "green": (40, 200, 40)}
TOKEN = "t" * 20


@pytest.fixture(autouse=True)
def _own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OSP_CACHE", str(tmp_path / "cache"))
    for name in ("lite0", "tiles"):
        monkeypatch.setitem(BACKBONES, name, small_backbone)


def make_pile(folder: Path, each: int = 15) -> Path:
    folder.mkdir(parents=True)
    for number, (name, color) in enumerate(COLORS.items()):
        for seed in range(each):
            draws = np.random.default_rng(100 * number + seed)
            coarse = draws.normal(size=(5, 6, 3)).repeat(8, 0).repeat(8, 1) * 30
            pixels = np.clip(np.array(color) + coarse, 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / f"{name} {seed}.png")
    return folder


class Person:
    """Somebody at the page, without the threads behind it: thinking is done when asked."""

    def __init__(
        self, out: Path, pile: Path, sorted_files: Listed | None = None, classes: tuple[str, ...] = ()
    ) -> None:
        out.mkdir(exist_ok=True)
        self.state = Labeling(out, sorted_files or Listed(), classes, list_pile(pile).files)
        self.ended: list[bool] = []
        self.app, self.close = make_app(self.state, lambda: self.ended.append(True), TOKEN)
        self.client = TestClient(self.app, base_url="http://127.0.0.1", raise_server_exceptions=False)
        self.state._look(small_backbone())
        self.state.think()

    def view(self) -> dict[str, Any]:
        self.state.think()
        found: dict[str, Any] = self.client.get("/state", params={"token": TOKEN}).json()
        return found

    def post(self, path: str, **body: Any) -> Any:
        return self.client.post(path, params={"token": TOKEN}, json=body)

    def truth(self, number: int) -> str:
        color = Path(self.state.files[number]).name.split()[0]
        return NONE if color == "green" else color

    def answer(self, question: dict[str, Any]) -> Any:
        """By the most frequent color; the others lose their tick."""
        names = [self.truth(number) for number in question["photos"]]
        best = max(set(names), key=names.count)
        photos = [n for n, name in zip(question["photos"], names, strict=True) if name == best]
        return self.post("/answer", photos=photos, others=[n for n in question["photos"] if n not in photos], name=best)

    def told(self) -> dict[str, str]:
        return {Path(label.file).name: label.name for label in current(read_labels(self.state.book.path)).values()}


@pytest.fixture
def person(tmp_path: Path) -> Iterator[Person]:
    made = Person(tmp_path / "run", make_pile(tmp_path / "pile"))
    yield made
    made.close()


def test_from_nothing_to_a_run_that_all_commands_take(person: Person, tmp_path: Path) -> None:
    first = person.view()
    assert first["classes"] == []
    assert len(first["question"]["photos"]) == 6
    for _ in range(6):
        question = person.view()["question"]
        assert person.answer(question).status_code == 200
    after = person.view()
    assert {each["name"] for each in after["classes"]} == {"red", "blue"}
    assert after["none"] >= 5
    assert (after["answers"], after["current"]) == (6, True)
    guessed = person.state.known.guessed
    assert guessed is not None
    truth = [person.truth(n) for n in person.state.known.numbers]
    names = np.where(guessed.inside, np.array([*person.state.known.names])[guessed.classes], NONE)
    assert np.mean(names == np.array(truth)) > 0.9
    person.state.cross_validate()
    figures = person.state.figures
    assert figures["accuracy"] > 80
    assert figures["answers"] == 6
    run, pile = tmp_path / "run", tmp_path / "pile"
    made = finish(person.state, run, None, pile, None, lambda _: None, None)
    assert made is not None
    assert set(made.result["classes"]) == {"red", "blue"}
    assert made.result["none_of_them"] >= 5
    assert all(verdict.whole for verdict in verify(run))
    person.answer(person.view()["question"])
    again = finish(person.state, run, None, pile, None, lambda _: None, None)
    assert again is not None
    assert all(verdict.whole for verdict in verify(run))
    assert len(read_labels(run / BOOK)) == 7
    assert fit(None, None, tmp_path / "on", earlier=run).result["none_of_them"] >= 5


def test_the_run_says_what_the_page_said_and_sorts_what_was_labeled_where_it_belongs(tmp_path: Path) -> None:
    person = Person(tmp_path / "run", make_pile(tmp_path / "pile", each=30))
    for _ in range(5):
        person.answer(person.view()["question"])
    copied = next(name for name, told in person.told().items() if told == "red")
    person.state.cross_validate()
    known = person.state.known
    assert known.guessed is not None
    assert (known.labels == OPEN).sum() > 30
    page = np.where(known.guessed.inside, np.array(known.names)[known.guessed.classes], NONE)
    made = finish(person.state, tmp_path / "run", None, tmp_path / "pile", None, lambda _: None, None)
    assert made is not None
    files = [person.state.files[n] for n in known.numbers]
    said = {each.file: each.label if each.inside else NONE for each in made.model.predict_files(files)}
    rest = np.flatnonzero(known.labels == OPEN)
    assert [said[files[row]] for row in rest] == page[rest].tolist()
    told = person.told()
    shutil.copy(tmp_path / "pile" / copied, tmp_path / "pile" / "copy.png")
    done = osp(tmp_path, "sort", "run", "pile", "--to", "out", "--as", "links")
    assert done.returncode == 0, done.stderr
    placed = {path.name: path.relative_to(tmp_path / "out").parts[0] for path in (tmp_path / "out").rglob("*.png")}
    assert len(placed) == len(files) + 1
    assert {name: placed[name] for name in told} == {
        name: "_unknown" if label == NONE else label for name, label in told.items()
    }
    assert placed["copy.png"] == "red"
    assert "stay where they are" not in done.stdout
    person.close()


def test_an_answer_is_on_the_disk_before_it_is_confirmed_and_undone_any_number_of_times(person: Person) -> None:
    start = person.told()
    states = [start]
    for _ in range(4):
        person.answer(person.view()["question"])
        states.append(person.told())
    assert len(states[-1]) > len(states[0])
    for before in reversed(states[:-1]):
        again = person.post("/undo").json()["again"]
        assert person.told() == before
        assert again
    assert person.post("/undo").json()["again"] == []
    assert person.view()["answers"] == 0
    assert person.view()["classes"] == []  # emptied by undo: no class is left over
    lines = person.state.book.path.read_text().splitlines()
    assert len(lines) == 1 + 2 * sum(len(after) - len(before) for before, after in pairwise(states))


def test_a_new_server_knows_every_answer_and_can_still_undo_them(person: Person, tmp_path: Path) -> None:
    for _ in range(3):
        person.answer(person.view()["question"])
    person.post("/undo")
    before, told = person.view(), person.told()
    with open(person.state.book.path, "ab") as file:
        file.write(b"/cut/short.png,0123")
    other = Person(tmp_path / "run", tmp_path / "pile")
    after = other.view()
    assert other.told() == told
    assert {name: after[name] for name in ("answers", "classes", "none")} == {
        name: before[name] for name in ("answers", "classes", "none")
    }
    other.post("/undo")
    assert other.view()["answers"] == 1
    other.close()


def test_names_that_are_not_utf_8_and_numbers_of_another_session_confuse_no_page(tmp_path: Path) -> None:
    pile = make_pile(tmp_path / "pile", each=4)
    for photo in sorted(pile.glob("red *")):
        photo.rename(pile / os.fsdecode(os.fsencode(photo.name) + b" caf\xe9.png"))
    person = Person(tmp_path / "run", pile)
    question = person.view()["question"]
    assert any("caf\\udce9" in name for name in question["names"])
    person.post("/answer", photos=question["photos"], others=[], name="red")
    files = {person.state.files[n] for n in question["photos"]}
    assert {label.file for label in current(read_labels(person.state.book.path)).values()} == files
    shown = person.client.get("/photo/0", params={"token": TOKEN})
    assert (shown.status_code, shown.headers["cache-control"]) == (200, "no-store")
    person.close()


def test_copies_of_a_photo_are_no_evidence_of_accuracy(tmp_path: Path) -> None:
    pile = make_pile(tmp_path / "pile", each=6)
    for photo in sorted(pile.glob("*.png")):
        for number in range(3):
            shutil.copy(photo, pile / f"{photo.stem} copy {number}.png")
    person = Person(tmp_path / "run", pile)
    for name in ("red", "blue"):
        photos = [n for n in person.state._numbers if person.truth(n) == name]
        person.post("/answer", photos=photos, others=[], name=name)
    person.view()
    person.state.cross_validate()
    assert person.state.figures["images"] == 12
    person.close()


def test_a_question_is_about_a_class_only_where_its_photos_are_taken_for_it(person: Person) -> None:
    for _ in range(6):
        person.answer(person.view()["question"])
    person.view()
    ask = {"token": TOKEN, "about": "red"}
    found = person.client.get("/state", params=ask).json()
    assert (found["about"], found["question"]["guess"]) == ("red", "red")
    person.post("/answer", photos=[found["question"]["photos"][0]], others=[], name="new")
    assert person.client.get("/state", params=ask).json()["about"] == ""  # no guess knows the new class yet
    assert person.client.get("/state", params={**ask, "about": "none such"}).json()["about"] == ""


def test_classes_stand_in_the_order_in_which_they_were_named(person: Person) -> None:
    for number, name in enumerate(("zebra", "ant", "mouse")):
        person.post("/answer", photos=[number], others=[], name=name)
    assert [each["name"] for each in person.view()["classes"]] == ["zebra", "ant", "mouse"]


def test_no_part_of_a_fast_look_is_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def noted(files: list[str], backbone: Any) -> Any:
        sizes.append(len(files))
        return compute(files, backbone)

    monkeypatch.setattr(labeling, "compute", noted)
    monkeypatch.setattr(labeling, "FIRST", 2)
    monkeypatch.setattr(labeling, "MOST_AT_ONCE", 5)
    monkeypatch.setattr(labeling, "SECONDS", 1e9)
    Person(tmp_path / "run", make_pile(tmp_path / "pile", each=4)).close()
    assert sizes == [2, 5, 5]


def test_two_tabs_that_answer_the_same_question_agree_and_the_last_wins(person: Person) -> None:
    question = person.view()["question"]
    person.post("/answer", photos=question["photos"], others=[], name="red")
    person.post("/answer", photos=question["photos"], others=[], name="blue")
    assert set(person.told().values()) == {"blue"}
    assert len(person.told()) == len(question["photos"])
    person.post("/undo")
    assert set(person.told().values()) == {"red"}
    person.post("/answer", photos=[question["photos"][0]] * 3, others=[], name="blue")
    assert sorted(person.told().values()).count("blue") == 1


def test_a_skipped_question_is_not_asked_again_and_writes_nothing(person: Person) -> None:
    first = person.view()["question"]["photos"]
    assert person.post("/answer", photos=[], others=first, name="").json()["question"]["photos"] != first
    assert person.told() == {}


def test_photos_that_vanish_cost_nothing_but_themselves(person: Person, tmp_path: Path) -> None:
    for _ in range(6):
        question = person.view()["question"]
        person.answer(question)
    Path(person.state.files[question["photos"][0]]).unlink()
    assert (
        person.client.get(f"/photo/{question['photos'][0]}", params={"token": TOKEN, "size": "large"}).status_code
        == 404
    )
    said: list[str] = []
    made = finish(person.state, tmp_path / "run", None, tmp_path / "pile", None, said.append, None)
    assert made is not None
    shutil.rmtree(tmp_path / "pile")
    assert person.answer(person.view()["question"]).status_code == 200


def test_a_run_that_cannot_be_written_or_has_lost_a_class_keeps_every_answer(person: Person, tmp_path: Path) -> None:
    for _ in range(6):
        person.answer(person.view()["question"])
    told = person.told()
    given = (person.state, tmp_path / "run", None, tmp_path / "pile", None, lambda _: None, None)

    def full(*_: object, **__: object) -> None:
        raise UserError("The model cannot be written to run: No space left on device.")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("osp.photos.labeling.fit", full)
        with pytest.raises(UserError, match=r"^No run was written\..* No space left .* Your answers are kept in "):
            finish(*given)
    for file in (tmp_path / "pile").glob("red *"):
        file.unlink()
    with pytest.raises(UserError, match="Your answers are kept in "):
        finish(*given)
    assert person.told() == told
    assert [path.name for path in (tmp_path / "run").iterdir()] == [BOOK]


def test_a_pile_without_photos_is_refused_before_a_folder_is_made(tmp_path: Path) -> None:
    (tmp_path / "pile").mkdir()
    for pile in ("pile", "nowhere"):
        done = osp(tmp_path, "label", pile, "--out", "run", "--no-open")
        assert done.returncode == 2
        assert len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_photos_in_folders_are_known_and_not_asked_about(tmp_path: Path) -> None:
    pile = make_pile(tmp_path / "pile")
    for color in ("red", "blue"):
        place = tmp_path / "sorted" / color
        place.mkdir(parents=True)
        for seed in range(4):
            shutil.move(pile / f"{color} {seed}.png", place / f"{seed}.png")
    files = [str(path) for path in sorted((tmp_path / "sorted").rglob("*.png"))]
    listed = Listed(files, [0 if "blue" in file else 1 for file in files])
    person = Person(tmp_path / "run", pile, listed, ("blue", "red"))
    view = person.view()
    assert [(each["name"], each["labeled"]) for each in view["classes"]] == [("blue", 4), ("red", 4)]
    assert min(view["question"]["photos"]) >= 8
    strip = person.client.get("/state", params={"token": TOKEN, "about": "red"}).json()["question"]
    assert strip["guess"] == "red"
    assert np.mean([person.truth(n) == "red" for n in strip["photos"]]) >= 0.5
    assert person.post("/answer", photos=[0], others=[], name="red").status_code == 422
    person.close()


def test_ten_photos_and_an_unreadable_one_are_enough_to_ask(tmp_path: Path) -> None:
    pile = make_pile(tmp_path / "pile", each=3)
    (pile / "broken.jpg").write_bytes(b"no image")
    person = Person(tmp_path / "run", pile)
    seen = 0
    while (question := person.view()["question"]) is not None:
        person.answer(question)
        seen += 1
        assert seen < 20
    assert len(person.told()) == 9
    assert finish(person.state, tmp_path / "run", None, pile, None, lambda _: None, None) is not None
    person.close()


def test_one_class_is_no_run_and_the_answers_are_kept(person: Person, tmp_path: Path) -> None:
    question = person.view()["question"]
    person.post("/answer", photos=question["photos"], others=[], name="red")
    assert finish(person.state, tmp_path / "run", None, tmp_path / "pile", None, lambda _: None, None) is None
    assert person.told()


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/state", {}, 403),
        ("/", {}, 403),
        ("/photo/0", {}, 403),
        ("/state?token=wrong", {}, 403),
        (f"/state?token={TOKEN}", {"Host": "evil.example"}, 421),
        (f"/state?token={TOKEN}", {"Origin": "http://evil.example"}, 403),
        (f"/state?token={TOKEN}", {"Sec-Fetch-Site": "cross-site"}, 403),
        (f"/state?token={TOKEN}", {}, 200),
        (f"/photo/99999?token={TOKEN}", {}, 404),
        (f"/state?token={TOKEN}&version=x", {}, 422),
    ],
)
def test_who_may_ask(person: Person, path: str, headers: dict[str, str], status: int) -> None:
    answer = TestClient(person.app, base_url="http://127.0.0.1").get(path, headers=headers)
    assert answer.status_code == status
    if status != 200:
        assert set(answer.json()) == {"error"}


def test_the_page_gives_a_cookie_that_only_it_can_use(person: Person) -> None:
    client = TestClient(person.app, base_url="http://127.0.0.1")
    page = client.get("/", params={"token": TOKEN})
    assert "HttpOnly" in page.headers["set-cookie"]
    assert "samesite=strict" in page.headers["set-cookie"].lower()
    assert "connect-src 'self'" in page.headers["content-security-policy"]
    assert client.get("/state").status_code == 200
    assert client.get("/photo/0").headers["content-type"] == "image/jpeg"


@pytest.mark.parametrize(
    "body",
    ["[]", "{", '{"photos": [0.5], "name": "a"}', '{"photos": [true], "name": "a"}', '{"photos": [0]}']
    + [json.dumps({"photos": [0], "name": name}) for name in ("a/b", "..", "_unknown", "x\ny", "x" * 81, " ")]
    + ['{"photos": [-1], "name": "a"}', '{"photos": [100000], "name": "a"}'],
)
def test_what_is_no_answer_is_refused_and_writes_nothing(person: Person, body: str) -> None:
    kind = {"Content-Type": "application/json"}
    answer = person.client.post("/answer", params={"token": TOKEN}, content=body, headers=kind)
    assert answer.status_code == 422
    assert person.told() == {}
    plain = person.client.post("/answer", params={"token": TOKEN}, content=body, headers={"Content-Type": "text/plain"})
    assert plain.status_code == 415


def test_a_folder_that_holds_something_else_or_is_labeled_in_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "diary.txt").write_text("x")
    with pytest.raises(UserError, match=r"has no labels\.csv"), labeling_in(tmp_path / "mine"):
        pass
    with labeling_in(tmp_path / "run"):
        (tmp_path / "run" / BOOK).write_text("path,checksum,class,time\n")
        with pytest.raises(UserError, match="Another osp label works"), labeling_in(tmp_path / "run"):
            pass
    assert checked_name("  Grüne Libelle ") == "Grüne Libelle"


def test_classes_that_look_like_formulas_are_learned_and_read_again(person: Person, tmp_path: Path) -> None:
    names = {"red": "+1", "blue": "=x", "green": "@home"}
    for _ in range(6):
        question = person.view()["question"]
        colors = [Path(person.state.files[number]).name.split()[0] for number in question["photos"]]
        photos = [number for number, color in zip(question["photos"], colors, strict=True) if color == colors[0]]
        assert person.post("/answer", photos=photos, others=[], name=names[colors[0]]).status_code == 200
    made = finish(person.state, tmp_path / "run", None, tmp_path / "pile", None, lambda _: None, None)
    assert made is not None
    assert set(made.result["classes"]) <= set(names.values())
    assert all(verdict.whole for verdict in verify(tmp_path / "run"))
    assert "+1" in write_report(made).read_text()


def test_no_file_of_a_run_is_written_through_a_link(person: Person, tmp_path: Path) -> None:
    mine, run = tmp_path / "mine", tmp_path / "run"
    mine.write_text("diary")
    for name in (*FILES, SUMS, "report.html"):
        (run / name).symlink_to(mine)
    for _ in range(6):
        person.answer(person.view()["question"])
    made = finish(person.state, run, None, tmp_path / "pile", None, lambda _: None, None)
    assert made is not None
    write_report(made)
    assert mine.read_text() == "diary"
    assert all(verdict.whole for verdict in verify(run))
    book = person.state.book.path.read_bytes()
    person.state.book.path.unlink()
    person.state.book.path.symlink_to(mine)
    assert person.answer(person.view()["question"]).status_code == 422
    assert (mine.read_text(), b"path,checksum" in book) == ("diary", True)


def test_those_who_wait_for_guesses_or_have_gone_keep_no_answer_out(person: Person) -> None:
    async def scene() -> float:
        gone = {"type": "http.disconnect"}

        async def ask(path: str, query: str, receive: Any) -> int:
            statuses: list[int] = []

            async def send(message: Any) -> None:
                statuses.append(message.get("status", 0))

            scope = {"type": "http", "method": "GET", "path": path, "query_string": f"token={TOKEN}{query}".encode()}
            await person.app({**scope, "headers": [(b"host", b"localhost")]}, receive, send)
            return statuses[0]

        async def left() -> Any:
            return gone

        async def waits() -> Any:
            await asyncio.Event().wait()

        many = [asyncio.create_task(ask("/state", "&version=999", waits)) for _ in range(20)]
        started = time.monotonic()
        assert await asyncio.gather(*[ask("/state", "&version=999", left) for _ in range(20)]) == [200] * 20
        assert await ask("/state", "", waits) == 200
        taken = time.monotonic() - started
        for each in many:
            each.cancel()
        return taken

    assert asyncio.run(scene()) < 4  # a single wait takes 5 seconds


def test_the_threads_behind_the_page_look_think_and_work_out_figures(tmp_path: Path) -> None:
    state = Labeling(tmp_path, Listed(), (), list_pile(make_pile(tmp_path / "pile", each=10)).files)
    state.start(small_backbone)

    def wait(version: int) -> None:
        end = time.monotonic() + 60
        while state.known.answers < version and time.monotonic() < end:
            time.sleep(0.02)

    wait(0)
    view = state.view()
    assert view["question"] is not None
    state.answer(view["question"]["photos"], [], "red")
    wait(1)
    assert state.view()["current"]
    state.stop()
    assert not any(thread.is_alive() for thread in state._threads)
    assert state.problem == ""


def test_a_backbone_that_cannot_be_opened_is_said_on_the_page(tmp_path: Path) -> None:
    def broken() -> Any:
        raise UserError("The weights are missing.")

    state = Labeling(tmp_path, Listed(), (), list_pile(make_pile(tmp_path / "pile", each=2)).files)
    state.start(broken)
    state._threads[0].join(30)
    assert state.view()["problem"] == "The weights are missing."
    state.stop()
