"""Arguments and results to bytes and back: msgspec, against the handler's annotations.

A payload is a msgpack map by argument name, of the arguments that were given: an argument that was
left out takes the handler's default of the day it runs. So new arguments with defaults, and new
fields with defaults, leave stored payloads readable. No pickle: reading runs no stored code.
"""

import dataclasses
import inspect
import re
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import (
    Any,
    Never,
    NoReturn,
    NotRequired,
    TypedDict,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
)

import msgspec

from parkade.errors import ConfigError, PayloadError
from parkade.handlers import Handler
from parkade.outcome import Outcome
from parkade.wording import bytes_text, closest

__all__ = [
    "PAYLOAD_BYTES_MAX",
    "PayloadCodec",
    "ResultCodec",
    "check_size",
    "decode_checkpoint",
    "decode_untyped",
    "encode_checkpoint",
]

T = TypeVar("T")

PAYLOAD_BYTES_MAX = 1_000_000
PROBLEM_CHARS_MAX = 500
_ADVICE = "Pass an id, or a Struct/dataclass of plain fields"
_NESTING_MAX = 64
# Types whose values are stored as they are and come back equal: nothing to check but the type.
_PLAIN = frozenset({int, str, bytes, float, bool, type(None)})
_PROBLEM = re.compile(r"(?s)(.*?)(?: - at `\$\.?(.*)`)?")
_MISSING = re.compile(r"Object missing required field `([^`]*)`")
_WORDS = {
    "Object missing": "missing",
    "`null`": "None",
    "`object`": "a mapping",
    "`array`": "a list",
    "`": "",
}

_Types = frozenset[type] | None  # None: anything goes


