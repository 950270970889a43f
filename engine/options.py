"""What a task and what one submit may set, checked where it is written and frozen since.

`read_settings` reads the options of the decorator, `read_options` those of `task.options(...)`.
Both refuse what they do not know, so that no misspelt option is ever silently without effect.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias, cast

import msgspec

from parkade.checks import check_choice, check_count, check_text, refuse
from parkade.durations import Duration, at_ms, parse_duration_ms
from parkade.errors import ConfigError
from parkade.policies import Breaker, Limit, RetryPolicy, StoredRetry, as_policy
from parkade.store.record import Options
from parkade.templates import cut_summary
from parkade.wording import shown

__all__ = [
    "CONFLICTS",
    "NO_OPTIONS",
    "REPLACE",
    "ROUTES",
    "UNIQUE_MODES",
    "SubmitOptions",
    "TaskSettings",
    "check_index_tags",
    "read_options",
    "read_settings",
    "record_options",
    "with_indexed",
]

Where: TypeAlias = Literal["auto", "thread", "loop", "process"]
OnConflict: TypeAlias = Literal["return", "error", "replace"]
UniqueFor: TypeAlias = Duration | Literal["active", "kept"]

# Their places are what is stored and what commands carry.
CONFLICTS: Final = ("return", "error", "replace")
REPLACE: Final = CONFLICTS.index("replace")
UNIQUE_MODES: Final = ("kept", "active", "for")
ROUTES: Final = ("on_done", "on_dead", "on_cancel")

PRIORITY_MAX = 32_767
TAGS_MAX = 32
_TASK_OPTIONS = frozenset(
    {"name", "aliases", "retry", "timeout", "lease", "key", "unique", "target", "breaker", "limits"}
    | {"priority", "expires", "max_snoozes", "on_crash", "where", "keep", "tags", "summary"}
    | {*ROUTES}
)


class TaskSettings(msgspec.Struct, frozen=True, kw_only=True):
    """A task's own settings. `retry` None: the engine's default; `lease_ms` None: automatic."""

    name: str | None = None
    aliases: tuple[str, ...] = ()
    retry: RetryPolicy | None = None
    timeout_ms: int | None = None
    lease_ms: int | None = None
    key: str | None = None
    unique: str | None = None
    target: str | None = None
    summary: str | None = None
    breaker: Breaker | None = None
    limits: tuple[Limit, ...] = ()
    priority: int = 0
    expires_ms: int | None = None
    max_snoozes: int = 1000
    on_crash: Literal["retry", "ambiguous"] = "retry"
    where: Where = "auto"
    keep_ms: int | None = None
    tags: Mapping[str, str] | None = None
    on_done: str | None = None  # routes: as `routing.named_routes` makes them of tasks
    on_dead: str | None = None
    on_cancel: str | None = None


class SubmitOptions(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What `task.options(...)` set; None: not set. Texts are meant as they stand: no templates."""

    delay_ms: int | None = None
    at_ms: int | None = None
    unique: str | None = None
    unique_mode: int = 0  # a place in UNIQUE_MODES
    unique_for_ms: int | None = None
    on_conflict: int = 0  # a place in CONFLICTS
    key: str | None = None
    target: str | None = None
    priority: int | None = None
    expires_ms: int | None = None
    timeout_ms: int | None = None
    retry: StoredRetry | None = None
    tags: dict[str, str] | None = None
    summary: str | None = None
    on_done: str | None = None
    on_dead: str | None = None
    on_cancel: str | None = None


NO_OPTIONS = SubmitOptions()


def read_settings(call: str, given: Mapping[str, Any]) -> TaskSettings:
    """The decorator's options; `call` is its name in errors. Raises `ConfigError`."""
    for name in given:
        if name not in _TASK_OPTIONS:
            raise ConfigError.unknown_option(call, name, _TASK_OPTIONS)
    fields: dict[str, Any] = {}
    for name, value in given.items():
        # None is the default of every option but one: `retry=None` means one execution.
        if name == "retry":
            fields[name] = as_policy(value, call=call)
        elif value is not None:
            field, checked = _read_setting(call, name, value)
            fields[field] = checked
    return TaskSettings(**fields)


