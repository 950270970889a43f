"""The control socket: how the command line asks a running engine to do something.

One Unix socket in the data directory, mode 0600. A message is a length (4 bytes, big-endian) and
that many bytes of msgpack. A request is `{"name": str, "args": {...}}`; its answer is
`{"ok": value}` or `{"error": {"code": str, "text": str}}`. Requests of one connection are answered
in order.

The server is one daemon thread that never waits for anybody: it keeps what has arrived of each
request, and what has not yet left of each answer. It knows nothing of engines; it is given a
function for each name.
"""

import contextlib
import logging
import os
import selectors
import socket
import stat
import struct
import threading
import weakref
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeAlias, cast

import msgspec

from parkade.errors import ConfigError, ParkadeError
from parkade.telling import tell
from parkade.wording import bytes_text, closest, shown_error

__all__ = [
    "ANSWER_BYTES_MAX",
    "CLIENTS_MAX",
    "REQUEST_BYTES_MAX",
    "ControlClient",
    "ControlError",
    "ControlServer",
]

Handler: TypeAlias = Callable[[Mapping[str, Any]], Any]

REQUEST_BYTES_MAX = 1_000_000
ANSWER_BYTES_MAX = 8_000_000
CLIENTS_MAX = 32  # beyond it the connection that has been silent longest makes room
READ_BYTES_MAX = 65_536  # at one go, so that no client keeps the thread to itself
BACKLOG = 128
# sun_path is 104 bytes on macOS and 108 on Linux, with the zero at its end.
SOCKET_PATH_BYTES_MAX = 103
ACCEPT_PAUSE_S = 0.5  # without descriptors, a readable listener would spin
CLOSE_S = 2.0
HEADER_BYTES = 4

_log = logging.getLogger("parkade.engine")


class ControlError(ParkadeError):
    """A call over the control socket that was not answered with a value.

    `code` is the PK code of what the engine raised, or one of: malformed, too_large,
    unknown_call, unstorable, failed (answers of the server); unreachable, timeout, broken.
    """

    def __init__(self, code: str, text: str) -> None:
        self.code = code
        # The text is what the engine wrote, its code included.
        Exception.__init__(self, text)


class _Request(msgspec.Struct):
    name: str
    args: dict[str, Any] = {}


