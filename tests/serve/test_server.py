"""`osp serve` as a process of its own, asked over HTTP and in a real browser."""

from __future__ import annotations

import base64
import contextlib
import http.client
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from helpers.browser import browser
from osp.data import folders
from osp.errors import UserError
from osp.models.photo import load_model
from osp.photos.fit import fit
from osp.serve.openapi import listed_types
from osp.serve.server import listen, run_app

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

EVIL = "<img src=x onerror=alert(1)>"
COLORS = {EVIL: (200, 60, 40), "b&amp;b": (40, 60, 200)}


def photo(color: tuple[int, int, int], seed: int, size: int = 60) -> Image.Image:
    coarse = np.random.default_rng(seed).normal(size=(6, 6, 3)).repeat(size // 6, 0).repeat(size // 6, 1) * 40
    return Image.fromarray(np.clip(np.array(color) + coarse, 0, 255).astype(np.uint8))


class Server:
    """A running `osp serve`."""

    def __init__(self, process: subprocess.Popen[str], run: Path, photos: Path) -> None:
        self.process, self.run, self.photos = process, run, photos
        line = ""
        while "Serving on" not in line:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, process.communicate()
        found = re.search(r"http://127\.0\.0\.1:(\d+)/", line)
        assert found, line
        self.port = int(found[1])
        self.address = found[0]

    def ask(
        self, path: str, method: str = "GET", body: bytes | None = None, **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            given = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, body, given)
            answer = connection.getresponse()
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
        finally:
            connection.close()

    def predict(self, body: bytes, query: str = "", **headers: str) -> tuple[int, Any]:
        headers = {"Content_Type": "image/png", **headers}
        status, _, content = self.ask(f"/predict{query}", "POST", body, **headers)
        return status, json.loads(content)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    root = tmp_path_factory.mktemp("served")
    environment = {**os.environ, "OSP_CACHE": str(root / "cache")}
    for number, (name, color) in enumerate(COLORS.items()):
        (root / "sorted" / name).mkdir(parents=True)
        for seed in range(5):
            photo(color, 10 * number + seed).save(root / "sorted" / name / f"{seed}.png")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OSP_CACHE", str(root / "cache"))
        run = fit(root / "sorted", None, root / "run").path
    command = [sys.executable, "-m", "osp", "serve", str(run), "--port", "0", "--max-mb", "1", "--max-megapixels", "4"]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        yield Server(process, run, root / "sorted")
    finally:
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 0, output  # Ctrl-C is how it ends well
        assert output.strip() == "Stopped."  # and nothing was complained about on the way


def test_json_says_what_osp_predict_says(server: Server) -> None:
    file = server.photos.parent / "new.png"
    photo((210, 50, 50), 99).save(file)
    (wanted,) = load_model(server.run).predict_files([file])
    assert not wanted.reason
    status, said = server.predict(file.read_bytes(), "?neighbors=3")
    assert status == 200
    assert said["class"] == wanted.label == EVIL
    assert said["probability"] == pytest.approx(wanted.probability, abs=1e-4)
    assert list(said["probabilities"].values()) == pytest.approx(list(wanted.probabilities), abs=1e-4)
    assert said["ood_score"] == pytest.approx(wanted.ood_score, abs=1e-4)
    assert said["in"] == wanted.inside
    assert [each["class"] for each in said["neighbors"]] == [EVIL] * 3
    similar = [each["similarity"] for each in said["neighbors"]]
    assert similar == sorted(similar, reverse=True)
    heat = Image.open(io.BytesIO(base64.b64decode(said["heatmap"].partition(",")[2])))
    assert heat.size == (224, 224)
    status, headers, content = server.ask(said["neighbors"][0]["photo"])
    assert (status, headers["content-type"]) == (200, "image/jpeg")
    assert np.asarray(Image.open(io.BytesIO(content))).mean(axis=(0, 1)).argmax() == 0  # a red one
    assert server.predict(file.read_bytes(), "?explain=false&neighbors=0")[1].keys() == said.keys()
    loose = server.predict(file.read_bytes(), "?accept=0.99&explain=false")[1]["threshold"]
    assert loose >= server.predict(file.read_bytes(), "?accept=0.5&explain=false")[1]["threshold"]


def test_a_labelled_photo_whose_content_has_changed_is_not_shown_in_its_place(server: Server) -> None:
    file = server.photos / "b&amp;b" / "0.png"
    before = file.read_bytes()
    labels = [row[0] for row in json.loads((server.run / "labels.json").read_text())]
    number = labels.index(str(file))
    photo((0, 255, 0), 5).save(file)
    assert server.ask(f"/labeled/{number}")[0] == 404
    file.write_bytes(before)
    for wrong in (len(labels), 10**30):
        assert server.ask(f"/labeled/{wrong}")[0] == 404


@pytest.mark.parametrize(
    ("body", "query", "headers", "status", "words"),
    [
        (b"no image", "", {}, 400, "not an image"),
        (b"", "", {}, 400, "empty"),
        (b"x" * 1_000_001, "", {}, 413, "larger than 1 MB"),
        (b"x" * 4_100_000, "", {}, 413, "larger than 1 MB"),
        ("pixels", "", {}, 400, "absurdly large"),
        (b"x", "", {"Content_Type": "text/plain"}, 415, "Send the image itself (curl --data-binary @photo.jpg"),
        (b"x", "?accept=1", {}, 422, "between 0 and 1"),
        (b"x", "?accept=nan", {}, 422, "between 0 and 1"),
        (b"x", "?neighbors=25", {}, 422, "from 0 to 24"),
        *[(b"x", f"?neighbors={odd}", {}, 422, "from 0 to 24") for odd in ("-1", "1.0", "true", "06", "+3", "[1]")],
        (b"x", "?explain=1", {}, 422, "true or false"),
        (b"x", "?explain=true&explain=true", {}, 422, "2 times"),
        (b"x", "?what=1", {}, 422, "unknown"),
    ],
)
def test_what_cannot_be_answered_is_refused_in_a_sentence(
    server: Server, body: Any, query: str, headers: dict[str, str], status: int, words: str
) -> None:
    if body == "pixels":
        buffer = io.BytesIO()
        Image.new("L", (2001, 2000)).save(buffer, format="PNG")
        body = buffer.getvalue()
        assert len(body) < 100_000  # a bomb: small as a file, large once unpacked
    found, said = server.predict(body, query, **headers)
    assert found == status
    assert list(said) == ["error"]
    assert words in said["error"]


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/model", {"Host": "evil.example"}, 421),  # a name that was made to point here
        ("/model", {"Host": "localhost.evil.example:80"}, 421),
        ("/model", {"Host": "evil@localhost"}, 421),
        ("/model", {"Host": "192.168.0.7"}, 421),
        ("/model", {"Host": "LOCALHOST:9999"}, 200),  # as behind a forwarded port
        ("/model", {"Host": "[::1]:8000"}, 200),
        ("/model", {"Origin": "http://evil.example"}, 403),
        ("/model", {"Origin": "null"}, 403),
        ("/model", {"Host": "localhost:1", "Origin": "http://localhost:2"}, 403),
        ("/model", {"Host": "localhost:1", "Origin": "http://localhost:1"}, 200),
        ("/labeled/0", {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "no-cors"}, 403),  # <img> on another page
        ("/model", {"Sec_Fetch_Site": "same-site"}, 403),
        ("/model", {"Origin": "http://["}, 403),
        ("/labeled/" + "1" * 5001, {}, 414),
        ("/", {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate"}, 200),  # a link to the page
        ("/", {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "no-cors"}, 403),
    ],
)
def test_only_its_own_pages_and_programs_here_are_answered(
    server: Server, path: str, headers: dict[str, str], status: int
) -> None:
    found, answered, _ = server.ask(path, "GET", None, **headers)
    assert found == status
    assert answered["x-content-type-options"] == "nosniff"
    assert "default-src 'none'" in answered["content-security-policy"]
    assert "unsafe" not in answered["content-security-policy"]
    assert answered["cross-origin-resource-policy"] == "same-origin"
    assert "access-control-allow-origin" not in answered


def test_the_description_is_that_of_the_server(server: Server) -> None:
    document = json.loads(server.ask("/openapi.json")[2])
    assert document["openapi"].startswith("3.1")
    schemas = document["components"]["schemas"]
    model = json.loads(server.ask("/model")[2])
    assert set(model) == set(schemas["Model"]["properties"]) == set(schemas["Model"]["required"])
    assert model["classes"] == sorted(COLORS)
    assert model["labeled"] == [5, 5]
    assert (model["most_bytes"], model["most_pixels"]) == (1_000_000, 4_000_000)
    said = server.predict(next((server.photos / EVIL).iterdir()).read_bytes())[1]
    assert set(said) == set(schemas["Prediction"]["properties"]) == set(schemas["Prediction"]["required"])
    assert set(said["neighbors"][0]) == set(schemas["Prediction"]["properties"]["neighbors"]["items"]["required"])
    assert set(said["probabilities"]) == set(schemas["Prediction"]["properties"]["probabilities"]["properties"])
    for path, operations in document["paths"].items():
        (method,) = operations
        for other in {"get", "put", "post", "delete", "patch"} - {method}:
            status, headers, _ = server.ask(path.replace("{number}", "0"), other.upper())
            assert (status, method.upper() in headers["allow"]) == (405, True)
    assert server.ask("/nothing")[0] == 404


def test_it_works_in_a_browser(server: Server, tmp_path: Path) -> None:
    files = [tmp_path / "one.png", tmp_path / "two <b>.jpg"]
    photo((205, 55, 45), 71).save(files[0])
    photo((45, 200, 60), 72, 120).save(files[1])
    done = "return document.querySelectorAll('.card[data-done=yes]').length == {}"
    with browser(tmp_path / "browser") as shown:
        for width, scheme in ((1100, "light"), (390, "dark")):
            shown.emulate(width, scheme=scheme)
            shown.visit(server.address)
            shown.until("return document.getElementById('title').textContent.includes('none of them')")
            shown.choose_files("#file", *files)
            shown.until(done.format(2))
            shown.until("return [...document.images].every(image => image.complete && image.naturalWidth)")
            assert shown.run("return document.documentElement.scrollWidth") <= width
        text = shown.run("return document.body.textContent")
        assert EVIL in text
        assert "two <b>.jpg" in text
        assert shown.run("return document.querySelectorAll('img[onerror]').length") == 0
        assert shown.run("return document.querySelectorAll('.card .near img').length") == 12
        assert shown.run("return document.querySelectorAll('.card img.map').length") == 2
        verdicts = shown.run("return [...document.querySelectorAll('.verdict')].map(v => v.className)")
        assert all(verdict in ("verdict in", "verdict out") for verdict in verdicts)
        name = shown.run("return [...document.querySelectorAll('.card .name')].pop().textContent")
        assert name == EVIL  # the newest is on top
        dropped = base64.b64encode(files[0].read_bytes()).decode()
        shown.run(
            "const bytes = Uint8Array.from(atob(arguments[0]), c => c.charCodeAt(0)), data = new DataTransfer();"
            "data.items.add(new File([bytes], 'dropped.png'));"
            "document.getElementById('drop').dispatchEvent("
            "new DragEvent('drop', {dataTransfer: data, bubbles: true, cancelable: true}))",
            dropped,
        )
        shown.until(done.format(3))
        assert "dropped.png" in shown.run("return document.querySelector('.card').textContent")
        assert shown.complaints() == []
        (tmp_path / "no.png").write_bytes(b"nothing")
        shown.choose_files("#file", tmp_path / "no.png")
        shown.until("return document.querySelectorAll('.card[data-done=failed]').length == 1")
        assert "not an image" in shown.run("return document.querySelector('.card').textContent")


HEAD = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\nContent-Length: 900000\r\n\r\n"


@pytest.mark.parametrize(
    ("count", "sent"),
    [(520, b""), (520, b"GET"), (520, HEAD + b"x"), (30, HEAD + bytes(890_000))],
    ids=["silent", "half a head", "one byte", "stalled"],
)
def test_silent_and_slow_clients_do_not_keep_others_out(server: Server, count: int, sent: bytes) -> None:
    idle = []
    try:
        for _ in range(count):
            idle.append(socket.create_connection(("127.0.0.1", server.port)))
            with contextlib.suppress(OSError):  # closed already, to make room
                idle[-1].sendall(sent)
        body = next((server.photos / EVIL).iterdir()).read_bytes()
        assert server.predict(body)[0] == 200
        assert server.ask("/model")[0] == 200
    finally:
        for each in idle:
            each.close()


@pytest.mark.slow
def test_silent_and_slow_clients_are_sent_away(server: Server) -> None:
    for sent, answer in ((b"", b""), (b"GET / HT", b""), (HEAD + b"x", b"HTTP/1.1 408")):
        with socket.create_connection(("127.0.0.1", server.port), timeout=30) as slow:
            slow.sendall(sent)
            assert slow.recv(100).startswith(answer)


def test_nothing_of_an_upload_is_kept(server: Server) -> None:
    before = sorted(path for path in server.run.parent.rglob("*"))
    assert server.predict(next((server.photos / EVIL).iterdir()).read_bytes())[0] == 200
    assert sorted(path for path in server.run.parent.rglob("*")) == before


def test_an_address_that_cannot_be_had_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(UserError, match=r"Cannot listen.*--port 0"):
        listen("127.0.0.1", taken.getsockname()[1])
    with pytest.raises(UserError, match=r"no such address|Cannot listen"):
        listen("no-such-host.invalid", 0)
    with pytest.raises(UserError, match="65535"):
        listen("127.0.0.1", 70000)


@pytest.mark.parametrize("there", [True, False])
def test_heic_is_listed_exactly_where_it_can_be_read(there: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "find_spec", lambda _: object() if there else None)
    said = (folders.kinds_in_words(), ", ".join(folders.kinds()), listed_types().upper())
    assert {"HEIC" in each for each in said} == {there}
    assert all("JPEG" in each and "GIF" in each for each in said)
    assert "said.formats" in (files("osp.serve") / "page.html").read_text("utf-8")


def test_after_the_page_has_ended_sigterm_ends_the_process_again(monkeypatch: pytest.MonkeyPatch) -> None:
    during: list[object] = []
    monkeypatch.setattr("uvicorn.Server.run", lambda *_, **__: during.append(signal.getsignal(signal.SIGTERM)))
    before = signal.getsignal(signal.SIGTERM)
    run_app(None, None, lambda: None)  # type: ignore[arg-type]
    assert during != [before]
    assert signal.getsignal(signal.SIGTERM) == before
