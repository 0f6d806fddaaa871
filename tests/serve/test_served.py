"""Both kinds of run are looked at alike; one inference runs at a time, and too many who wait are sent away."""

from __future__ import annotations

import asyncio
import base64
import io
import threading
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from starlette.exceptions import HTTPException
from starlette.requests import Request

import osp
from helpers.finished import finished
from osp.data import decode as decoder
from osp.data.decode import Unreadable
from osp.data.decode_pool import Decoder
from osp.serve.line import Line, Uploads
from osp.serve.served import open_served


def test_a_trained_run_says_what_osp_predict_says_and_shows_its_labelled_images(tmp_path: Path) -> None:
    run = finished()
    served = open_served(run.folder.path)
    test = osp.data.load("digits")[1]
    assert test is not None
    file = tmp_path / "digit.png"
    Image.fromarray(test.images[3, 0]).save(file)
    (wanted,) = osp.load(run.folder.path).predict_files([file])
    said = served(file.read_bytes(), accept=0.95, neighbors=5, explain=True, most_pixels=10_000)
    assert list(said["probabilities"].values()) == pytest.approx(wanted.probabilities, abs=1e-5)
    assert said["ood_score"] == pytest.approx(wanted.ood_score, abs=1e-5)
    assert said["in"] == wanted.inside
    heatmap = base64.b64decode(said["heatmap"].partition(",")[2])
    assert Image.open(io.BytesIO(heatmap)).size == (224, 224)  # 8x8, made large enough to be seen
    assert len(said["neighbors"]) == 5
    assert all(each["photo"] for each in said["neighbors"])
    shown = served.show(said["neighbors"][0]["number"])
    assert shown is not None
    assert shown.shape == (8, 8, 3)
    group = run.group("labeled")
    assert group is not None
    assert group.targets is not None
    names = [served.names[group.targets[each["number"]]] for each in said["neighbors"]]
    assert names == [each["class"] for each in said["neighbors"]]
    facts = served.about()
    assert facts["kind"] == "train"
    assert facts["labeled"] == np.bincount(group.targets).tolist()
    with pytest.raises(Unreadable, match="absurdly large"):
        served(file.read_bytes(), accept=0.95, neighbors=0, explain=False, most_pixels=63)


class Client(Request):
    """Who asks; gone when it is said to be."""

    def __init__(self) -> None:
        super().__init__({"type": "http"})
        self.gone = False

    async def is_disconnected(self) -> bool:
        return self.gone


def test_what_nobody_waits_for_is_not_worked_on() -> None:
    done = threading.Event()
    worked: list[int] = []

    def answer(number: int, _: Decoder) -> None:
        done.wait(10)
        worked.append(number)

    async def scene() -> None:
        line, clients = Line(5), [Client() for _ in range(3)]
        work = [partial(answer, number) for number in range(3)]
        asked = [asyncio.create_task(line.run(client, each)) for client, each in zip(clients, work, strict=True)]
        await asyncio.sleep(0.05)
        clients[1].gone = True
        done.set()
        found = await asyncio.gather(*asked, return_exceptions=True)
        assert isinstance(found[1], HTTPException)
        assert "has gone" in found[1].detail
        line.close()

    asyncio.run(scene())
    assert worked == [0, 2]


def test_who_waits_and_goes_leaves_the_place_to_others_at_once() -> None:
    done = threading.Event()

    async def scene() -> None:
        line, clients = Line(2), [Client() for _ in range(3)]
        asked = [asyncio.create_task(line.run(client, lambda _: done.wait(30))) for client in clients[:2]]
        await asyncio.sleep(0.05)
        clients[1].gone = True
        with pytest.raises(HTTPException, match="has gone"):
            await asked[1]
        last = asyncio.create_task(line.run(clients[2], lambda _: True))
        done.set()
        assert all(await asyncio.gather(asked[0], last))
        line.close()

    asyncio.run(scene())


def test_an_image_is_not_decoded_further_when_its_client_has_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = Path(decoder.__file__).read_text()
    loop = "        try:\n            images.append("
    assert program.count(loop) == 1
    (tmp_path / "worker.py").write_text(program.replace(loop, "        while path == b'slow': pass\n" + loop))
    monkeypatch.setattr(decoder, "__file__", str(tmp_path / "worker.py"))
    Image.new("RGB", (8, 8), (7, 0, 0)).save(tmp_path / "a.png")

    async def scene() -> None:
        line, clients = Line(2), [Client() for _ in range(2)]
        slow = asyncio.create_task(line.run(clients[0], lambda decode: decode(b"slow", 8)))
        next_one = asyncio.create_task(line.run(clients[1], lambda decode: decode(str(tmp_path / "a.png"), 8)))
        await asyncio.sleep(1)
        assert not next_one.done()
        clients[0].gone = True
        started = time.monotonic()
        with pytest.raises(Unreadable):
            await slow
        assert (await next_one)[0, 0, 0] == 7
        assert time.monotonic() - started < decoder.SECONDS / 2
        line.close()

    asyncio.run(scene())


def test_one_at_a_time_off_the_event_loop_and_no_more_than_fit() -> None:
    running, most, done = 0, 0, threading.Event()

    def work(_: Decoder) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        done.wait(10)
        running -= 1
        return threading.get_ident()

    async def ask(line: Line) -> int:
        return await line.run(Client(), work)

    async def scene() -> list[int]:
        line = Line(3)
        asked = [asyncio.create_task(ask(line)) for _ in range(3)]
        await asyncio.sleep(0.05)
        with pytest.raises(HTTPException) as told:  # the loop answers while the thread works
            await ask(line)
        assert told.value.status_code == 503
        assert int((told.value.headers or {})["Retry-After"]) >= 1
        done.set()
        found = await asyncio.gather(*asked)
        assert await ask(line) == found[0]  # there is room again
        line.close()
        return found

    threads = asyncio.run(scene())
    assert most == 1
    assert set(threads) != {threading.get_ident()}
    assert len(set(threads)) == 1


def test_a_closed_line_drops_those_who_wait_and_finishes_the_one_at_work() -> None:
    finished_work: list[float] = []

    def work(_: Decoder) -> None:
        time.sleep(0.2)
        finished_work.append(time.monotonic())

    async def scene() -> None:
        line = Line(5)
        tasks = [asyncio.create_task(line.run(Client(), work)) for _ in range(3)]
        await asyncio.sleep(0.05)
        line.close()
        for task in tasks[1:]:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(scene())
    assert len(finished_work) == 1


def test_an_upload_that_ends_by_its_own_clock_harms_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest one gives way in the very tick in which its time is over."""

    async def crowded() -> None:
        async with asyncio.timeout(None) as oldest:
            uploads._arriving = {oldest: 0, newest: 0}
            oldest._on_timeout()  # type: ignore[attr-defined]  # its clock rings
            uploads._make_room(newest)
            await asyncio.sleep(1)

    monkeypatch.setattr("osp.serve.line.MOST_UPLOADS", 1)
    uploads, newest = Uploads(10, 10, 60), asyncio.Timeout(None)
    with pytest.raises(TimeoutError):
        asyncio.run(crowded())
    assert list(uploads._arriving) == [newest]