class _Refused(Exception):
    """A request that no handler saw."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


_encode = msgspec.msgpack.Encoder().encode
_decode_request = msgspec.msgpack.Decoder(_Request).decode


def _framed(body: bytes) -> bytes:
    return len(body).to_bytes(HEADER_BYTES, "big") + body


def _error_frame(code: str, text: str) -> bytes:
    # A text with half a surrogate pair would not encode.
    clean = text.encode("utf-8", "backslashreplace").decode()
    return _framed(_encode({"error": {"code": code, "text": clean}}))


class _Peer:
    """One connection: what has come of its requests, and what is left of its answer."""

    __slots__ = ("has_ended", "inbox", "outbox", "sock")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.inbox = bytearray()
        self.outbox = memoryview(b"")
        self.has_ended = False  # nothing more is read from it; it is closed once its answer left

    def has_whole_request(self) -> bool:
        """Whether there is something to answer; also a length that no request may have."""
        if len(self.inbox) < HEADER_BYTES:
            return False
        size = int.from_bytes(self.inbox[:HEADER_BYTES], "big")
        return size > REQUEST_BYTES_MAX or len(self.inbox) >= HEADER_BYTES + size

    def take_request(self) -> bytes:
        """Raises `_Refused` for a length that no request may have: nothing after it is known."""
        size = int.from_bytes(self.inbox[:HEADER_BYTES], "big")
        if size > REQUEST_BYTES_MAX:
            self.has_ended = True
            self.inbox.clear()
            limit = bytes_text(REQUEST_BYTES_MAX)
            raise _Refused("too_large", f"A request of {bytes_text(size)}; the limit is {limit}.")
        end = HEADER_BYTES + size
        body = bytes(self.inbox[HEADER_BYTES:end])
        del self.inbox[:end]
        return body

    def send(self) -> None:
        """Sends what the socket takes now. Raises OSError when the other side is gone."""
        while self.outbox:
            try:
                sent = self.sock.send(self.outbox)
            except BlockingIOError:
                return
            self.outbox = self.outbox[sent:]


class ControlServer:
    """Answers the control socket at `path`; `handlers` has a function for each name of a request.

    A handler gets the request's arguments, as plain msgpack values, on the server's thread, and
    returns a value that msgpack can hold; what it raises is answered as an error.
    """

    def __init__(self, path: str | os.PathLike[str], handlers: Mapping[str, Handler]) -> None:
        self.path = Path(path)
        self.answered = 0
        self._handlers = handlers
        self._selector = selectors.DefaultSelector()
        self._peers: dict[int, _Peer] = {}  # by descriptor, the longest silent first
        self._ready: dict[int, _Peer] = {}  # those with a whole request and no answer under way
        self._listener: socket.socket | None = None
        self._identity: tuple[int, int] | None = None
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._is_closing = False
        self._is_accepting = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Listen. The caller holds the directory's lock: a socket that is there has no owner.

        Raises `ConfigError` when something else than a socket has that name, or when no name is
        short enough for the system; OSError when the directory does not allow it.
        """
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._clear_the_way()
            with short_name(self.path) as name:
                listener.bind(name)
            # Nobody can connect before listen(): there is no moment with a wider mode.
            self.path.chmod(0o600)
            listener.listen(BACKLOG)
            listener.setblocking(False)
            found = self.path.lstat()
        except BaseException:
            listener.close()
            raise
        self._identity = (found.st_dev, found.st_ino)
        self._listener = listener
        _sockets.add(listener)
        self._wake_reader.setblocking(False)
        self._wake_writer.setblocking(False)
        self._selector.register(self._wake_reader, selectors.EVENT_READ)
        self._accept_again()
        self._thread = threading.Thread(target=self._serve, name="parkade-control", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Hang up on everybody and remove the socket. Waits 2 s at most for a running handler."""
        self._is_closing = True
        with contextlib.suppress(OSError):
            self._wake_writer.send(b"\0")
        thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join(CLOSE_S)
        if self._listener is None:  # it never started; else its thread closes what it uses
            self._wake_reader.close()
            self._wake_writer.close()
            self._selector.close()
        self._remove()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, et: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()

    # ---------------------------------------------------------------------------- the socket

    def _clear_the_way(self) -> None:
        try:
            found = self.path.lstat()
        except FileNotFoundError:
            return
        if not stat.S_ISSOCK(found.st_mode):
            raise ConfigError(
                f"{self.path} is in the way of the control socket and is not a socket. Move it "
                "out of the data directory"
            )
        self.path.unlink()

    def _remove(self) -> None:
        """Takes the socket away if it is still ours, and not that of an engine opened since."""
        identity, self._identity = self._identity, None
        if identity is None:
            return
        with contextlib.suppress(OSError):
            found = self.path.lstat()
            if (found.st_dev, found.st_ino) == identity:
                self.path.unlink()

    # ---------------------------------------------------------------------------- the thread

    def _serve(self) -> None:
        try:
            while not self._is_closing:
                try:
                    self._turn()
                except Exception as error:
                    text = "the control socket met an error and goes on"
                    tell(_log, logging.ERROR, text, error=error)
        finally:
            for peer in list(self._peers.values()):
                self._hang_up(peer)
            if self._listener is not None:
                self._listener.close()
            self._selector.close()
            self._wake_reader.close()
            self._wake_writer.close()

    def _turn(self) -> None:
        pause = None if self._is_accepting else ACCEPT_PAUSE_S
        events = self._selector.select(0 if self._ready else pause)
        if not self._is_accepting:
            self._accept_again()
        # One request of each before the second of any.
        for peer in list(self._ready.values()):
            self._with(peer, self._answer)
        for key, mask in events:
            if key.fileobj is self._listener:
                self._accept()
            elif isinstance(key.data, _Peer):
                write = mask & selectors.EVENT_WRITE
                self._with(key.data, self._send if write else self._read)
            elif not self._is_closing:
                self._wake_reader.recv(READ_BYTES_MAX)

    def _accept_again(self) -> None:
        assert self._listener is not None
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._is_accepting = True

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            sock, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError:
            # Out of descriptors, most likely: one of ours is the first to go, then a pause.
            if self._peers:
                self._hang_up(next(iter(self._peers.values())))
            self._selector.unregister(self._listener)
            self._is_accepting = False
            return
        if len(self._peers) >= CLIENTS_MAX:
            self._hang_up(next(iter(self._peers.values())))
        sock.setblocking(False)
        _sockets.add(sock)
        peer = _Peer(sock)
        self._peers[sock.fileno()] = peer
        self._selector.register(sock, selectors.EVENT_READ, peer)

    def _with(self, peer: _Peer, act: Callable[[_Peer], None]) -> None:
        """One step for one connection; its failure costs that connection only."""
        descriptor = peer.sock.fileno()
        if self._peers.get(descriptor) is not peer:
            return  # hung up on earlier in this turn
        self._peers[descriptor] = self._peers.pop(descriptor)
        try:
            act(peer)
            if peer.has_ended and not peer.outbox:
                self._hang_up(peer)
            else:
                self._watch(peer)
        except OSError:
            self._hang_up(peer)
        except Exception as error:
            text = "a control connection met an error and was closed"
            tell(_log, logging.ERROR, text, error=error)
            self._hang_up(peer)

    def _watch(self, peer: _Peer) -> None:
        """Reads on only when the last answer has left: a client that sends and never reads fills
        its own buffers, not ours."""
        descriptor = peer.sock.fileno()
        if not peer.outbox and peer.has_whole_request():
            self._ready[descriptor] = peer
        else:
            self._ready.pop(descriptor, None)
        wanted = selectors.EVENT_WRITE if peer.outbox else selectors.EVENT_READ
        if self._selector.get_key(peer.sock).events != wanted:
            self._selector.modify(peer.sock, wanted, peer)

    def _hang_up(self, peer: _Peer) -> None:
        descriptor = peer.sock.fileno()
        self._peers.pop(descriptor, None)
        self._ready.pop(descriptor, None)
        self._selector.unregister(peer.sock)
        peer.sock.close()

    def _read(self, peer: _Peer) -> None:
        if peer.has_whole_request():
            return
        try:
            chunk = peer.sock.recv(READ_BYTES_MAX)
        except BlockingIOError:
            return
        peer.inbox += chunk
        peer.has_ended = not chunk

    def _send(self, peer: _Peer) -> None:
        peer.send()

    def _answer(self, peer: _Peer) -> None:
        if not peer.has_whole_request() or peer.outbox:
            return
        try:
            frame = self._call(peer.take_request())
        except _Refused as refused:
            frame = _error_frame(refused.code, str(refused))
        except ParkadeError as error:
            frame = _error_frame(error.code, str(error))
        # A handler that raises SystemExit means its caller, not this thread.
        except BaseException as error:
            frame = _error_frame("failed", shown_error(error))
        self.answered += 1
        peer.outbox = memoryview(frame)
        peer.send()

    def _call(self, body: bytes) -> bytes:
        try:
            request = _decode_request(body)
        except Exception as error:
            raise _Refused("malformed", f"Not a request: {error}.") from error
        handler = self._handlers.get(request.name)
        if handler is None:
            near = closest(request.name, self._handlers)
            hint = f"Did you mean {near}?" if near else "The engine may be an older parkade."
            raise _Refused("unknown_call", f'No call is named "{request.name}". {hint}')
        value = handler(request.args)
        try:
            answer = _encode({"ok": value})
        except Exception as error:
            raise _Refused(
                "unstorable", f"{request.name} was done, and its answer cannot be sent: {error}."
            ) from error
        if len(answer) > ANSWER_BYTES_MAX:
            raise _Refused(
                "too_large",
                f"{request.name} was done, and its answer of {bytes_text(len(answer))} is over "
                f"the limit of {bytes_text(ANSWER_BYTES_MAX)}. Ask for less at a time.",
            )
        return _framed(answer)


class ControlClient:
    """Asks the engine that owns a directory. One connection per call, so it cannot go stale."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        timeout_ms: int = 30_000,
        who: Callable[[], str] | None = None,
    ) -> None:
        """`who` names the engine, for one that does not answer."""
        self.path = Path(path)
        self.timeout_ms = timeout_ms
        self._who = who or (lambda: f"The engine at {self.path}")

    def call(self, name: str, /, **args: Any) -> Any:
        """The value that the engine answered, of plain msgpack types.

        Raises `ControlError`: `unreachable` when no engine listens (nothing was asked), `timeout`
        and `broken` when one did and no answer came (the text says whether it may have been done),
        else what it answered.
        """
        body = _encode(_Request(name, args))
        if len(body) > REQUEST_BYTES_MAX:
            raise ControlError(
                "too_large",
                f"{name}: a request of {bytes_text(len(body))}; the limit is "
                f"{bytes_text(REQUEST_BYTES_MAX)}. Ask for less at a time",
            )
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            self._connect(sock)
            sock.settimeout(self.timeout_ms / 1_000)
            try:
                # A server that refuses a request stops reading it: its answer says why.
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    sock.sendall(_framed(body))
                answer = self._receive(sock)
            except TimeoutError as error:
                raise ControlError(
                    "timeout",
                    f"{self._who()} has not answered {name} within {self.timeout_ms / 1_000:g} s. "
                    "It may still do it, once its process goes on; commands that only look, like "
                    "status, ls, show and why, read the files without it",
                ) from error
            except (OSError, msgspec.MsgspecError, RecursionError) as error:
                raise ControlError(
                    "broken",
                    f"The engine at {self.path} hung up on {name} ({error}). It may have been done",
                ) from error
        return self._value(answer)

    def _connect(self, sock: socket.socket) -> None:
        # With Python's own timeout Linux would refuse at once while others wait to be accepted.
        seconds, rest_ms = divmod(self.timeout_ms, 1_000)
        span = struct.pack("@ll", seconds, rest_ms * 1_000)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, span)
        try:
            with short_name(self.path) as name:
                sock.connect(name)
        except BlockingIOError as error:
            raise ControlError(
                "timeout",
                f"{self._who()} has taken no call for {self.timeout_ms / 1_000:g} s. Nothing was "
                "asked of it; commands that only look read the files without it",
            ) from error
        except OSError as error:
            raise ControlError(
                "unreachable", f"No engine answers at {self.path} ({error.strerror or error})"
            ) from error

    def _receive(self, sock: socket.socket) -> Any:
        size = int.from_bytes(self._read(sock, HEADER_BYTES), "big")
        if size > ANSWER_BYTES_MAX + 1_000:
            raise OSError(f"an answer of {bytes_text(size)}")
        return msgspec.msgpack.decode(self._read(sock, size))

    def _read(self, sock: socket.socket, size: int) -> bytes:
        chunks = bytearray()
        while len(chunks) < size:
            chunk = sock.recv(min(size - len(chunks), READ_BYTES_MAX))
            if not chunk:
                raise OSError("the answer ends early")
            chunks += chunk
        return bytes(chunks)

    def _value(self, answer: Any) -> Any:
        if isinstance(answer, dict):
            fields = cast(dict[str, Any], answer)
            if "ok" in fields:
                return fields["ok"]
            error = cast(dict[str, Any] | None, fields.get("error"))
            if isinstance(error, dict):
                raise ControlError(str(error.get("code")), str(error.get("text")))
        raise ControlError("broken", f"What listens at {self.path} is not a parkade engine")


