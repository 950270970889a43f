"""All that can be asked of a harmed directory, and what must be true of each answer.

Run as a file it judges cases, one line of JSON each:

    python harm_tools.py BASE < CASES

Each question is asked in a fork of its own, so that a hang, or a process that damaged pages end,
is an answer like others.
"""

import codecs
import contextlib
import faulthandler
import json
import os
import re
import select
import shutil
import signal
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from click.testing import CliRunner

from kit.forked import ForkedPopen
from kit.harm_files import OLDER_COPY, Case, harm
from kit.harm_rights import MOUNTED, OTHERS, RIGHTS, UNREADABLE, as_nobody, rights_taken
from kit.harm_template import ACKED, tickets_of
from kit.one_life import small_limits
from kit.tool_life import SMALL_SIZING
from parkade import ParkadeError, open_readonly
from parkade.cli.app import cli
from parkade.store.journal import Sizing
from parkade.testing import TestEngine

__all__ = ["QUESTIONS", "ask", "judge"]

PATIENCE_S = 30.0
CODE = re.compile(r"\[(PK-\d{3})\]")


# ------------------------------------------------------------------------------------ questions


class Answer(dict[str, Any]):
    """`texts`: what was told. `tickets`: state of each that was found, or the code of the error
    that was the answer. `is_sound`: nothing was told to be wrong. `raw`: a traceback."""


def look_with(opened: Any, acked: dict[str, str], answer: Answer) -> None:
    """Asks for each ticket by its id, and lists all."""
    for each in acked:
        try:
            info = opened.info(each) if hasattr(opened, "info") else opened.ticket(each).info()
            answer["tickets"][each] = info.state
        except ParkadeError as error:
            answer["tickets"][each] = error.code
            answer["texts"].append(str(error))
    try:
        listed = tickets_of(opened)
    except ParkadeError as error:
        answer["texts"].append(str(error))
        return
    whole = {each for each, state in answer["tickets"].items() if not state.startswith("PK-")}
    if set(listed) != whole:
        answer["texts"].append(f"LISTED {len(listed)} of {len(whole)}")
        answer["raw"] = "a listing tells other tickets than their ids do"


def ask_reader(root: Path, acked: dict[str, str], answer: Answer) -> None:
    try:
        with open_readonly(root) as reader:
            look_with(reader, acked, answer)
            reader.stats()
    except ParkadeError as error:
        answer["texts"].append(str(error))
        answer["refused"] = error.code


def ask_engine(root: Path, acked: dict[str, str], answer: Answer) -> None:
    try:
        with TestEngine(root, durability="disk", lock_wait=0, keep_done=None) as engine:
            refused = [one for one in engine.stats().shards if one.status == "refused"]
            answer["texts"] += [str(shard.reason) for shard in refused]
            look_with(engine, acked, answer)
    except ParkadeError as error:
        answer["texts"].append(str(error))
        answer["refused"] = error.code


def run_cli(root: Path, answer: Answer, *words: str) -> str:
    done = CliRunner().invoke(cli, ["--dir", str(root), *words])
    answer["exit"] = done.exit_code
    answer["texts"].append(done.output)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        answer["raw"] = "".join(traceback.format_exception(done.exception))
    return done.stdout


def ask_cli(*words: str) -> Callable[[Path, dict[str, str], Answer], None]:
    def question(root: Path, acked: dict[str, str], answer: Answer) -> None:
        run_cli(root, answer, *words)
        answer["is_sound"] = answer["exit"] == 0
        if answer["is_sound"] and words[0] in ("verify", "stat"):
            answer["tickets"] = acked | {}

    return question


def ask_export(root: Path, acked: dict[str, str], answer: Answer) -> None:
    for line in run_cli(root, answer, "export").splitlines():
        with contextlib.suppress(ValueError):
            facts = json.loads(line)
            if "id" in facts:
                answer["tickets"][facts["id"]] = facts["state"]
    answer["is_sound"] = answer["exit"] == 0


def ask_copy(verb: str) -> Callable[[Path, dict[str, str], Answer], None]:
    """`repair` and `backup`, which make another directory."""

    def question(root: Path, acked: dict[str, str], answer: Answer) -> None:
        made = root.with_name("made")
        source = [str(root)] if verb == "repair" else []
        words = [verb, *source, str(made), "--json"]
        run_cli(root, answer, *words)
        answer["is_sound"] = answer["exit"] == 0
        if made.exists():
            told = len(answer["texts"])
            ask_engine(made, acked, answer)
            del answer["texts"][told:]
            answer["made"] = True
        left = [each.name for each in root.parent.iterdir() if each.name.startswith("made.")]
        if left:
            answer["raw"] = f"it left {left}"

    return question


