"""Who works on a run: processes of this machine, and of others that share its disk."""

from __future__ import annotations

import errno
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from osp.bench import claims
from osp.bench.claims import Claims
from osp.errors import UserError


@pytest.fixture
def here(tmp_path: Path) -> Claims:
    return Claims(tmp_path, "here")


@pytest.fixture
def there(tmp_path: Path) -> Claims:
    """Another machine, whose locks do not reach over the disk: all it sees is the other's mark."""
    return Claims(tmp_path, "there")


def leave(machine: Claims, name: str, age: float = 0.0) -> Path:
    """What a machine that went down leaves behind."""
    mark = machine.mark(name)
    mark.write_text(f'{{"machine": "{machine.machine}", "holder": "x"}}')
    then = time.time() - age
    os.utime(mark, (then, then))
    return mark


def test_a_claim_of_another_machine_counts_until_it_has_been_silent_for_long(here: Claims, there: Claims) -> None:
    leave(there, "run", age=claims.SILENT - 30)
    assert here.held("run")
    assert not there.held("run")  # its lock is free: the process is gone
    with pytest.raises(UserError, match="busy"), here.hold("run", "busy"):
        pass
    leave(there, "run", age=claims.SILENT + 30)
    assert not here.held("run")


def test_a_silent_claim_is_taken_over_and_given_back(
    here: Claims, there: Claims, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "SETTLE", 0.01)
    mark = leave(there, "run", age=claims.SILENT + 30)
    with here.hold("run", "busy"):
        assert '"here"' in mark.read_text()
        assert there.held_elsewhere("run")
    assert not mark.exists()


def test_a_claim_of_this_machine_without_its_lock_is_void_at_once(here: Claims) -> None:
    leave(here, "run")
    assert not here.held("run")
    with here.hold("run", "busy"):
        assert here.held("run")


def test_a_holder_renews_its_claim(here: Claims, there: Claims, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "BEAT", 0.02)
    with here.hold("run", "busy"):
        old = time.time() - 10 * claims.SILENT
        os.utime(here.mark("run"), (old, old))
        until = time.monotonic() + 20
        while not there.held_elsewhere("run") and time.monotonic() < until:
            time.sleep(0.02)
        assert there.held_elsewhere("run")


def test_a_holder_whose_claim_was_taken_over_is_told_and_leaves_the_other_in_peace(
    here: Claims, there: Claims, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "BEAT", 0.02)
    lost = threading.Event()
    with here.hold("run", "busy", lost.set):
        mark = leave(there, "run")
        assert lost.wait(20)
    assert '"there"' in mark.read_text()


def test_of_two_machines_that_take_over_at_once_one_gives_way(
    here: Claims, there: Claims, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = leave(Claims(here.folder, "gone"), "run", age=claims.SILENT + 30)
    monkeypatch.setattr(
        "osp.bench.claims.time.sleep", lambda seconds: leave(there, "run")
    )  # the other is a moment later
    with pytest.raises(UserError, match="busy"), here.hold("run", "busy"):
        pass
    assert '"there"' in mark.read_text()


def test_a_claim_that_cannot_be_read_is_being_written_elsewhere(here: Claims) -> None:
    here.mark("run").write_bytes(b"")
    assert here.held("run")


def test_a_process_killed_while_it_makes_its_claim_leaves_none_that_holds(here: Claims) -> None:
    for when in ("before", "after"):
        child = os.fork()
        if child == 0:
            link = os.link

            def killed(source: Path, target: Path, when: str = when, link: Any = link) -> None:
                if when == "after":
                    link(source, target)
                os.kill(os.getpid(), signal.SIGKILL)

            os.link = killed  # type: ignore[assignment]
            with here.hold("run", "busy"):
                os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        assert not here.held("run")
        with here.hold("run", "busy"):
            assert b"here" in here.mark("run").read_bytes()


def test_a_disk_without_links_has_claims_too(here: Claims, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*names: object) -> None:
        raise PermissionError("no links")

    monkeypatch.setattr(os, "link", refused)
    with here.hold("run", "busy"):
        assert here.held("run")
        assert b"here" in here.mark("run").read_bytes()
    assert not list(here.folder.glob("*.claim"))
    assert not list(here.folder.glob(".*.claim"))


def test_a_full_disk_leaves_no_claim(here: Claims, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, content: bytes) -> int:
        path.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_bytes", full)
        with pytest.raises(UserError, match="No space left"), here.hold("run", "busy"):
            pass
    with here.hold("run", "busy"):
        pass
    assert not list(here.folder.glob(".*.claim"))
