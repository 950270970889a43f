"""Arguments and results to bytes and back: what is checked at submit, what is read at run."""

import dataclasses
import enum
import sys
import types
import uuid
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple, NoReturn, TypedDict, cast

import msgspec
import pytest

from parkade.errors import ConfigError, PayloadError
from parkade.handlers import Handler
from parkade.payload import (
    PayloadCodec,
    ResultCodec,
    check_size,
    decode_untyped,
    encode_checkpoint,
)


class Order(msgspec.Struct):
    id: int
    cents: int = 0


class Refund(msgspec.Struct):
    order: Order
    reasons: list[str] = msgspec.field(default_factory=list[str])


@dataclasses.dataclass
class Address:
    street: str
    lines: "list[Address]" = dataclasses.field(default_factory=list["Address"])


class Colour(enum.Enum):
    RED = "red"


class Point(NamedTuple):
    x: int
    y: int


class Meta(TypedDict):
    region: str


class UserId(str): ...


class Cents(int): ...


class Foreign: ...


def codec(fn: Callable[..., Any], task: str = "t") -> PayloadCodec:
    return PayloadCodec(task, Handler(fn, call="@engine.task"))


def results(fn: Callable[..., Any]) -> ResultCodec:
    return ResultCodec("t", Handler(fn, call="@engine.task"))


