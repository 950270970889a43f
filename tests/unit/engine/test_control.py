"""The control socket, asked politely, rudely, in pieces and by many."""

import contextlib
import os
import socket
import stat
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from parkade.control import (
    ANSWER_BYTES_MAX,
    CLIENTS_MAX,
    REQUEST_BYTES_MAX,
    SOCKET_PATH_BYTES_MAX,
    ControlClient,
    ControlError,
    ControlServer,
)
from parkade.errors import ConfigError, UnknownTask

WAIT_S = 20.0  # never reached: only so that a broken test ends


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def fail(args: Mapping[str, Any]) -> Any:
    raise {"unspeakable": Unspeakable(), "exit": SystemExit(3), "value": ValueError("no")}[
        args["how"]
    ]


def unknown(args: Mapping[str, Any]) -> Any:
    raise UnknownTask("chrage", known=["charge"])


HANDLERS = {
    "echo": lambda args: dict(args),
    "fail": fail,
    "unknown": unknown,
    "odd": lambda args: object(),
    "huge": lambda args: b"x" * args["size"],
}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ControlServer]:
    with ControlServer(tmp_path / "control.sock", HANDLERS) as server:
        yield server


@pytest.fixture
def client(server: ControlServer) -> ControlClient:
    return ControlClient(server.path)


def connect(server: ControlServer) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.connect(str(server.path))
    sock.settimeout(WAIT_S)
    return sock


def frame(value: Any) -> bytes:
    body = value if isinstance(value, bytes) else msgspec.msgpack.encode(value)
    return len(body).to_bytes(4, "big") + body


def receive(sock: socket.socket) -> Any:
    size = int.from_bytes(exactly(sock, 4), "big")
    return msgspec.msgpack.decode(exactly(sock, size))


def exactly(sock: socket.socket, size: int) -> bytes:
    received = bytearray()
    while len(received) < size:
        chunk = sock.recv(size - len(received))
        assert chunk, f"hung up after {len(received)} of {size} bytes"
        received += chunk
    return bytes(received)


def echo(**args: Any) -> bytes:
    return frame({"name": "echo", "args": args})


def test_a_call_brings_back_what_the_handler_returned(client: ControlClient) -> None:
    assert client.call("echo", name="n", path="p", self_=[1, None, {"a": b"\0"}]) == {
        "name": "n",
        "path": "p",
        "self_": [1, None, {"a": b"\0"}],
    }


def test_the_socket_is_for_its_owner_only(server: ControlServer) -> None:
    mode = server.path.lstat().st_mode
    assert stat.S_ISSOCK(mode)
    assert stat.S_IMODE(mode) == 0o600


def test_an_error_of_the_library_keeps_its_code_and_its_text(client: ControlClient) -> None:
    with pytest.raises(ControlError, match=r"Close: charge.*\[PK-301\]$") as caught:
        client.call("unknown")
    assert caught.value.code == "PK-301"
    assert str(caught.value).count("PK-301") == 1


@pytest.mark.parametrize(
    ("how", "text"),
    [("value", "ValueError: no"), ("exit", "SystemExit: 3"), ("unspeakable", "Unspeakable: ")],
)
def test_whatever_a_handler_raises_is_an_answer(client: ControlClient, how: str, text: str) -> None:
    with pytest.raises(ControlError, match=text) as caught:
        client.call("fail", how=how)
    assert caught.value.code == "failed"
    assert client.call("echo", still="here") == {"still": "here"}


def test_an_unknown_call_is_answered_with_the_near_one(client: ControlClient) -> None:
    with pytest.raises(ControlError, match=r'"ecko"\. Did you mean echo') as caught:
        client.call("ecko")
    assert caught.value.code == "unknown_call"


def test_an_answer_that_cannot_be_sent_says_that_it_was_done(client: ControlClient) -> None:
    with pytest.raises(ControlError, match="odd was done") as caught:
        client.call("odd")
    assert caught.value.code == "unstorable"
    with pytest.raises(ControlError, match="huge was done") as caught:
        client.call("huge", size=ANSWER_BYTES_MAX)
    assert caught.value.code == "too_large"


def test_the_largest_answer_arrives_whole(client: ControlClient) -> None:
    size = ANSWER_BYTES_MAX - 100
    assert len(client.call("huge", size=size)) == size


def test_the_client_refuses_a_request_that_is_too_large_before_it_is_sent(
    server: ControlServer, client: ControlClient
) -> None:
    with pytest.raises(ControlError, match="the limit is") as caught:
        client.call("echo", value=b"x" * REQUEST_BYTES_MAX)
    assert caught.value.code == "too_large"
    assert server.answered == 0


def test_a_length_beyond_the_limit_is_answered_before_its_bytes_come(
    server: ControlServer, client: ControlClient
) -> None:
    with connect(server) as sock:
        sock.sendall((REQUEST_BYTES_MAX + 1).to_bytes(4, "big"))
        assert receive(sock)["error"]["code"] == "too_large"
        assert sock.recv(1) == b""
    assert client.call("echo", a=1) == {"a": 1}


