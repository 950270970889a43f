"""The control socket: bytes that are no requests, requests without their end, and many who call."""

import atexit
import functools
import socket
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from fuzz.mutations import mutate_bytes, mutate_msgpack
from fuzz.tape import Tape
from parkade.control import CLIENTS_MAX, HEADER_BYTES, ControlClient, ControlError, ControlServer

__all__ = ["target"]

WAIT_S = 20.0  # never reached: only so that a server that hangs is told
CALLERS = 2 * CLIENTS_MAX
KEPT_BYTES_MAX = 2_000_000  # of all requests that are not whole yet, with those of one input
REQUEST: dict[str, Any] = {"name": "echo", "args": {"n": [1, {"a": None}], "b": b"\0"}}


@functools.cache
def server() -> ControlServer:
    """One for all inputs."""
    place = tempfile.TemporaryDirectory(prefix="parkade-fuzz-")
    made = ControlServer(Path(place.name) / "s", {"echo": dict})
    made.start()
    atexit.register(place.cleanup)
    atexit.register(made.close)
    return made


def target(data: bytes) -> None:
    """Somebody says something, in pieces; then another asks, and is answered."""
    tape = Tape(data)
    path, before = server().path, server().answered
    callers: list[socket.socket] = []
    try:
        for _ in range(CALLERS if tape.below(16) == 1 else 1 + tape.below(3)):
            callers.append(_call(tape, str(path)))
        assert ControlClient(path, timeout_ms=int(WAIT_S * 1_000)).call("echo", n=5) == {"n": 5}
        if tape.flag():
            for caller in callers:
                _hear(caller)
    finally:
        for caller in callers:
            caller.close()
    assert server().answered > before
    _client(tape)


def _call(tape: Tape, path: str) -> socket.socket:
    caller = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    caller.settimeout(WAIT_S)
    caller.connect(path)
    content = _frame(tape)
    pieces = 1 + tape.below(3)
    size = 1 + len(content) // pieces
    try:
        for at in range(0, len(content), size):
            caller.sendall(content[at : at + size])
        if tape.flag():
            caller.shutdown(socket.SHUT_WR)
    except OSError:
        pass  # it has hung up, as it may
    return caller


def _frame(tape: Tape) -> bytes:
    body = msgspec.msgpack.encode(REQUEST)
    if tape.below(4):
        body = mutate_msgpack(tape, body)
    length = len(body)
    if not tape.below(4):
        length = tape.pick((0, 1, length - 1, length + 1, 1_000_000, 1_000_001, 0xFFFF_FFFF))
    framed = max(0, length).to_bytes(HEADER_BYTES, "big") + body
    return framed if tape.below(3) else mutate_bytes(tape, framed)


def _hear(caller: socket.socket) -> None:
    """Whatever is answered is an answer."""
    caller.settimeout(0)
    try:
        said = caller.recv(1 << 20)
    except OSError:
        return
    if len(said) > HEADER_BYTES:
        size = int.from_bytes(said[:HEADER_BYTES], "big")
        if len(said) >= HEADER_BYTES + size:
            told = msgspec.msgpack.decode(said[HEADER_BYTES : HEADER_BYTES + size])
            assert "ok" in told or set(told["error"]) == {"code", "text"}, told


def _client(tape: Tape) -> None:
    """The other side: what listens there may not be an engine."""
    answer = msgspec.msgpack.encode({"error": {"code": "PK-301", "text": "no"}})
    body = mutate_msgpack(tape, answer)[:100_000]
    framed = len(body).to_bytes(HEADER_BYTES, "big") + body
    with tempfile.TemporaryDirectory(prefix="parkade-fuzz-") as place:
        path = Path(place) / "s"
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(str(path))
            listener.listen(1)
            _asked(path, listener, framed)


def _asked(path: Path, listener: socket.socket, framed: bytes) -> None:
    import threading

    def answer() -> None:
        caller, _ = listener.accept()
        with caller:
            caller.recv(1 << 16)
            try:
                caller.sendall(framed)
            except OSError:
                return

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        ControlClient(path, timeout_ms=int(WAIT_S * 1_000)).call("echo")
    except ControlError as error:
        assert isinstance(error.code, str)
    finally:
        thread.join(WAIT_S)