def _read_setting(call: str, name: str, value: Any) -> tuple[str, Any]:
    """The field that an option of a task goes to, and its checked value."""
    match name:
        case "timeout" | "expires":
            return f"{name}_ms", _positive_ms(call, name, value)
        case "keep":
            return "keep_ms", parse_duration_ms(value, what=f"{call}(keep)")
        case "lease":
            return "lease_ms", None if value == "auto" else _positive_ms(call, name, value)
        case "name":
            return name, check_name(call, name, value)
        case "aliases":
            return name, _each(call, name, value, check_name)
        case "breaker":
            return name, _instance(call, name, value, Breaker)
        case "limits":
            return name, _each(call, name, value, _limit)
        case "priority":
            return name, _priority(call, value)
        case "max_snoozes":
            return name, check_count(call, name, value)
        case "on_crash":
            return name, check_choice(call, name, value, ("retry", "ambiguous"))
        case "where":
            return name, check_choice(call, name, value, ("auto", "thread", "loop", "process"))
        case "tags":
            return name, _tags(call, value)
        case _:
            return name, value  # templates: read where the handler's arguments are known


def read_options(
    call: str, given: Mapping[str, Any], base: SubmitOptions, *, has_unique: bool
) -> SubmitOptions:
    """The options of one submit on top of `base`; `has_unique`: the task has a template for it.

    Raises `ConfigError`, and `NaiveDatetime` for `at` without a zone.
    """
    fields: dict[str, Any] = {}
    for name, value in given.items():
        read = _READERS.get(name)
        if read is None:
            raise ConfigError.unknown_option(call, name, _READERS)
        if value is not None or name == "retry":
            read(call, name, value, fields)
    if given.get("delay") is not None and given.get("at") is not None:
        raise ConfigError(f"{call}(delay=..., at=...): give one of them, not both", code="PK-210")
    if base is NO_OPTIONS:
        options = SubmitOptions(**fields)
    else:
        options = msgspec.structs.replace(base, **fields)
    if options.unique is None and not has_unique:
        for name in ("unique_for", "on_conflict"):
            if given.get(name) is not None:
                advice = "it needs a unique=, here or at the task"
                raise ConfigError.option(call, name, given[name], advice)
    return options


_Fields: TypeAlias = dict[str, Any]


def _read_delay(call: str, name: str, value: Any, fields: _Fields) -> None:
    fields["delay_ms"], fields["at_ms"] = parse_duration_ms(value, what=f"{call}(delay)"), None


def _read_at(call: str, name: str, value: Any, fields: _Fields) -> None:
    fields["at_ms"], fields["delay_ms"] = at_ms(value, what=f"{call}(at)"), None


def _read_text(call: str, name: str, value: Any, fields: _Fields) -> None:
    fields[name] = check_text(call, name, value)


def _read_unique_for(call: str, name: str, value: Any, fields: _Fields) -> None:
    is_span = value not in UNIQUE_MODES[:2]
    fields["unique_mode"] = 2 if is_span else UNIQUE_MODES.index(value)
    fields["unique_for_ms"] = _positive_ms(call, name, value) if is_span else None


def _read_on_conflict(call: str, name: str, value: Any, fields: _Fields) -> None:
    fields[name] = CONFLICTS.index(check_choice(call, name, value, CONFLICTS))


def _read_priority(call: str, name: str, value: Any, fields: _Fields) -> None:
    fields[name] = _priority(call, value)


def _read_span(call: str, name: str, value: Any, fields: _Fields) -> None:
    fields[f"{name}_ms"] = _positive_ms(call, name, value)


def _read_tags(call: str, name: str, value: Any, fields: _Fields) -> None:
    fields[name] = _tags(call, value)


def _read_summary(call: str, name: str, value: Any, fields: _Fields) -> None:
    if not isinstance(value, str):
        refuse(call, name, value, f"a text, not {type(value).__name__}")
    fields[name] = cut_summary(value)


def _read_route(call: str, name: str, value: Any, fields: _Fields) -> None:
    fields[name] = value


def _read_retry(call: str, name: str, value: Any, fields: _Fields) -> None:
    fields[name] = as_policy(value, call=call).stored(call=call)


