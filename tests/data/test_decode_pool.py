"""Decoding in worker processes: same result, nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from osp.data import decode as decoder
from osp.data.decode import decode_many
from osp.data.decode_pool import WORTH_A_PROCESS, Decoder, decode_all


def test_worker_processes_give_the_same_as_one_process_in_the_same_order(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    paths = []
    for index in range(600):
        path = tmp_path / f"{index}.png"
        if index % 97 == 5:
            path.write_bytes(b"no image")
        else:
            Image.fromarray(rng.integers(0, 256, (12, 10, 3), dtype=np.uint8)).save(path)
        paths.append(str(path))
    expected, missing = decode_many(paths, 8)
    chunks = list(decode_all(paths, 8, workers=2))
    np.testing.assert_array_equal(np.concatenate([images for images, _ in chunks]), expected)
    assert [item for _, skipped in chunks for item in skipped] == missing
    assert [position for position, _ in missing] == [5, 102, 199, 296, 393, 490, 587]


def test_a_small_part_of_many_files_is_decoded_in_processes_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "0.png")
    monkeypatch.setattr(decoder, "decode_many", lambda *_: pytest.fail("decoded here"))
    ((images, missing),) = decode_all([str(tmp_path / "0.png")], 8, of=WORTH_A_PROCESS, workers=1)
    assert images.shape == (1, 3, 8, 8)
    assert not missing


def test_a_file_that_kills_its_worker_is_skipped_and_all_others_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decoders are C code: one that crashes must not take the run with it. The worker here is one that really dies."""
    program = Path(decoder.__file__).read_text()
    loop = "    for position, path in enumerate(paths):\n"
    assert program.count(loop) == 1
    (tmp_path / "worker.py").write_text(
        program.replace(loop, loop + "        assert 'crash' not in path or os._exit(9)\n")
    )
    monkeypatch.setattr(decoder, "__file__", str(tmp_path / "worker.py"))
    paths = []
    for index in range(250):
        path = tmp_path / (f"{index}crash.png" if index in (3, 200) else f"{index}.png")
        Image.new("RGB", (8, 8), (index, 0, 0)).save(path)
        paths.append(str(path))
    chunks = list(decode_all(paths, 8, workers=2))
    kept = np.concatenate([images for images, _ in chunks])[:, 0, 0, 0].tolist()
    assert kept == [index for index in range(250) if index not in (3, 200)]
    skipped = [item for _, part in chunks for item in part]
    assert skipped == [(3, "the decoder crashed on it"), (200, "the decoder crashed on it")]


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no clocks that end a process")
def test_what_takes_too_long_or_kills_the_decoder_is_told_and_the_next_image_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = Path(decoder.__file__).read_text()
    loop = "        try:\n            images.append("
    assert program.count(loop) == 1
    slow = "        while path == b'slow': pass\n        assert path != b'crash' or os._exit(9)\n"
    program = program.replace(loop, slow + loop).replace("SECONDS, WORKER_BYTES = 30", "SECONDS, WORKER_BYTES = 1")
    (tmp_path / "worker.py").write_text(program)
    monkeypatch.setattr(decoder, "__file__", str(tmp_path / "worker.py"))
    Image.new("RGB", (8, 8), (7, 0, 0)).save(tmp_path / "a.png")
    decode = Decoder()
    for content, why in ((b"slow", "took longer"), (b"crash", "crashed"), (b"", "empty"), (b"no", "not an image")):
        with pytest.raises(decoder.Unreadable, match=why):
            decode(content, 8)
        assert decode((tmp_path / "a.png").read_bytes(), 8)[0, 0, 0] == 7
    with pytest.raises(decoder.Unreadable, match="absurdly large"):
        decode((tmp_path / "a.png").read_bytes(), 8, most_pixels=63)
    decode.close()


def test_a_file_name_with_odd_bytes_reaches_the_workers(tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path)
    paths = []
    for index in range(220):
        name = os.fsdecode(folder + b"/\xff\xe4 \n%d.png" % index)
        Image.new("RGB", (8, 8), (index, 0, 0)).save(name)
        paths.append(name)
    images = np.concatenate([images for images, _ in decode_all(paths, 8, workers=2)])
    assert images[:, 0, 0, 0].tolist() == list(range(220))


def test_an_interrupt_ends_the_workers_and_leaves_no_part_behind(tmp_path: Path) -> None:
    if not Path("/proc").is_dir():
        pytest.skip("needs /proc to see the workers")
    folder = tmp_path / "images" / "LSUN_resize"  # a set that takes copies as they are
    folder.mkdir(parents=True)
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (600, 600, 3), dtype=np.uint8))
    image.save(folder / "0.png")
    for index in range(1, 6000):  # enough that decoding never ends before the signal comes
        os.link(folder / "0.png", folder / f"{index}.png")
    program = "import osp.data, sys; osp.data.load('lsun', sys.argv[1], progress=lambda *s: print(s, flush=True))"
    environment = {**os.environ, "OSP_CACHE": str(tmp_path / "cache")}
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "images")],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
        start_new_session=True,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs ignore it
    )
    assert process.stdout is not None
    assert process.stdout.readline()  # decoding has begun
    workers = _children(process.pid)
    assert workers
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode != 0
    deadline = time.monotonic() + 60  # they end at once, but whoever collects ended processes here may be busy
    while _running(workers) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not _running(workers)
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".lock"]


def _running(processes: list[int]) -> list[int]:
    return [number for number in processes if Path(f"/proc/{number}/cmdline").exists()]


def _children(parent: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            if int(fields[1]) == parent:
                found.append(int(entry.name))
    return found