def test_a_whole_request_larger_than_the_limit_hears_why(server: ControlServer) -> None:
    body = b"x" * (REQUEST_BYTES_MAX + 1_000)
    with connect(server) as sock:
        # The server hangs up while this is still being sent.
        with contextlib.suppress(OSError):
            sock.sendall(frame(body))
        assert receive(sock)["error"]["code"] == "too_large"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        b"\xff" * 40,
        msgspec.msgpack.encode([1, 2]),
        msgspec.msgpack.encode({"name": 7}),
        msgspec.msgpack.encode({"name": "echo", "args": [1]}),
        b"\x91" * 100_000,  # arrays in arrays
        b"\xdd\xff\xff\xff\xff",  # an array of four thousand million things
    ],
    ids=["empty", "never used", "garbage", "list", "number", "args", "deep", "long"],
)
def test_what_is_no_request_is_answered_and_the_connection_goes_on(
    server: ControlServer, body: bytes
) -> None:
    with connect(server) as sock:
        sock.sendall(frame(body))
        assert receive(sock)["error"]["code"] == "malformed"
        sock.sendall(echo(a=1))
        assert receive(sock) == {"ok": {"a": 1}}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(noise=st.binary(max_size=300))
def test_no_bytes_hurt_the_server(server: ControlServer, noise: bytes) -> None:
    with connect(server) as sock:
        sock.sendall(noise)
    assert ControlClient(server.path).call("echo", a=1) == {"a": 1}


def test_a_request_may_come_byte_by_byte_while_others_are_served(
    server: ControlServer, client: ControlClient
) -> None:
    with connect(server) as sock:
        for place, byte in enumerate(echo(slow=True)):
            sock.sendall(bytes([byte]))
            if place % 8 == 0:
                assert client.call("echo", n=place) == {"n": place}
        assert receive(sock) == {"ok": {"slow": True}}


def test_half_a_request_and_a_hang_up_leave_nothing_behind(
    server: ControlServer, client: ControlClient
) -> None:
    for size in (0, 1, 3, 4, 5, 12):
        with connect(server) as sock:
            sock.sendall(echo(a=1)[:size])
    assert client.call("echo", b=2) == {"b": 2}
    assert server.answered == 1


def test_requests_sent_together_are_answered_in_order(server: ControlServer) -> None:
    count = 500
    with connect(server) as sock:
        sock.sendall(b"".join(echo(n=n) for n in range(count)) + echo(n=-1)[:7])
        for n in range(count):
            assert receive(sock) == {"ok": {"n": n}}


def test_a_client_that_never_reads_delays_nobody_and_costs_one_answer(
    server: ControlServer, client: ControlClient
) -> None:
    big = frame({"name": "huge", "args": {"size": 4_000_000}})
    with connect(server) as sock:
        sock.sendall(big * 20)
        for n in range(30):
            assert client.call("echo", n=n) == {"n": n}
        # One of its answers is under way, and no second was made before the first has left.
        assert server.answered == 31
        assert len(receive(sock)["ok"]) == 4_000_000


def test_silent_connections_make_room_for_those_that_ask(
    server: ControlServer, client: ControlClient
) -> None:
    silent = [connect(server) for _ in range(CLIENTS_MAX * 2)]
    try:
        assert client.call("echo", a=1) == {"a": 1}
        # The first to come is the longest silent, and was hung up on.
        assert silent[0].recv(1) == b""
        silent[-1].sendall(echo(b=2))
        assert receive(silent[-1]) == {"ok": {"b": 2}}
    finally:
        for sock in silent:
            sock.close()


def test_many_clients_at_once_all_get_their_own_answer(server: ControlServer) -> None:
    wrong: list[object] = []

    def ask(number: int) -> None:
        client = ControlClient(server.path)
        for n in range(20):
            try:
                if client.call("echo", number=number, n=n) != {"number": number, "n": n}:
                    wrong.append((number, n))
            except Exception as error:
                wrong.append(error)

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert wrong == []
    assert server.answered == 320


def test_the_socket_of_an_engine_that_died_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead:
        dead.bind(str(path))
    with pytest.raises(ControlError) as caught:
        ControlClient(path).call("echo")
    assert caught.value.code == "unreachable"
    with ControlServer(path, HANDLERS):
        assert ControlClient(path).call("echo", a=1) == {"a": 1}


def test_a_file_in_the_way_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    path.write_text("mine")
    server = ControlServer(path, HANDLERS)
    with pytest.raises(ConfigError, match="is not a socket"):
        server.start()
    server.close()
    assert path.read_text() == "mine"


