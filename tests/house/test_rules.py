"""The rules hold in the whole repository, and each of them finds the fault it is there for."""

import pytest
from house import rules
from house.rules import RULES, Rule
from house.source import Source, sources

SOURCES = sources()

# A rule, where the fault is planted, and the fault.
PLANTED = (
    (rules.imports_go_downwards, "wheel/a.py", "from parkade.store.record import Record"),
    (rules.imports_go_downwards, "store/a.py", "import parkade.shard.core"),
    (rules.imports_go_downwards, "shard/a.py", "from parkade.store import journal"),
    (rules.imports_go_downwards, "shard/a.py", "from parkade.errors import ParkadeError"),
    (rules.imports_go_downwards, "shard/a.py", "from parkade import Engine"),
    (rules.imports_are_absolute_and_by_the_right_name, "shard/a.py", "from .states import NEXT"),
    (rules.imports_are_absolute_and_by_the_right_name, "shard/a.py", "from . import states"),
    (rules.imports_are_absolute_and_by_the_right_name, "tests/a.py", "import wheel"),
    (rules.imports_are_absolute_and_by_the_right_name, "tests/a.py", "from store.frame import x"),
    (rules.the_core_is_pure, "wheel/a.py", "def f():\n    import time"),
    (rules.the_core_is_pure, "shard/a.py", "from datetime import datetime"),
    (rules.the_core_is_pure, "shard/a.py", "import os.path"),
    (rules.the_core_is_pure, "store/frame.py", "import threading"),
    (rules.the_core_is_pure, "shard/a.py", "open('x')"),
    (rules.nothing_stored_can_carry_code, "engine/a.py", "import pickle"),
    (rules.nothing_stored_can_carry_code, "tests/a.py", "from pickle import loads"),
    (rules.hashes_are_the_same_in_every_process, "shard/a.py", "part = hash(key) & 0xFFFF"),
    (rules.only_the_clock_reads_time, "engine/a.py", "import time"),
    (rules.only_the_clock_reads_time, "engine/a.py", "from time import monotonic_ns"),
    (rules.only_the_clock_reads_time, "engine/cli/a.py", "datetime.datetime.now(UTC)"),
    (rules.only_the_disk_touches_files, "store/journal.py", "os.fsync(fd)"),
    (rules.only_the_disk_touches_files, "store/journal.py", "open('x')"),
    (rules.only_the_disk_touches_files, "engine/a.py", "import shutil"),
    (rules.modules_open_with_a_docstring, "bench/a.py", "x = 1"),
    (rules.modules_stay_small, "shard/a.py", "x = 1\n" * 601),
    (rules.functions_stay_small, "shard/a.py", "def f():\n" + "    x = 1\n" * 60),
    (rules.names_say_what_they_are_for, "engine/io_utils.py", ""),
    (rules.names_say_what_they_are_for, "engine/common/a.py", ""),
    (rules.names_say_what_they_are_for, "engine/a.py", "class LeaseManager: ..."),
    (rules.names_say_what_they_are_for, "engine/a.py", "class IOHelper: ..."),
    (rules.inits_only_re_export, "shard/__init__.py", "STATES = load()"),
    (rules.inits_only_re_export, "shard/__init__.py", "class Shard: ..."),
    (rules.tests_are_sentences, "tests/unit/test_a.py", "def test_one_two_three(): ..."),
    (rules.tests_do_not_sleep, "tests/unit/test_a.py", "time.sleep(0.1)"),
    (rules.tests_do_not_sleep, "tests/kit/a.py", "from time import sleep"),
)

# The same, where nothing is wrong.
SOUND = (
    (rules.imports_go_downwards, "shard/a.py", "from parkade.store.record import Record"),
    (rules.imports_go_downwards, "shard/a.py", "from parkade.store import record"),
    (rules.imports_go_downwards, "engine/a.py", "from parkade.store.journal import Journal"),
    (rules.imports_are_absolute_and_by_the_right_name, "tests/a.py", "from parkade import wheel"),
    (rules.the_core_is_pure, "engine/a.py", "import os, threading"),
    (rules.hashes_are_the_same_in_every_process, "shard/a.py", "def __hash__(s): return hash(1)"),
    (rules.only_the_clock_reads_time, "engine/clock.py", "import time"),
    (rules.only_the_clock_reads_time, "bench/a.py", "from time import perf_counter"),
    (rules.only_the_clock_reads_time, "engine/a.py", "clock.now()"),
    (rules.only_the_disk_touches_files, "store/disk.py", "os.fsync(fd)"),
    (rules.only_the_disk_touches_files, "store/parked.py", "import lmdb\nos.stat(path)"),
    (rules.only_the_disk_touches_files, "engine/a.py", "os.getpid()"),
    (rules.modules_stay_small, "shard/a.py", "x = 1\n" * 600),
    (rules.functions_stay_small, "a/a.py", "def f():\n    '''1\n\n2'''\n" + "    x = 1\n" * 59),
    (rules.names_say_what_they_are_for, "engine/a.py", "class Metadata: ..."),
    (rules.inits_only_re_export, "shard/__init__.py", "from parkade.a import b\n__all__ = ['b']"),
    (
        rules.inits_only_re_export,
        "a/__init__.py",
        "if __name__ != 'x':\n    raise ImportError('x')",
    ),
    (rules.tests_are_sentences, "tests/unit/test_a.py", "def test_one_two_three_four(): ..."),
    (rules.tests_do_not_sleep, "tests/kit/a.py", "clock.sleep(1)"),
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule.__name__))
def test_the_rule_holds_in_the_whole_repository(rule: Rule) -> None:
    findings = [finding for source in SOURCES for finding in rule(source)]
    assert not findings, f"{rule.__doc__}\n" + "\n".join(findings)


@pytest.mark.parametrize(("rule", "path", "text"), PLANTED)
def test_the_rule_finds_a_planted_fault(rule: Rule, path: str, text: str) -> None:
    assert len(list(rule(Source(path, text)))) == 1


@pytest.mark.parametrize(("rule", "path", "text"), SOUND)
def test_the_rule_leaves_sound_code_alone(rule: Rule, path: str, text: str) -> None:
    assert list(rule(Source(path, text))) == []


def test_every_rule_is_proven_on_a_planted_fault() -> None:
    assert {rule for rule, _, _ in PLANTED} == set(RULES)


def test_the_rules_read_every_folder_of_the_product() -> None:
    assert {"engine", "shard", "store", "wheel", "tests", "bench"} <= {s.folder for s in SOURCES}