def through(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What the handler gets for these arguments, after storing them."""
    coder = codec(fn)
    payload, _ = coder.encode(args, kwargs)
    stored_args, stored_kwargs = coder.decode(payload)
    return fn(*stored_args, **stored_kwargs)


def refusal(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    with pytest.raises(PayloadError) as caught:
        codec(fn, "billing.charge").encode(args, kwargs)
    assert caught.value.code == "PK-202"
    assert caught.value.task == "billing.charge"
    return str(caught.value).removesuffix(" [PK-202]")


def unannotated(a: Any) -> Any:
    return a


unannotated.__annotations__.clear()


def plain(a: int, b: str = "x", *, c: bool = False) -> tuple[Any, ...]:
    return a, b, c


def charge(order: Order) -> Order:
    return order


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [((1,), {}), ((1, "y"), {}), ((1,), {"c": True}), ((), {"a": 1, "b": "z", "c": True})],
)
def test_the_handler_gets_what_a_direct_call_would_give_it(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    assert through(plain, *args, **kwargs) == plain(*args, **kwargs)


def test_arguments_that_were_left_out_are_not_stored() -> None:
    payload, values = codec(plain).encode((1,), {})
    assert decode_untyped(payload) == values == {"a": 1}


def test_every_shape_of_signature_survives_storing() -> None:
    def shape(a: int, /, b: int = 2, *rest: int, c: int, d: int = 4, **more: int) -> Any:
        return a, b, rest, c, d, more

    def front(a: int, b: int = 2, /) -> Any:
        return a, b

    def nothing() -> Any:
        return ()

    for args, kwargs in (
        ((1,), {"c": 3}),
        ((1, 5), {"c": 3, "d": 6}),
        ((1, 5, 7, 8), {"c": 3, "x": 9}),
        ((1,), {"b": 5, "c": 3}),
    ):
        assert through(shape, *args, **kwargs) == shape(*args, **kwargs)
    assert through(front, 1) == (1, 2)
    assert through(front, 1, 3) == (1, 3)
    assert through(nothing) == ()


VALUES: list[tuple[Any, Any]] = [
    (int, 2**63),
    (int | None, None),
    (float, 1.5),
    (float, float("inf")),
    (bytes, b"\x00\xff"),
    (bool, True),
    (str, "naïve 😀\0"),
    (Order, Order(1, 2)),
    (Refund, Refund(Order(1), ["a"])),
    (Address, Address("a", [Address("b")])),
    (Colour, Colour.RED),
    (Point, Point(1, 2)),
    (Meta, {"region": "eu"}),
    (list[Order], [Order(1)]),
    (dict[int, str], {1: "a"}),
    (set[int], {1, 2}),
    (tuple[int, str], (1, "a")),
    (datetime, datetime(2027, 1, 1, tzinfo=UTC)),
    (date, date(2027, 1, 1)),
    (timedelta, timedelta(days=1)),
    (uuid.UUID, uuid.UUID(int=7)),
    (Decimal, Decimal("1.10")),
    (Literal["a", "b"], "b"),
    (UserId, UserId("ann")),
    (Cents, Cents(5)),
    (Annotated[int, msgspec.Meta(ge=1)], 1),
    (Any, {"a": [1, None, "x"]}),
    (object, [1]),
]


@pytest.mark.parametrize(("hint", "value"), VALUES, ids=str)
def test_a_value_comes_back_as_its_annotation_says(hint: Any, value: Any) -> None:
    def handler(a: Any) -> Any:
        return a

    handler.__annotations__ = {"a": hint}
    back = through(handler, value)
    assert back == value
    assert type(back) is type(value)


def test_an_unannotated_argument_comes_back_as_plain_values() -> None:
    assert through(unannotated, Order(1, 2)) == {"id": 1, "cents": 2}


def test_a_value_of_a_plain_types_subclass_is_stored_as_that_type() -> None:
    def handler(name: str, n: int) -> tuple[str, int]:
        return name, n

    back = through(handler, UserId("ann"), Cents(3))
    assert back == ("ann", 3)
    assert [type(part) for part in back] == [str, int]


@pytest.mark.parametrize(
    ("args", "kwargs", "problem"),
    [
        (("x",), {}, "billing.charge(a=...): expected int, got str"),
        ((True,), {}, "billing.charge(a=...): expected int, got bool"),
        ((1.0, "x"), {}, "billing.charge(a=...): expected int, got float"),
        ((None,), {}, "billing.charge(a=...): expected int, got None"),
        (([],), {}, "billing.charge(a=...): expected int, got a list"),
        (
            (),
            {},
            "billing.charge takes (a: int, b: str = 'x', *, c: bool = False): "
            "missing a required argument: 'a'",
        ),
        (
            (1, "x", True),
            {},
            "billing.charge takes (a: int, b: str = 'x', *, c: bool = False): "
            "too many positional arguments",
        ),
        (
            (1,),
            {"d": 2},
            "billing.charge takes (a: int, b: str = 'x', *, c: bool = False): "
            "got an unexpected keyword argument 'd'",
        ),
        (
            (1,),
            {"a": 2},
            "billing.charge takes (a: int, b: str = 'x', *, c: bool = False): "
            "multiple values for argument 'a'",
        ),
    ],
)
def test_arguments_that_do_not_fit_are_refused_at_submit(
    args: tuple[Any, ...], kwargs: dict[str, Any], problem: str
) -> None:
    assert refusal(plain, *args, **kwargs) == problem


def test_the_path_of_a_bad_field_is_told() -> None:
    def handler(refund: Refund) -> None: ...

    assert (
        refusal(charge, Order("seven"))  # type: ignore[arg-type]
        == "billing.charge(order=...): order.id: expected int, got str"
    )
    assert (
        refusal(handler, Refund(Order(1), ["a", 5]))  # type: ignore[list-item]
        == "billing.charge(refund=...): refund.reasons[1]: expected str, got int"
    )
    assert refusal(charge, 5) == "billing.charge(order=...): expected a mapping, got int"


def test_a_value_that_cannot_be_stored_is_named_with_its_path() -> None:
    advice = "Pass an id, or a Struct/dataclass of plain fields"

    def handler(order: Any) -> None: ...

    def start(value: Any) -> str:
        return refusal(handler, value).removeprefix("billing.charge(order=...): cannot store ")

    assert start(Foreign()) == f"order of type Foreign. {advice}"
    assert start(Order(Foreign())) == f"field order.id of type Foreign. {advice}"  # type: ignore[arg-type]
    assert start(Address(Foreign())) == f"field order.street of type Foreign. {advice}"  # type: ignore[arg-type]
    assert start({"card": [1, Foreign()]}) == f"field order['card'][1] of type Foreign. {advice}"
    assert start({Foreign(): 1}) == f"field order's keys of type Foreign. {advice}"
    assert start([2**64]) == "order[0]: an integer of more than 64 bits. Pass it as text"
    assert start(["\ud800"]) == "order[0]: a lone surrogate is no Unicode. Pass it as bytes"
    loop: list[Any] = []
    loop.append(loop)
    assert start(loop).endswith("it contains itself, or is nested too deeply")


def test_a_declared_type_that_nothing_can_store_is_refused_at_submit() -> None:
    def handler(card: Foreign) -> None: ...

    assert "cannot store card of type Foreign" in refusal(handler, Foreign())
    assert refusal(handler, 3) == "billing.charge(card=...): expected Foreign, got int"


def test_a_struct_may_be_given_as_the_mapping_that_it_is_stored_as() -> None:
    payload, values = codec(charge).encode(({"id": 7},), {})
    assert values == {"order": Order(7)}
    assert codec(charge).decode(payload) == ((), {"order": Order(7)})


def test_arguments_from_outside_are_read_as_json_would_have_them() -> None:
    def handler(at: datetime, ident: uuid.UUID, body: bytes, order: Order) -> None: ...

    payload, values = codec(handler).encode_mapping(
        {
            "at": "2027-01-01T00:00:00Z",
            "ident": "00000000-0000-0000-0000-000000000007",
            "body": "aGk=",
            "order": {"id": 7},
        }
    )
    assert values["at"] == datetime(2027, 1, 1, tzinfo=UTC)
    assert codec(handler).decode(payload) == ((), values)
    assert values["body"] == b"hi"


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (
            {"order": {"id": "seven", "cents": 5}},
            "t(order=...): order.id: expected int, got str",
        ),
        ({"order": {}}, "t(order=...): missing required field id"),
        (
            {},
            't takes (order: test_payload.Order): there is no value for "order", which has no '
            "default",
        ),
        (
            {"ordr": 1},
            't takes (order: test_payload.Order): there is no argument "ordr". Close: order',
        ),
    ],
)
def test_arguments_from_outside_are_refused_with_their_path(
    given: dict[str, Any], problem: str
) -> None:
    with pytest.raises(PayloadError) as caught:
        codec(charge).encode_mapping(given)
    text = str(caught.value).removesuffix(" [PK-202]")
    assert text.replace(f"{__name__}.", "test_payload.") == problem


def stored_under(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> bytes:
    return codec(fn).encode(args, kwargs)[0]


def test_new_arguments_with_defaults_and_lost_ones_leave_payloads_readable() -> None:
    def old(a: int, b: int) -> None: ...
    def new(a: int, c: str = "x") -> Any:
        return a, c

    assert codec(new).decode(stored_under(old, 1, 2)) == ((), {"a": 1})


def test_a_payload_that_does_not_fit_the_handler_of_today_is_refused_at_run() -> None:
    def old(a: int) -> None: ...
    def new(a: int, c: str) -> None: ...
    def other(a: str) -> None: ...

    with pytest.raises(PayloadError, match=r'no value for "c", which has no default'):
        codec(new).decode(stored_under(old, 1))
    with pytest.raises(PayloadError, match=r"t\(a=\.\.\.\): expected str, got int"):
        codec(other).decode(stored_under(old, 1))
    for garbage in (b"", b"\xc1", b"\x93\x01", b"\x01"):
        with pytest.raises(PayloadError):
            codec(old).decode(garbage)


def test_a_validator_that_raises_is_a_payload_error_with_its_path() -> None:
    class Even(msgspec.Struct):
        n: int

        def __post_init__(self) -> None:
            if self.n % 2:
                raise ValueError("it is odd")

    def handler(e: Even) -> None: ...

    handler.__annotations__["e"] = Even
    with pytest.raises(PayloadError, match=r"t\(e=\.\.\.\): it is odd"):
        codec(handler).encode(({"n": 3},), {})


def test_annotations_that_cannot_be_told_apart_once_stored_are_refused_at_decoration() -> None:
    def handler(what: Order | Refund) -> None: ...
    def result() -> Order | Refund: ...  # type: ignore[empty-body]

    with pytest.raises(ConfigError, match=r"its arguments cannot be stored .*tagged") as caught:
        codec(handler)
    assert caught.value.code == "PK-306"
    with pytest.raises(ConfigError, match=r"its result cannot be stored"):
        results(result)


def test_a_result_comes_back_as_its_annotation_says() -> None:
    def typed() -> Order: ...  # type: ignore[empty-body]
    def untyped(): ...  # type: ignore[no-untyped-def]
    def never() -> NoReturn: ...  # type: ignore[empty-body]
    def nothing() -> None: ...

    assert results(typed).decode(results(typed).encode(Order(1))) == Order(1)
    assert results(untyped).decode(results(untyped).encode(Order(1))) == {"id": 1, "cents": 0}
    assert results(never).decode(results(never).encode(None)) is None
    assert results(nothing).decode(results(nothing).encode(None)) is None
    assert decode_untyped(results(typed).encode(Order(1))) == {"id": 1, "cents": 0}


def test_a_result_that_breaks_its_annotation_is_kept_and_refused_to_the_reader() -> None:
    def typed() -> Order: ...  # type: ignore[empty-body]

    encoded = results(typed).encode({"id": "seven"})
    assert decode_untyped(encoded) == {"id": "seven"}
    with pytest.raises(PayloadError) as caught:
        results(typed).decode(encoded)
    assert str(caught.value) == (
        "t result id does not fit its return annotation: expected int, got str [PK-202]"
    )


def test_a_result_that_cannot_be_stored_or_is_too_large_is_refused() -> None:
    def untyped(): ...  # type: ignore[no-untyped-def]

    with pytest.raises(PayloadError) as caught:
        results(untyped).encode([Foreign()])
    assert str(caught.value) == (
        "t cannot store its result[0] of type Foreign. Pass an id, or a Struct/dataclass of plain "
        "fields [PK-202]"
    )
    with pytest.raises(PayloadError, match=r"^t result is 13 bytes, the limit is 12 bytes\."):
        results(untyped).encode("x" * 12, bytes_max=12)
    assert len(results(untyped).encode("x" * 11, bytes_max=12)) == 12


def test_a_large_payload_is_refused_with_its_size() -> None:
    check_size("billing.charge", b"x" * 1_000_000, 1_000_000)
    with pytest.raises(PayloadError) as caught:
        check_size("billing.charge", b"x" * 4_100_000, 1_000_000)
    assert str(caught.value) == (
        "billing.charge payload is 4.1 MB, the limit is 1.0 MB. Store a path or an id, or raise "
        "Engine(max_payload=) [PK-202]"
    )


# ------------------------------------------------------------------------------------ pydantic


class BaseModel:
    """As much of pydantic's as the codec asks for."""

    model_fields: dict[str, Any] = {"id": None, "secret": None}  # noqa: RUF012

    def __init__(self, id: Any, secret: Any = None) -> None:
        self.id, self.secret = id, secret

    def model_dump(self) -> dict[str, Any]:
        return {"id": self.id, "secret": self.secret}

    @classmethod
    def model_validate(cls, value: Any) -> "BaseModel":
        fields = cast("dict[str, Any]", value)
        if not isinstance(fields["id"], int):
            raise ValueError("id: a valid integer is asked for")
        return cls(**fields)


class Model(BaseModel): ...


def as_text(url: object) -> str:
    return "http://a"


class Envelope(msgspec.Struct):
    model: Model


@pytest.fixture
def pydantic(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("pydantic")
    module.BaseModel = BaseModel  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pydantic", module)


@pytest.mark.usefixtures("pydantic")
def test_a_pydantic_model_is_stored_as_a_map_and_validated_when_it_is_read() -> None:
    def handler(model: Model, envelope: Envelope) -> Any:
        return model, envelope

    model, envelope = through(handler, Model(7), Envelope(Model(8)))
    assert type(model) is type(envelope.model) is Model
    assert (model.id, envelope.model.id) == (7, 8)


@pytest.mark.usefixtures("pydantic")
def test_a_pydantic_model_that_does_not_validate_is_refused_at_submit() -> None:
    def handler(model: Model) -> None: ...

    assert "id: a valid integer is asked for" in refusal(handler, Model("x"))
    assert "cannot store field model.secret of type Foreign" in refusal(
        handler, Model(1, Foreign())
    )


@pytest.mark.usefixtures("pydantic")
def test_an_address_type_of_pydantic_is_stored_as_text() -> None:
    kind = type("HttpUrl", (), {"__module__": "pydantic.networks", "__str__": as_text})
    payload, _ = codec(unannotated).encode((kind(),), {})
    assert decode_untyped(payload) == {"a": "http://a"}


def test_without_pydantic_its_models_are_as_foreign_as_any() -> None:
    assert "cannot store a of type Model" in refusal(unannotated, Model(1))


class Alarm(Exception):
    """What a signal handler raises."""


class Interrupted:
    """While it is encoded, a signal comes, once."""

    is_told = False

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # what the encoder asks of a value that it does not know
        if not self.is_told:
            self.is_told = True
            raise Alarm
        return Interrupted


def test_what_a_signal_handler_raises_while_a_value_is_encoded_passes() -> None:
    def f(value: Any) -> Any: ...

    ways: list[Callable[[Any], Any]] = [
        lambda value: codec(f).encode((value,), {}),
        lambda value: codec(f).encode_mapping({"value": value}),
        lambda value: ResultCodec("t", Handler(f, call="")).encode(value),
        lambda value: encode_checkpoint("t", value),
    ]
    for encode in ways:
        with pytest.raises(Alarm):
            encode(Interrupted())