class PayloadCodec:
    """The arguments of one handler. `task` is its name, for errors.

    Raises `Unresolved` while an annotation names what is not defined, and `ConfigError` (PK-306)
    for annotations that nothing stored could ever fit.
    """

    __slots__ = (
        "_by_keyword",
        "_count",
        "_decode",
        "_exact",
        "_handler",
        "_lone_types",
        "_positional",
        "_required",
        "_spread",
        "_task",
        "_type",
    )

    def __init__(self, task: str, handler: Handler) -> None:
        self._task, self._handler = task, handler
        parameters = handler.signature.parameters.values()
        hints = handler.hints()
        kinds = {p.name: p.kind for p in parameters}
        variadic = [p for p in parameters if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        plain = [p for p in parameters if p not in variadic]
        self._positional = tuple(p.name for p in plain if p.kind is not p.KEYWORD_ONLY)
        self._by_keyword = {p.name for p in plain if p.kind is not p.POSITIONAL_ONLY}
        self._required = {p.name for p in plain if p.default is p.empty}
        self._count = len(plain) if len(self._positional) == len(kinds) else -1
        # Arguments that cannot all be given by keyword are spread out again at run.
        self._spread = bool(variadic) or any(p.kind is p.POSITIONAL_ONLY for p in plain)
        fields: dict[str, Any] = {}
        self._exact: dict[str, _Types] = {}
        for p in parameters:
            hint: Any = hints.get(p.name, Any)
            self._exact[p.name] = None if hint is Any or hint is object else _exact_types(hint)
            if p.kind is p.VAR_POSITIONAL:
                hint, self._exact[p.name] = types.GenericAlias(list, (hint,)), frozenset()
            elif p.kind is p.VAR_KEYWORD:
                hint, self._exact[p.name] = types.GenericAlias(dict, (str, hint)), frozenset()
            fields[p.name] = hint if p.name in self._required else NotRequired[hint]
        # Of the argument of a handler that has no other: what fits it for certain.
        lone = self._exact[self._positional[0]] if self._count == 1 else None
        self._lone_types = frozenset[type]() if lone is None else lone
        make: Any = TypedDict
        self._type: Any = make("Arguments", fields)
        self._decode = typed_decoder(self._type, handler, "its arguments").decode

    def encode(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[bytes, dict[str, Any]]:
        """The payload, and the arguments by name, for templates.

        Checked: what is stored fits the annotations and can be read back. Raises `PayloadError`.
        """
        is_lone = len(args) == 1 and type(args[0]) in self._lone_types and not kwargs
        if is_lone:
            values = {self._positional[0]: args[0]}
        elif kwargs or len(args) != self._count:
            values = self._bind(args, kwargs)
        else:
            values = dict(zip(self._positional, args, strict=True))
        try:
            payload = _encode(values)
        except Exception as error:
            _pass_foreign(error, lambda: _encode(values))
            raise unstorable(self._task, values, error) from error
        if is_lone:
            return payload, values
        exact = self._exact
        for name, value in values.items():
            fits = exact[name]
            if fits is not None and type(value) not in fits:
                return payload, self._checked(payload)
        return payload, values

    def encode_mapping(self, given: Mapping[str, Any]) -> tuple[bytes, dict[str, Any]]:
        """The same for arguments by name that come from outside, like JSON: dates, UUIDs and such
        may be text there. Raises `PayloadError`, also for a name that the handler does not have."""
        if not isinstance(cast(object, given), Mapping):
            raise self._misfit(f"expected a mapping of arguments, got {type(given).__name__}")
        for name in given:
            if name not in self._exact:
                near = closest(str(name), self._exact)
                hint = f". Close: {near}" if near else ""
                raise self._misfit(f'there is no argument "{name}"{hint}')
        try:
            return self._converted(given)
        except msgspec.ValidationError as error:
            raise self._invalid(error) from error
        except Exception as error:
            _pass_foreign(error, lambda: self._converted(given))
            raise unstorable(self._task, given, error) from error

    def _converted(self, given: Mapping[str, Any]) -> tuple[bytes, dict[str, Any]]:
        values = msgspec.convert(dict(given), self._type, dec_hook=_decode_foreign)
        return _encode(values), values

    def decode(self, payload: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What to call the handler with. Strict: raises `PayloadError` for a payload that does not
        fit the annotations; arguments that the handler no longer has are left out."""
        values = self._checked(payload)
        if not self._spread:
            return (), values
        args: list[Any] = []
        for p in self._handler.signature.parameters.values():
            if p.kind is p.VAR_POSITIONAL:
                args.extend(values.pop(p.name, ()))
            elif p.kind is p.VAR_KEYWORD:
                values.update(values.pop(p.name, {}))
            elif p.kind is not p.KEYWORD_ONLY:
                args.append(values.pop(p.name, p.default))
        return tuple(args), values

    def _bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        names = self._positional
        if self._count >= 0 and len(args) <= len(names):
            values = dict(zip(names, args, strict=False))
            if kwargs.keys() <= self._by_keyword and values.keys().isdisjoint(kwargs):
                values.update(kwargs)
                if self._required <= values.keys():
                    return values
        try:
            return self._handler.signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise self._misfit(str(error)) from error

    def _checked(self, payload: bytes) -> dict[str, Any]:
        try:
            values: dict[str, Any] = self._decode(payload)
        except msgspec.ValidationError as error:
            raise self._invalid(error) from error
        except Exception as error:
            _pass_foreign(error, lambda: self._decode(payload))
            # Not msgpack at all, or a validator of the user's own types.
            text = f"payload cannot be read: {type(error).__name__}: {error}"
            raise PayloadError(self._task, text) from error
        return values

    def _invalid(self, error: msgspec.ValidationError) -> PayloadError:
        problem, path = said(error)
        missing = _MISSING.fullmatch(str(error))
        if missing:
            return self._misfit(f'there is no value for "{missing[1]}", which has no default')
        argument = re.split(r"[.\[]", path, maxsplit=1)[0]
        where = f"{path}: " if path != argument else ""
        return PayloadError(self._task, f"{where}{problem}", argument=argument or None)

    def _misfit(self, problem: str) -> PayloadError:
        return PayloadError(self._task, f"takes {self._shown_signature()}: {problem}")

    def _shown_signature(self) -> str:
        signature = self._handler.signature
        return str(signature.replace(return_annotation=inspect.Signature.empty))


class ResultCodec:
    """The result of one handler, by its return annotation; without one it comes back untyped."""

    __slots__ = ("_decode", "_task")

    def __init__(self, task: str, handler: Handler) -> None:
        self._task = task
        hint = handler.hints().get("return", Any)
        if hint is Never or hint is NoReturn:
            hint = Any
        self._decode = typed_decoder(hint, handler, "its result").decode

    def encode(self, result: Any, *, bytes_max: int = PAYLOAD_BYTES_MAX) -> bytes:
        """Raises `PayloadError` for what cannot be stored or is too large.

        What does not fit the annotation is stored all the same: the work is done.
        """
        try:
            encoded = _encode(result)
        except Exception as error:
            _pass_foreign(error, lambda: _encode(result))
            raise unstorable(self._task, {"return": result}, error) from error
        check_size(self._task, encoded, bytes_max, what="result")
        return encoded

    def decode(self, encoded: bytes) -> Any:
        """The typed result; raises `PayloadError` where it does not fit the annotation of today."""
        try:
            return self._decode(encoded)
        except Exception as error:
            _pass_foreign(error, lambda: self._decode(encoded))
            problem, path = said(error)
            where = f" {path}" if path else ""
            text = f"result{where} does not fit its return annotation: {problem}"
            raise PayloadError(self._task, text) from error


def encode_checkpoint(task: str, value: Any) -> bytes:
    """Raises `PayloadError` for what cannot be stored."""
    try:
        return _encode(value)
    except Exception as error:
        _pass_foreign(error, lambda: _encode(value))
        raise unstorable(task, {"checkpoint": value}, error) from error


def decode_checkpoint(task: str, saved: bytes, wanted: type[T]) -> T:
    """Raises `PayloadError` where it does not fit the type."""

    def decode() -> T:
        return msgspec.msgpack.decode(saved, type=wanted, dec_hook=_decode_foreign)

    try:
        return decode()
    except Exception as error:
        _pass_foreign(error, decode)
        problem, path = said(error)
        where = f" {path}" if path else ""
        name = getattr(wanted, "__qualname__", str(wanted))
        raise PayloadError(task, f"checkpoint{where} does not fit {name}: {problem}") from error


def check_size(task: str, encoded: bytes, bytes_max: int, *, what: str = "payload") -> None:
    """Raises `PayloadError` for what is larger than `bytes_max`."""
    if len(encoded) > bytes_max:
        raise PayloadError(
            task,
            f"{what} is {bytes_text(len(encoded))}, the limit is {bytes_text(bytes_max)}. "
            "Store a path or an id, or raise Engine(max_payload=)",
        )


def decode_untyped(encoded: bytes) -> Any:
    """A payload or a result of a task that is known by name alone: plain maps, lists, values.
    Raises `PayloadError` for bytes that are none."""
    try:
        return msgspec.msgpack.decode(encoded)
    except Exception as error:
        raise PayloadError("", f"{len(encoded)} stored bytes cannot be read: {error}") from error


def typed_decoder(hint: Any, handler: Handler, what: str) -> "msgspec.msgpack.Decoder[Any]":
    """A decoder of one type; raises `ConfigError` (PK-306) for a type that cannot be told apart
    once it is stored, like a union of two untagged Structs."""
    try:
        return msgspec.msgpack.Decoder(hint, dec_hook=_decode_foreign)
    except Exception as error:
        raise ConfigError(
            f"{handler.call}: {handler.default_name}() cannot be a task: {what} cannot be stored "
            f"({str(error).replace('`', '')})",
            code="PK-306",
        ) from error


def said(error: Exception) -> tuple[str, str]:
    """msgspec's complaint in plain words, and the path of the field, like `order.items[2].id`."""
    found = _PROBLEM.fullmatch(str(error))
    problem, path = (found[1], found[2] or "") if found else (str(error), "")
    for word, plain in _WORDS.items():
        problem = problem.replace(word, plain)
    if len(problem) > PROBLEM_CHARS_MAX:  # it may quote a value, whatever its size
        problem = problem[: PROBLEM_CHARS_MAX - 1] + "…"
    return problem[:1].lower() + problem[1:], path


# -------------------------------------------------------------- what could not be stored, and why


def _pass_foreign(error: Exception, again: Callable[[], object]) -> None:
    """Raises an error that is no word about the value: a signal handler raised it in the midst of
    encoding or decoding, and `again` does not fail like that."""
    try:
        again()
    except Exception as second:
        if type(second) is type(error):
            return
    raise error


def unstorable(task: str, values: Mapping[str, Any], error: Exception) -> PayloadError:
    """The error for a value that msgspec refused, with the path of the part that it is about."""
    for name, value in values.items():
        cause = _refusal(value)
        if cause is None:
            continue
        path, culprit, cause = _innermost(value, name, cause)
        is_result = name == "return"
        if is_result:
            path = f"its result{path.removeprefix('return')}"
        field = f"field {path}" if path != name and not is_result else path
        if isinstance(cause, RecursionError):
            problem = f"cannot store {path}: it contains itself, or is nested too deeply"
        elif isinstance(cause, OverflowError):
            problem = f"cannot store {path}: an integer of more than 64 bits. Pass it as text"
        elif isinstance(cause, UnicodeError):
            problem = f"cannot store {path}: a lone surrogate is no Unicode. Pass it as bytes"
        else:
            problem = f"cannot store {field} of type {type(culprit).__qualname__}. {_ADVICE}"
        return PayloadError(task, problem, argument=None if is_result else name)
    return PayloadError(task, f"cannot be stored: {type(error).__name__}: {error}")


def _innermost(value: Any, path: str, cause: Exception) -> tuple[str, Any, Exception]:
    """The deepest part of a value that cannot be stored, its path, and what msgspec says of it."""
    for _ in range(_NESTING_MAX):
        for step, part in _parts(value):
            refusal = _refusal(part)
            if refusal is not None:
                path, value, cause = path + step, part, refusal
                break
        else:
            return path, value, cause
    return path, value, cause


def _refusal(value: Any) -> Exception | None:
    try:
        _encode(value)
    except Exception as error:
        return error
    return None


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """The parts of a container, each with its step in a path."""
    if isinstance(value, Mapping):
        mapping = cast(Mapping[object, Any], value)
        for key, item in mapping.items():
            yield "'s keys", key
            yield f"[{key!r}]", item
    elif isinstance(value, list | tuple | set | frozenset):
        items = cast(Iterable[Any], value)
        yield from ((f"[{place}]", item) for place, item in enumerate(items))
    else:
        for name in _field_names(value):
            if hasattr(value, name):
                yield f".{name}", getattr(value, name)


def _field_names(value: Any) -> list[str]:
    kind = cast(Any, type(value))
    if isinstance(value, msgspec.Struct):
        return list(value.__struct_fields__)
    if dataclasses.is_dataclass(kind):
        return [field.name for field in dataclasses.fields(kind)]
    models = getattr(kind, "model_fields", None)  # pydantic's
    if models:
        return [str(name) for name in models]
    return [field.name for field in getattr(kind, "__attrs_attrs__", ())]


# --------------------------------------------------------------------- types msgspec leaves to us

_BASES: tuple[type, ...] = (str, bytes, int, float)


def _encode_foreign(value: Any) -> Any:
    """Subclasses of plain types as those types; pydantic models as maps."""
    for base in _BASES:
        if isinstance(value, base):
            plain: Callable[[Any], Any] = getattr(base, f"__{base.__name__}__", base)
            return plain(value)
    if isinstance(value, Outcome):
        return value.stored()
    pydantic = sys.modules.get("pydantic")
    if pydantic is not None:
        if isinstance(value, pydantic.BaseModel):
            # Not mode="json": that would store the dots of a SecretStr in place of the secret.
            return value.model_dump()
        if type(value).__module__.startswith("pydantic") and "Url" in type(value).__name__:
            return str(value)
    raise TypeError(f"Encoding objects of type {type(value).__name__} is unsupported")


def _decode_foreign(wanted: Any, stored: Any) -> Any:
    """The inverse; what is returned unchanged, msgspec itself refuses with the field's path."""
    if (get_origin(wanted) or wanted) is Outcome:
        return _outcome(wanted, stored)
    if not isinstance(wanted, type) or isinstance(stored, wanted):
        return stored
    make: Any = wanted
    for base in _BASES:
        if issubclass(wanted, base) and type(stored) is base:
            return make(stored)
    pydantic = sys.modules.get("pydantic")
    if pydantic is not None and issubclass(wanted, pydantic.BaseModel):
        return make.model_validate(stored)
    return stored


def _outcome(wanted: Any, stored: Any) -> Any:
    """The outcome that a route is told of, with its result by the annotation, like `Outcome[str]`:
    decoded when it is asked for, so that a route that does not ask never fails of it."""
    if isinstance(stored, Outcome) or not isinstance(stored, Mapping):
        return cast(Any, stored)
    (hint,) = get_args(wanted) or (Any,)

    def decode(result: bytes) -> Any:
        try:
            return msgspec.msgpack.decode(result, type=hint, dec_hook=_decode_foreign)
        except Exception as error:
            problem, path = said(error)
            where = f" {path}" if path else ""
            task = str(cast(Mapping[str, Any], stored).get("task", ""))
            text = f"its result{where} does not fit the annotation of the route: {problem}"
            raise PayloadError(task, text) from error

    return Outcome.of(cast(Mapping[str, Any], stored), decode)


_encode = msgspec.msgpack.Encoder(enc_hook=_encode_foreign).encode


def _exact_types(hint: Any) -> frozenset[type]:
    """The plain types that make up a hint; empty when there is more to check than a type."""
    is_union = get_origin(hint) in (Union, types.UnionType)
    parts = [type(None) if part is None else part for part in hint.__args__] if is_union else [hint]
    if all(isinstance(part, type) and part in _PLAIN for part in parts):
        return frozenset(parts)
    return frozenset()
