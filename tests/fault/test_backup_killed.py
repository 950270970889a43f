"""Backups of an engine under load that is then killed, and backups that are killed themselves."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

from kit.engines import PATIENCE_S, make
from kit.owners import OwnerProcess
from parkade.backing_up import back_up, restore
from parkade.cli.source import ask_owner
from parkade.store.disk import RealDisk
from parkade.store.manifest import read_manifest
from parkade.verifying import verify_parts


def assert_sound(path: Path) -> None:
    manifest = read_manifest(RealDisk(), str(path))
    assert manifest is not None
    for part in verify_parts(RealDisk(), str(path), manifest, deep=True):
        assert part.is_sound, part.problems


def test_what_was_acknowledged_before_a_backup_outlives_its_engine(tmp_path: Path) -> None:
    path, copy, back = tmp_path / "data", tmp_path / "copy", tmp_path / "back"
    acknowledged: list[str] = []
    is_over, has_begun = threading.Event(), threading.Event()
    with OwnerProcess(path) as owner:

        def load() -> None:
            while not is_over.is_set():
                acknowledged.extend(owner.submit("note", 200, "3d"))
                acknowledged.extend(owner.submit("note", 20, "0s"))
                has_begun.set()

        thread = threading.Thread(target=load)
        thread.start()
        try:
            assert has_begun.wait(PATIENCE_S)
            before = list(acknowledged)
            back_up(str(path), str(copy), lambda name, **args: ask_owner(str(path), name, **args))
        finally:
            is_over.set()
            thread.join()
        owner.kill()
    restored = restore(str(copy), str(back))
    assert restored.tickets >= len(before) >= 220
    assert_sound(back)
    with make(back, durability="process") as engine:
        engine.task(name="note")(lambda number: number)
        states = {engine.ticket(each).info().state for each in before}
        assert states == {"scheduled", "done"}
        for info in engine.find(limit=20, state="scheduled"):
            ticket = engine.ticket(info.id)
            assert ticket.reschedule(delay=0)
            assert ticket.result("20s") in range(200)


def test_a_backup_that_is_killed_leaves_nothing_that_opens(tmp_path: Path) -> None:
    path, copy = tmp_path / "data", tmp_path / "copy"
    with make(path, durability="process", run=False) as engine:
        task = engine.task(name="note")(lambda text: text)
        engine.submit_many([task.options(delay="1h").call("x" * 500) for _ in range(5_000)])
    asked = f'{{"verb": "backup", "source": "{path}", "target": "{copy}", "is_live": false}}'
    for _ in range(3):
        child = subprocess.Popen([sys.executable, "-m", "parkade.backing_up", asked])
        while child.poll() is None and not (tmp_path / "copy.partial").exists():
            threading.Event().wait(0.001)
        child.send_signal(signal.SIGKILL)
        child.wait()
        if copy.exists():  # it was quicker than the signal
            break
        assert not (tmp_path / "copy.partial/manifest.json").exists()
    else:
        assert back_up(str(path), str(copy), None).tickets == 5_000
    assert sorted(os.listdir(tmp_path)) == ["copy", "data"]
    assert_sound(copy)
