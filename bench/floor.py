"""How fast could this machine be, with no engine at all? The floor that figures are held against.

Three measures in plain Python, on a file that is written and synced before they begin (as a
recycled journal segment is), one thread, nothing else on the disk:

sync      one 4 KiB append made durable: what the shortest honest answer costs
triple    three in a row: a submit, a start and a completion, each awaited by the next
records   batches of 1,000 records with 100-byte payloads: encode, checksum, append, sync

`measure(directory, BRIEF)` is for other benches, which hold each run against its own floor.
"""

import os
import sys
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import msgspec

from bench.kit import Options, Timer, WorkHash, figures_of, options, quantile, repeat, report

QUESTION = "How fast is this machine's disk and encoder, with no engine at all?"

MIB = 1 << 20
FILE_BYTES = 64 * MIB
# The next append begins at the front again from here: no batch may reach past the zeroed bytes.
WRAP_BYTES = 60 * MIB
PAGE = b"\xa5" * 4096
RECORDS_PER_BATCH = 1_000
PAYLOAD = b"\x5a" * 100
DUE_MS = 1_800_000_000_000


class Effort(NamedTuple):
    """How long to measure: so many appends, so many windows of seconds, in a file of bytes."""

    syncs: int
    triples: int
    seconds: float
    windows: int
    file_bytes: int


USUAL = Effort(1_500, 400, 0.6, 3, FILE_BYTES)  # about three seconds
BRIEF = Effort(400, 150, 0.3, 1, 32 * MIB)  # under one
SMALLEST = Effort(20, 5, 0.02, 1, 8 * MIB)  # shows only that it works

# macOS has no fdatasync.
sync: Callable[[int], None] = getattr(os, "fdatasync", os.fsync)


class Parked(msgspec.Struct, frozen=True, array_like=True, tag=1, gc=False):
    """A record of the size and the shape that a submit writes."""

    serial: int
    part: int
    task: int
    due_ms: int
    key: str | None
    payload: bytes


class Strip:
    """A file whose blocks all exist: an append changes bytes and no size."""

    def __init__(self, path: Path, file_bytes: int = FILE_BYTES) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        zeros = bytes(MIB)
        for offset in range(0, file_bytes, MIB):
            os.pwrite(self._fd, zeros, offset)
        os.fsync(self._fd)
        self._wrap_bytes = file_bytes * WRAP_BYTES // FILE_BYTES
        self._offset = 0

    def append(self, block: bytes) -> None:
        """Write a block after the last one and return when it is durable."""
        if self._offset > self._wrap_bytes:
            self._offset = 0
        self._offset += os.pwrite(self._fd, block, self._offset)
        sync(self._fd)

    def close(self) -> None:
        """Give the descriptor back; the file goes with its directory."""
        os.close(self._fd)


def measure(directory: Path | str, effort: Effort) -> dict[str, float]:
    """The floor of the disk under `directory`: times in microseconds, records per second."""
    path = Path(directory) / "floor.strip"
    strip = Strip(path, effort.file_bytes)
    try:
        single = [appended(strip, 1) for _ in range(effort.syncs)]
        triple = [appended(strip, 3) for _ in range(effort.triples)]
        rates = [records_per_s(strip, effort.seconds) for _ in range(effort.windows)]
    finally:
        strip.close()
        path.unlink()
    return {
        "sync_us_p50": quantile(single, 0.5),
        "sync_us_p99": quantile(single, 0.99),
        "triple_us_p50": quantile(triple, 0.5),
        "triple_us_p99": quantile(triple, 0.99),
        "records_per_s": quantile(rates, 0.5),
    }


def beside(asked: Options, directory: Path) -> dict[str, float]:
    """The floor of a run of another bench, its names with `floor_` in front."""
    measured = measure(directory, asked.pick(SMALLEST, BRIEF))
    return {f"floor_{name}": value for name, value in measured.items()}


def appended(strip: Strip, times: int) -> float:
    """The microseconds that so many durable appends of one page take, one after the other."""
    with Timer() as timer:
        for _ in range(times):
            strip.append(PAGE)
    return timer.micros


def records_per_s(strip: Strip, seconds: float) -> float:
    """How many records a second become durable, a batch at a time, for so many seconds."""
    encode = msgspec.msgpack.Encoder().encode
    serial = 0
    start = now = perf_counter()
    while now - start < seconds:
        batch = range(serial, serial + RECORDS_PER_BATCH)
        block = encode([Parked(n, 7, 3, DUE_MS + n, None, PAYLOAD) for n in batch])
        strip.append(zlib.crc32(block).to_bytes(4, "little") + block)
        serial += RECORDS_PER_BATCH
        now = perf_counter()
    return serial / (now - start)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure the floor and report it."""
    asked = options("floor", QUESTION, argv, runs_usual=3)
    with asked.scratch() as directory:
        taken = repeat(asked, lambda sized: measure(directory, sized.pick(SMALLEST, USUAL)))
    work = WorkHash()
    work.add(len(PAGE), RECORDS_PER_BATCH, len(PAYLOAD))
    report(asked, figures_of(taken), work=work)
    return 0


if __name__ == "__main__":
    sys.exit(main())