_READERS: dict[str, Callable[[str, str, Any, _Fields], None]] = {
    "delay": _read_delay,
    "at": _read_at,
    "unique": _read_text,
    "unique_for": _read_unique_for,
    "on_conflict": _read_on_conflict,
    "key": _read_text,
    "target": _read_text,
    "priority": _read_priority,
    "expires": _read_span,
    "timeout": _read_span,
    "retry": _read_retry,
    "tags": _read_tags,
    "summary": _read_summary,
} | dict.fromkeys(ROUTES, _read_route)


def record_options(settings: TaskSettings, options: SubmitOptions) -> Options | None:
    """What a ticket stores of them, without what templates make; None when it is nothing.

    A task's timeout and retry are not stored: they are read from the code when an attempt runs.
    """
    tags = settings.tags
    if options.tags is not None:
        tags = {**tags, **options.tags} if tags else options.tags
    retry = options.retry
    priority = settings.priority if options.priority is None else options.priority
    expires = settings.expires_ms if options.expires_ms is None else options.expires_ms
    routes = [options.on_done, options.on_dead, options.on_cancel]
    stored = Options(
        target=options.target,
        priority=priority,
        tags=dict(tags) if tags else None,
        summary=options.summary,
        expires_ms=expires,
        timeout_ms=options.timeout_ms,
        max_attempts=None if retry is None else retry.max_attempts,
        delays_ms=None if retry is None else retry.delays_ms,
        max_elapsed_ms=None if retry is None else retry.max_elapsed_ms,
        routes=routes if any(routes) else None,
        jitter=0 if retry is None else retry.jitter,
    )
    return None if stored == _NOTHING else stored


_NOTHING = Options()


def check_name(call: str, option: str, value: Any) -> str:
    """A task's name: printable, no white space, not of the engine's own tasks."""
    name = check_text(call, option, value)
    if not name.isprintable() or any(char.isspace() for char in name):
        refuse(call, option, name, "a name without white space or control characters")
    if name.startswith("parkade."):
        refuse(call, option, name, "another prefix: parkade. is for the engine's own tasks")
    return name


def _positive_ms(call: str, name: str, value: Any) -> int:
    ms = parse_duration_ms(value, what=f"{call}({name})")
    if ms == 0:
        refuse(call, name, value, "a duration above zero, or leave it out")
    return ms


def _priority(call: str, value: Any) -> int:
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if not is_whole or abs(value) > PRIORITY_MAX:
        advice = f"a whole number from -{PRIORITY_MAX} to {PRIORITY_MAX}; a greater one goes first"
        refuse(call, "priority", value, advice)
    return int(value)


def _tags(call: str, value: Any) -> dict[str, str]:
    if not isinstance(value, Mapping):
        refuse(call, "tags", value, 'a mapping of texts, like {"campaign": "may"}')
    tags = cast(Mapping[object, object], value)
    if len(tags) > TAGS_MAX:
        refuse(call, "tags", tags, f"at most {TAGS_MAX} tags")
    return {
        check_text(call, "tags", name): check_text(call, f"tags[{shown(name)}]", text)
        for name, text in tags.items()
    }


def check_index_tags(call: str, value: Any) -> tuple[str, ...]:
    """Names of tags, each once. Raises `ConfigError`."""
    names = _each(call, "index_tags", value, check_text)
    if len(names) > TAGS_MAX:
        refuse(call, "index_tags", value, f"at most {TAGS_MAX} names: each costs a row a ticket")
    if len(set(names)) < len(names):
        refuse(call, "index_tags", value, "each name once")
    return names


def with_indexed(options: Options | None, index_tags: Sequence[str]) -> Options | None:
    """The options of a ticket about to be submitted, which say for good which of its tags it is
    found by."""
    if not index_tags or options is None or options.tags is None:
        return options
    indexed = [name for name in index_tags if name in options.tags]
    return msgspec.structs.replace(options, indexed=indexed) if indexed else options


def _each(call: str, name: str, value: Any, check: Any) -> tuple[Any, ...]:
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        refuse(call, name, value, "a list")
    items = cast(Sequence[object], value)
    return tuple(check(call, name, item) for item in items)


def _limit(call: str, name: str, value: Any) -> Limit:
    limit: Limit = _instance(call, name, value, Limit)
    return limit


def _instance(call: str, name: str, value: Any, wanted: type) -> Any:
    if not isinstance(value, wanted):
        refuse(call, name, value, f"a {wanted.__name__}(...)")
    return value