def ask_change(*words: str) -> Callable[[Path, dict[str, str], Answer], None]:
    """`compact` and `reshard`, which change the directory."""

    def question(root: Path, acked: dict[str, str], answer: Answer) -> None:
        run_cli(root, answer, *words)
        answer["is_sound"] = answer["exit"] == 0
        if answer["is_sound"]:
            ask_engine(root, acked, answer)

    return question


Question = Callable[[Path, dict[str, str], Answer], None]
READING: dict[str, Question] = {
    "reader": ask_reader,
    "verify": ask_cli("verify"),
    "verify --deep": ask_cli("verify", "--deep"),
    "stat": ask_cli("stat"),
    "doctor": ask_cli("doctor"),
    "export": ask_export,
    "repair": ask_copy("repair"),
    "backup": ask_copy("backup"),
}
QUESTIONS: dict[str, Question] = READING | {
    "compact": ask_change("compact"),
    "reshard": ask_change("reshard", "--to", "3"),
    "engine": ask_engine,
}


def ask(name: str, root: Path, acked: dict[str, str], *, is_nobody: bool = False) -> Answer:
    """Asks in a fork, which is given so much time; `is_nobody`: and no rights of root."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        _answer(name, root, acked, writer, is_nobody)
    os.close(writer)
    said = bytearray()
    while True:
        ready, _, _ = select.select([reader], [], [], PATIENCE_S)
        chunk = os.read(reader, 1 << 16) if ready else b""
        if not chunk:
            break
        said += chunk
    os.close(reader)
    if not ready:
        os.killpg(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)  # what it left behind
    code = os.waitstatus_to_exitcode(status)
    answer = Answer(texts=[], tickets={}, exit=0, is_sound=False)
    if said and ready and code == 0:
        # One that was slow has its stacks before its answer.
        answer.update(json.loads(said.rpartition(b"\n")[2]))
    elif said:
        answer["texts"] = [said.decode(errors="replace")]
    if not ready:
        answer["hung"] = True
    elif code < 0:
        answer["died"] = signal.Signals(-code).name
    elif code:
        answer["raw"] = f"it ended with {code}"
    return answer


def _answer(name: str, root: Path, acked: dict[str, str], writer: int, is_nobody: bool) -> None:
    code = 1
    try:
        os.setpgid(0, 0)
        if is_nobody:
            as_nobody()
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(null, 1)
        stacks = open(writer, "w", closefd=False)  # noqa: SIM115
        faulthandler.dump_traceback_later(PATIENCE_S / 2, file=stacks)
        answer = Answer(texts=[], tickets={}, exit=0, is_sound=False)
        try:
            QUESTIONS[name](root, acked, answer)
        except Exception:
            answer["raw"] = traceback.format_exc()
        faulthandler.cancel_dump_traceback_later()
        view = memoryview(json.dumps(answer).encode())
        while view:
            view = view[os.write(writer, view) :]
        code = 0
    finally:
        os._exit(code)


# ------------------------------------------------------------------------------------ judging


def judge(
    case: Case, name: str, answer: Answer, harmed: Path, root: Path, acked: dict[str, str]
) -> list[str]:
    """What is wrong with an answer; nothing, if all is well."""
    wrong: list[str] = []
    text = "\n".join(answer["texts"])
    if answer.get("hung"):
        return [f"it hangs: {text}"]
    if "died" in answer:
        return [f"it died of {answer['died']}"]
    if "raw" in answer:
        return [f"raw: {answer['raw']}"]
    if case.harm in RIGHTS:
        return _judge_rights(case, name, answer, text, acked)
    lost = [each for each in acked if answer["tickets"].get(each) != acked[each]]
    codes = {state for each, state in answer["tickets"].items() if state.startswith("PK-")}
    has_told = bool(codes - {"PK-406"}) or "refused" in answer or answer["exit"] != 0
    if name == "doctor":  # this machine may have faults of its own
        has_told = "PK-" in text or "bad   directory" in text
    if case.harm == OLDER_COPY and harmed.name in UNSEEN:
        lost, codes = [], set()
    if lost and not has_told and name != "doctor":
        wrong.append(f"{len(lost)} of {len(acked)} tickets are silently lost")
    if "PK-406" in codes and name != "repair":
        wrong.append("an acknowledged ticket is unknown (PK-406)")
    if has_told and not (CODE.search(text) or name in WITH_REPORT):
        wrong.append(f"an error without a code: {text[:300]}")
    if has_told and not _is_named(text, harmed, root):
        wrong.append(f"{harmed.relative_to(root)} is not named: {text[:600]}")
    if "Traceback" in text:
        wrong.append(text)
    return wrong


def _judge_rights(
    case: Case, name: str, answer: Answer, text: str, acked: dict[str, str]
) -> list[str]:
    """Where the directory can be read, all that only reads works; nothing else does."""
    works = case.harm != OTHERS and name in READING and name != "doctor"
    if works and (answer["tickets"] != acked or answer["exit"]):
        return [f"it does not work: {text[:600]}"]
    if not works and "PK-111" not in text and name != "doctor":
        return [f"it is not refused: {text[:600]}"]
    return []


# What a journal was at an earlier moment is what a crash at that moment would have left.
UNSEEN = ("journal", "shard-000", "shard-001")
WITH_REPORT = ("verify", "verify --deep", "stat", "doctor", "repair", "export")


def _is_named(text: str, harmed: Path, root: Path) -> bool:
    """The file, or a folder that it is in."""
    names = [harmed, *harmed.parents]
    names = names[: names.index(root)] or [root]
    place = str(harmed.relative_to(root)).split("/")[0]
    if any(str(each) in text for each in names):
        return True
    if place == "house":
        return '"part":"house"' in text.replace(" ", "") or "house" in text
    if place.startswith("shard-"):
        return f"hard {place[7:9]}" in text or f"shard {int(place[6:])}" in text or place in text
    return str(root) in text


def run_case(
    base: Path, case: Case, names: list[str], acked: dict[str, str]
) -> Iterator[dict[str, Any]]:
    """Asks all these questions of a harmed copy; those that change it have copies of their own."""
    ordered = sorted(names, key=list(QUESTIONS).index)
    reading = [name for name in ordered if name in READING]
    for group in [reading, *([name] for name in ordered if name not in READING)]:
        work = base / "work"
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        root = work / "data"
        shutil.copytree(base / case.kind, root)
        harmed = harm(base, case, root)
        rights = case.harm in RIGHTS or case.harm == UNREADABLE
        with rights_taken(root, case.harm) if rights else nullcontext():
            for name in group:
                before = facts_of(root)
                answer = ask(name, root, acked, is_nobody=rights and case.harm != MOUNTED)
                wrong = judge(case, name, answer, harmed, root, acked)
                after = facts_of(root)
                if (name in READING or case.harm in RIGHTS) and after != before:
                    changed = sorted(set(after.items()) ^ set(before.items()))
                    wrong.append(f"it has changed the directory: {changed[:4]}")
                yield {"case": case, "name": name, "wrong": wrong, "answer": answer}
                shutil.rmtree(work / "made", ignore_errors=True)


def facts_of(root: Path) -> dict[str, tuple[int, int, int]]:
    """Each file's size, checksum and time of change; the readers' files, which hold nothing of the
    directory's, are left out, and so are the times of folders."""
    found: dict[str, tuple[int, int, int]] = {}
    for folder, folders, files in os.walk(root):
        for name in [*folders, *files]:
            path = Path(folder, name)
            facts = path.lstat()
            is_plain = path.is_file() and not path.is_symlink()
            if name.startswith("lock.mdb"):
                continue
            content = hash(path.read_bytes()) if is_plain else 0
            changed = 0 if path.is_dir() else facts.st_mtime_ns
            found[str(path.relative_to(root))] = (facts.st_mode, content, changed)
    return found


def main() -> None:
    # Whoever has no rights may not find what is imported late.
    codecs.lookup("unicode_escape")
    sysconfig.get_config_var("Py_GIL_DISABLED")
    base = Path(sys.argv[1])
    acked: dict[str, str] = json.loads((base / ACKED).read_text(encoding="utf-8"))
    defaults = mock.patch.object(Sizing.__init__, "__defaults__", SMALL_SIZING)
    forked = mock.patch("parkade.apart.subprocess", SimpleNamespace(PIPE=-1, Popen=ForkedPopen))
    with small_limits(), defaults, forked:
        for line in sys.stdin:
            case, names = json.loads(line)
            for found in run_case(base, Case(*case), names, acked):
                print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