def test_closing_removes_the_socket_and_hangs_up(tmp_path: Path) -> None:
    server = ControlServer(tmp_path / "control.sock", HANDLERS)
    server.start()
    with connect(server) as sock:
        server.close()
        server.close()
        assert sock.recv(1) == b""
    assert not server.path.exists()
    with pytest.raises(ControlError, match="No engine answers at") as caught:
        ControlClient(server.path).call("echo")
    assert caught.value.code == "unreachable"


def test_closing_leaves_the_socket_of_the_next_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    first, second = ControlServer(path, HANDLERS), ControlServer(path, HANDLERS)
    first.start()
    second.start()
    first.close()
    assert ControlClient(path).call("echo", a=1) == {"a": 1}
    second.close()
    assert not path.exists()


def test_a_call_may_close_the_server_and_still_be_answered(tmp_path: Path) -> None:
    closing = ControlServer(tmp_path / "control.sock", {"stop": lambda args: closing.close()})
    closing.start()
    assert ControlClient(closing.path).call("stop") is None
    assert not closing.path.exists()


def test_a_server_that_does_not_answer_is_given_up(tmp_path: Path) -> None:
    go_on = threading.Event()
    with ControlServer(tmp_path / "s", {"wait": lambda args: go_on.wait(WAIT_S)}) as server:
        with pytest.raises(ControlError, match="has not answered wait") as caught:
            ControlClient(server.path, timeout_ms=20).call("wait")
        assert caught.value.code == "timeout"
        go_on.set()


def test_a_server_that_takes_no_call_is_given_up_and_nothing_was_asked(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stuck:
        stuck.bind(str(path))
        stuck.listen(0)
        waiting = [socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) for _ in range(3)]
        for sock in waiting:
            sock.setblocking(False)
            sock.connect_ex(str(path))
        with pytest.raises(ControlError) as caught:
            ControlClient(path, timeout_ms=20).call("echo")
        assert caught.value.code in ("timeout", "unreachable")  # as the system sees it
        for sock in waiting:
            sock.close()


@pytest.mark.parametrize(
    "answer", [b"", b"\0\0\0\5\xa2", frame(b"\xc1"), frame([1]), frame({"error": 1}), b"\xff" * 9]
)
def test_something_else_on_the_socket_is_an_error_with_a_name(
    tmp_path: Path, answer: bytes
) -> None:
    path = tmp_path / "control.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
        other.bind(str(path))
        other.listen(1)

        def serve() -> None:
            sock, _ = other.accept()
            with sock:
                sock.recv(1_000)
                sock.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(ControlError) as caught:
            ControlClient(path).call("echo")
        assert caught.value.code == "broken"
        thread.join(WAIT_S)


@pytest.mark.parametrize("extra", [-1, 0, 1, 2, 60])
def test_a_directory_with_a_long_name_has_a_control_socket_too(tmp_path: Path, extra: int) -> None:
    directory = tmp_path
    name_bytes = len("/control.sock")
    missing = SOCKET_PATH_BYTES_MAX + extra - len(os.fsencode(tmp_path)) - name_bytes
    directory = tmp_path / ("d" * (missing - 1))
    directory.mkdir()
    path = directory / "control.sock"
    assert len(os.fsencode(path)) == SOCKET_PATH_BYTES_MAX + extra
    with ControlServer(path, HANDLERS):
        assert stat.S_ISSOCK(path.lstat().st_mode)
        assert ControlClient(path).call("echo", a=1) == {"a": 1}
    assert list(directory.iterdir()) == []


def test_no_short_name_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short = tmp_path / "t"
    short.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(short))
    directory = tmp_path / ("d" * 100)
    directory.mkdir()
    with ControlServer(directory / "control.sock", HANDLERS) as server:
        ControlClient(server.path).call("echo")
        assert list(short.iterdir()) == []


def test_a_relative_path_is_that_of_its_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ("d" * 120)).mkdir()
    monkeypatch.chdir(tmp_path)
    with ControlServer(Path("d" * 120, "control.sock"), HANDLERS) as server:
        assert ControlClient(server.path).call("echo", a=1) == {"a": 1}


# ------------------------------------------------------------------------- forks


@pytest.mark.filterwarnings("ignore:This process.*:DeprecationWarning")
def test_a_fork_keeps_nobody_waiting_when_its_parent_is_gone(tmp_path: Path) -> None:
    """Its copies of the sockets are closed, so that a connection is refused or ends."""
    with ControlServer(tmp_path / "control", {"echo": dict}) as server:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as silent:
            silent.connect(str(server.path))
            assert ControlClient(server.path).call("echo", n=1) == {"n": 1}  # taken in after it
            peers = [peer.sock for peer in list(server._peers.values())]
            assert peers
            child = os.fork()
            if child == 0:
                sockets = [server._listener, *peers]
                os._exit(any(sock is None or sock.fileno() != -1 for sock in sockets))
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert ControlClient(server.path).call("echo", n=2) == {"n": 2}, "the parent's are open"
