"""Payloads, results and checkpoints: stored bytes against the annotations of a handler, and
arguments that come from outside."""

import dataclasses
import datetime
import decimal
import json
import tracemalloc
import uuid
from typing import Any, Literal

import msgspec

from fuzz.mutations import deep, mutate_bytes, mutate_msgpack, odd_value
from fuzz.tape import Tape
from parkade import ConfigError, PayloadError
from parkade.facts import content_of
from parkade.handlers import Handler
from parkade.payload import PayloadCodec, ResultCodec, decode_checkpoint, decode_untyped

__all__ = ["target"]

# What one reading may take beside its input: a byte of msgpack can be an object, of 16 to 64 bytes.
BYTES_PER_BYTE = 200
BYTES_BESIDE = 2_000_000


@dataclasses.dataclass
class Address:
    street: str
    number: int | None = None


class Order(msgspec.Struct):
    number: int
    lines: list[tuple[str, decimal.Decimal]]
    at: datetime.datetime
    to: Address | None = None


def plain(n: int, text: str = "", rest: Any = None) -> int:
    return n


def nested(order: Order, kind: Literal["a", "b"], marks: set[int], by: dict[str, float]) -> Order:
    return order


def various(
    at: datetime.datetime, day: datetime.date, span: datetime.timedelta, who: uuid.UUID,
    raw: bytes, either: int | str | None, *more: int, **named: list[Address],
) -> dict[str, Address]:  # fmt: skip
    return {}


NOW = datetime.datetime(2027, 1, 4, tzinfo=datetime.UTC)
ORDER = Order(7, [("ink", decimal.Decimal("1.50"))], NOW, Address("Hill", 3))
PLAIN, NESTED, VARIOUS = (
    PayloadCodec(f.__name__, Handler(f, call="task")) for f in (plain, nested, various)
)
PAYLOADS = (
    (PLAIN, PLAIN.encode((5, "x"), {"rest": [1, {"a": None}]})[0]),
    (NESTED, NESTED.encode((ORDER, "a", {1, 2}, {"eur": 1.5}), {})[0]),
    (
        VARIOUS,
        VARIOUS.encode(
            (NOW, NOW.date(), datetime.timedelta(1), uuid.UUID(int=5), b"\0", None, 1, 2),
            {"one": [Address("Hill")]},
        )[0],
    ),
)
RESULTS = tuple(ResultCodec(f.__name__, Handler(f, call="task")) for f in (plain, nested, various))


def target(data: bytes) -> None:
    """Reads what is no payload, within bounds of memory; nothing but `PayloadError` comes of it."""
    tape = Tape(data)
    codec, whole = tape.pick(PAYLOADS)
    stored = _changed(tape, whole)
    bound = BYTES_BESIDE + BYTES_PER_BYTE * len(stored)
    tracemalloc.start()
    try:
        for read in (
            lambda: codec.decode(stored),
            lambda: tape.pick(RESULTS).decode(stored),
            lambda: decode_untyped(stored),
            lambda: decode_checkpoint("t", stored, Order),
            lambda: content_of(stored),
        ):
            _refused(read)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= bound, f"{peak} bytes for {len(stored)}"
    _refused(lambda: codec.encode_mapping(_arguments(tape)))
    _refused(lambda: codec.encode((odd_value(tape),), {tape.pick(("n", "x", "")): odd_value(tape)}))


def _changed(tape: Tape, whole: bytes) -> bytes:
    match tape.below(6):
        case 0:
            return mutate_bytes(tape, mutate_bytes(tape, whole))
        case 1:
            return whole[: tape.below(len(whole))] + deep(tape)
        case 2:
            # A length without its content.
            length = tape.pick((b"\xdd", b"\xdf", b"\xc6", b"\xdb")) + b"\x7f\xff\xff\xff"
            return whole[: tape.below(len(whole))] + length + tape.rest()
        case _:
            return mutate_msgpack(tape, whole)


def _arguments(tape: Tape) -> Any:
    """As JSON gives them."""
    texts = (
        '{"n": 1e999}', '{"n": NaN}', '{"n": 1, "n": 2}', '{"n": "\\ud800"}', '{"\\ud800": 1}',
        '{"": 1}', '{"n": ' + "9" * 4_000 + "}", '{"n": 1, "rest": ' + "[" * 900 + "]" * 900 + "}",
        '{"order": {"number": 1}}', "[]", "null", '"n"', '{"n": {"__class__": "x"}}',
    )  # fmt: skip
    return json.loads(tape.pick(texts))


def _refused(call: Any) -> None:
    try:
        call()
    except (PayloadError, ConfigError) as error:
        assert error.code.startswith("PK-")
        assert len(str(error)) < 20_000, "the error quotes all of it"
