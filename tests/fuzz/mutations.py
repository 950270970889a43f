"""How content is changed: bytes, and values of msgpack and JSON, as the tape says."""

import math
from typing import Any

import msgspec

from fuzz.tape import Tape

__all__ = ["LONG_CHARS", "deep", "mutate_bytes", "mutate_msgpack", "odd_value"]

LONG_CHARS = 200_000
DEEP_LEVELS = 100_000
NUMBERS = (
    0, 1, 7, 8, 127, 128, 255, 256, 65_535, 65_536, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32,
    (1 << 63) - 1, 1 << 63, (1 << 64) - 1,
)  # fmt: skip
_pack = msgspec.msgpack.Encoder().encode


def mutate_bytes(tape: Tape, content: bytes) -> bytes:
    """One change: of a bit, a byte, a number, a run; or a run is gone, or new, or elsewhere."""
    changed = bytearray(content)
    at = tape.below(len(changed)) if changed else 0
    run = 1 + tape.below(1 + min(64, len(changed)))
    match tape.below(10):
        case 0 if changed:
            changed[at] ^= 1 << tape.below(8)
        case 1 if changed:
            changed[at] = tape.number()
        case 2:
            size = tape.pick((1, 2, 4, 8))
            number = tape.pick(NUMBERS) & ((1 << 8 * size) - 1)
            order = "big" if tape.flag() else "little"
            changed[at : at + size] = number.to_bytes(size, "big")[:: 1 if order == "big" else -1]
        case 3:
            changed[at : at + run] = bytes(run)
        case 4:
            changed[at : at + run] = tape.take(run)
        case 5:
            del changed[at : at + run]
        case 6:
            changed[at:at] = tape.take(run)
        case 7:
            there = tape.below(len(changed) + 1)
            changed[there:there] = changed[at : at + run]
        case 8:
            del changed[at:]
        case _:
            there = tape.below(len(changed) + 1)
            changed[there : there + run] = changed[at : at + run]
    return bytes(changed)


def deep(tape: Tape) -> bytes:
    """Arrays or maps of msgpack, one in the other, deeper than anybody would read."""
    opening = tape.pick((b"\x91", b"\x81\xa1a", b"\x81"))
    return opening * DEEP_LEVELS + b"\xc0"


def odd_value(tape: Tape) -> Any:
    """A value that may be wrong where it is put."""
    kinds: tuple[Any, ...] = (
        None, True, -1, -(1 << 63), math.nan, math.inf, -0.0, 1e300, "", "x", "\0", "\ud7ff\uffff",
        "x" * LONG_CHARS, "a b", "../..", b"", b"\xff", bytes(LONG_CHARS), [], {}, [[]], {"a": 1},
        [None] * 1_000, {str(n): n for n in range(100)}, *NUMBERS,
    )  # fmt: skip
    return tape.pick(kinds)


def mutate_msgpack(tape: Tape, content: bytes) -> bytes:
    """Another message of msgpack: one value of it is another, is gone, or is there twice. Bytes
    that are no msgpack are changed as bytes."""
    how = tape.below(8)
    if how == 0:
        return mutate_bytes(tape, content)
    if how == 1:
        return content[: tape.below(len(content) + 1)] + deep(tape)
    try:
        value = msgspec.msgpack.decode(content)
    except (msgspec.MsgspecError, RecursionError):
        return mutate_bytes(tape, content)
    return _pack(_changed(tape, value))


def _changed(tape: Tape, value: Any) -> Any:
    if isinstance(value, list) and value and tape.below(4):
        items: list[Any] = value
        at = tape.below(len(items))
        match tape.below(8):
            case 0:
                return items[:at] + items[at + 1 :]
            case 1:
                return items[: at + 1] + items[at:]
            case 2:
                there = tape.below(len(items))
                items[at], items[there] = items[there], items[at]
                return items
            case 3:
                return [*items[:at], odd_value(tape), *items[at:]]
            case _:
                return [*items[:at], _changed(tape, items[at]), *items[at + 1 :]]
    if isinstance(value, dict) and value and tape.below(4):
        fields: dict[Any, Any] = value
        name = tape.pick(list(fields))
        match tape.below(4):
            case 0:
                return {key: one for key, one in fields.items() if key != name}
            case 1:
                return fields | {tape.pick(("", "x", 5, None, "name", "args")): odd_value(tape)}
            case _:
                return fields | {name: _changed(tape, fields[name])}
    if isinstance(value, bytes) and value and tape.flag():
        return mutate_bytes(tape, value)
    if isinstance(value, int) and not isinstance(value, bool) and tape.flag():
        near = value + tape.pick((1, -1, 1 << 20, -(1 << 20), 1 << 32))
        return near if -(1 << 63) <= near < 1 << 64 else 0
    return odd_value(tape)