@contextlib.contextmanager
def short_name(path: Path) -> Generator[str, None, None]:
    """A name for `path` that fits into a socket address, valid inside the `with`.

    A long one is reached through a link to its directory, in a private temporary directory: a
    name is only looked up at bind and connect. Raises `ConfigError` when that is too long as well.
    """
    if len(os.fsencode(path)) <= SOCKET_PATH_BYTES_MAX:
        yield str(path)
        return
    import tempfile

    for base in (None, "/tmp"):
        with tempfile.TemporaryDirectory(prefix="pk-", dir=base) as private:
            link = Path(private) / "d"
            name = link / path.name
            if len(os.fsencode(name)) <= SOCKET_PATH_BYTES_MAX:
                link.symlink_to(path.parent.absolute())
                yield str(name)
                return
    raise ConfigError(
        f"{path} is too long for a Unix socket, and so is every short name for it. Give the "
        "engine a directory with a shorter name, or set TMPDIR to a short one"
    )


_sockets: "weakref.WeakSet[socket.socket]" = weakref.WeakSet()


def _leave_all_to_parent() -> None:
    """A fork answers nobody: with its copies open, whoever asks would wait for it when its parent
    is no more."""
    for sock in list(_sockets):
        with contextlib.suppress(OSError):
            sock.close()
    _sockets.clear()


os.register_at_fork(after_in_child=_leave_all_to_parent)
