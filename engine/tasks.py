"""Tasks: registered handlers, and the calls that submit makes of them.

A `Tasks` registry names handlers; `Engine` is one, and a library brings its own to be included. A
`Task` is what the decorator leaves in place of the function. Calling it calls the function;
`submit` hands a `Call` to the engine that the registry belongs to. This module submits nothing
itself: it checks, encodes and hands over.
"""

import functools
import sys
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from datetime import datetime
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    Literal,
    Never,
    ParamSpec,
    Protocol,
    Self,
    TypeVar,
    cast,
    overload,
)

from msgspec import UNSET, UnsetType

from parkade.alive import Alive
from parkade.calls import Call, Definition
from parkade.durations import Duration
from parkade.errors import ConfigError, EngineClosed, UnknownTask
from parkade.handlers import Handler
from parkade.options import NO_OPTIONS, SubmitOptions, TaskSettings, read_options, read_settings
from parkade.outcome import Outcome
from parkade.payload import PAYLOAD_BYTES_MAX
from parkade.policies import DEFAULT_POLICY, Breaker, Limit, RetryPolicy, StoredRetry
from parkade.reachable import check_reachable
from parkade.routing import named_routes
from parkade.store.record import Options
from parkade.wording import shown

if TYPE_CHECKING:
    from parkade.attempt import Attempt
    from parkade.ticket import Ticket

__all__ = [
    "AsyncTask",
    "Call",
    "Submitter",
    "SyncTask",
    "Task",
    "TaskDecorator",
    "Tasks",
    "registries",
]

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])
_AUTO: Any = UNSET


class Submitter(Protocol):
    """What a task needs of an engine."""

    @property
    def default_policy(self) -> RetryPolicy:
        """The policy of tasks that have none of their own."""
        ...

    def submit_call(self, call: Call[R], /) -> "Ticket[R]":
        """Make it durable, then answer with the ticket."""
        ...

    def asubmit_call(self, call: Call[R], /) -> Awaitable["Ticket[R]"]:
        """The same without blocking the loop."""
        ...

    def ticket_of(self, ticket_id: str, task: "Task[..., R]", /) -> "Ticket[R]":
        """The handle of a ticket of this task, whose result is decoded as the task's."""
        ...


class Task(Generic[P, R]):
    """A registered handler. Calling it calls the function; `submit` makes a ticket of the call."""

    name: str

    def __init__(
        self,
        definition: Definition,
        registry: "Tasks",
        options: SubmitOptions = NO_OPTIONS,
    ) -> None:
        self.name = definition.name
        self.definition = definition
        self._fn: Callable[..., Any] = definition.handler.fn
        self._registry = registry
        self._options = options
        self._stored = definition.stored(options)
        self.registered_in = ""  # the module that did it, where another process must find it
        wrapper: Any = self
        functools.update_wrapper(wrapper, self._fn)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    def submit(self, *args: P.args, **kwargs: P.kwargs) -> "Ticket[R]":
        """Make a ticket of this call; when it returns, the ticket survives a crash.

        Raises `PayloadError` for arguments that do not fit, `EngineClosed` without an open engine,
        and what the engine raises: `BlockingInEventLoop`, `DuplicateTicket`, `StorageError` ...
        """
        call = self.call(*args, **kwargs)
        return self._engine("submit").submit_call(call)

    async def asubmit(self, *args: P.args, **kwargs: P.kwargs) -> "Ticket[R]":
        """`submit` for coroutines: awaits the disk instead of blocking the loop."""
        call = self.call(*args, **kwargs)
        return await self._engine("asubmit").asubmit_call(call)

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """The call, encoded and checked, to be submitted later or with others.

        Raises `PayloadError` for arguments that do not fit the annotations or cannot be stored.
        """
        definition = self.definition
        payloads, options = definition.plain_payloads, self._options
        if payloads is not None:
            payload, _ = payloads.encode(args, kwargs)
            return Call(
                self.name, payload, options.key, options.unique, self._stored, options, self
            )
        encoded = definition.payloads.encode(args, kwargs)
        return definition.call(encoded, self._options, self._stored, self)

    def call_with(self, payload: Mapping[str, Any]) -> Call[R]:
        """The call with arguments by name that come from outside, like JSON."""
        definition = self.definition
        encoded = definition.payloads.encode_mapping(payload)
        return definition.call(encoded, self._options, self._stored, self)

    def options(
        self,
        *,
        delay: Duration | None = None,
        at: datetime | None = None,
        unique: str | None = None,
        unique_for: Duration | Literal["active", "kept"] | None = None,
        on_conflict: Literal["return", "error", "replace"] | None = None,
        key: str | None = None,
        target: str | None = None,
        priority: int | None = None,
        expires: Duration | None = None,
        timeout: Duration | None = None,
        retry: RetryPolicy | int | Sequence[Duration] | UnsetType | None = UNSET,
        tags: Mapping[str, str] | None = None,
        summary: str | None = None,
        on_done: "Task[[Outcome[R]], Any] | None" = None,
        on_dead: "Task[[Outcome[R]], Any] | None" = None,
        on_cancel: "Task[[Outcome[R]], Any] | None" = None,
        **unknown: Never,
    ) -> Self:
        """The same task with options for its submits; it can be kept and used again.

        They come on top of those that were set before; None leaves an option as it is, save
        `retry=None`, which means one execution. `unique` holds for as long as the ticket is kept,
        or for `unique_for`. `on_done`, `on_dead`, `on_cancel`: tasks that are told of its end.
        Raises `ConfigError` and `NaiveDatetime`, here and not at the submit.
        """
        given: dict[str, Any] = dict(
            delay=delay, at=at, unique=unique, unique_for=unique_for, on_conflict=on_conflict,
            key=key, target=target, priority=priority, expires=expires, timeout=timeout,
            tags=tags, summary=summary, on_done=on_done, on_dead=on_dead, on_cancel=on_cancel,
            **unknown,
        )  # fmt: skip
        if retry is not UNSET:
            given["retry"] = retry
        definition, call = self.definition, f"{self.name}.options"
        given = named_routes(call, given)
        options = read_options(call, given, self._options, has_unique=definition.has_unique)
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other._options = options
        other._stored = definition.stored(options)
        return other

    def ticket(self, ticket_id: str) -> "Ticket[R]":
        """The handle of a ticket of this task, by its id, with a typed result."""
        return self._engine("ticket").ticket_of(ticket_id, self)

    # ------------------------------------------------------------------- for those who run it

    @property
    def handler(self) -> Handler:
        """The function, and what is known of it."""
        return self.definition.handler

    @property
    def registry(self) -> "Tasks":
        """Where it was registered first."""
        return self._registry

    @property
    def settings(self) -> TaskSettings:
        """What the decorator set."""
        return self.definition.settings

    @property
    def submit_options(self) -> SubmitOptions:
        """What `options` set."""
        return self._options

    @property
    def where(self) -> Literal["auto", "thread", "loop", "process"]:
        """Where attempts are to run."""
        return self.definition.settings.where

    @property
    def timeout_ms(self) -> int | None:
        """How long an attempt may run, unless the ticket says otherwise."""
        return self.definition.settings.timeout_ms

    @property
    def lease_ms(self) -> int | None:
        """How long an attempt may be silent; None: the engine renews its lease by itself."""
        return self.definition.settings.lease_ms

    @property
    def max_snoozes(self) -> int:
        """How often a ticket may snooze."""
        return self.definition.settings.max_snoozes

    @property
    def on_crash(self) -> Literal["retry", "ambiguous"]:
        """What a lost attempt means."""
        return self.definition.settings.on_crash

    @property
    def policy(self) -> RetryPolicy:
        """The retry policy of the code of today: its own, or else the engine's default."""
        if self.definition.settings.retry is not None:
            return self.definition.settings.retry
        return self._registry.default_policy

    def policy_for(self, stored: Options | None) -> RetryPolicy:
        """The policy with the numbers in it that a ticket brought by `options(retry=)`."""
        if stored is None or stored.max_attempts is None:
            return self.policy
        delays = stored.delays_ms or []
        numbers = StoredRetry(stored.max_attempts, delays, stored.max_elapsed_ms, stored.jitter)
        return RetryPolicy.from_stored(numbers, base=self.policy)

    def decode(self, payload: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What to call the handler with, without the attempt. Raises `PayloadError` for a payload
        that does not fit the annotations of today."""
        return self.definition.payloads.decode(payload)

    def encode_result(self, result: Any, *, bytes_max: int = PAYLOAD_BYTES_MAX) -> bytes:
        """Raises `PayloadError` for a result that cannot be stored or is too large."""
        return self.definition.results.encode(result, bytes_max=bytes_max)

    def decode_result(self, encoded: bytes) -> R:
        """Raises `PayloadError` for a result that does not fit the annotation of today."""
        result: R = self.definition.results.decode(encoded)
        return result

    def _engine(self, verb: str) -> Submitter:
        engine = self._registry.engine
        if engine is None:
            raise EngineClosed(f"{self.name}.{verb}")
        return engine

    def _arguments(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """For a direct call: with the attempt in front where the handler takes one."""
        if not self.definition.handler.takes_attempt:
            return args
        from parkade.attempt import current_attempt

        return current_attempt(), *args


class SyncTask(Task[P, R]):
    """A task whose handler is a plain function."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the handler here and now; no ticket is made."""
        result: R = self._fn(*self._arguments(args), **kwargs)
        return result


class AsyncTask(Task[P, R]):
    """A task whose handler is a coroutine function."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        """Call the handler here and now; no ticket is made."""
        coroutine: Coroutine[Any, Any, R] = self._fn(*self._arguments(args), **kwargs)
        return coroutine


class TaskDecorator(Protocol):
    """What `@engine.task(...)` gives: a decorator that keeps the handler's signature."""

    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, fn: "Callable[Concatenate[Attempt, P], Coroutine[Any, Any, R]]", /
    ) -> AsyncTask[P, R]: ...
    @overload
    def __call__(self, fn: "Callable[Concatenate[Attempt, P], R]", /) -> SyncTask[P, R]: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, fn: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncTask[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> SyncTask[P, R]: ...


class Tasks:
    """A registry of tasks. `prefix` comes before every name given in it.

    It belongs to the engine that included it last; an engine is a registry of its own.
    """

    def __init__(self, prefix: str = "") -> None:
        if not isinstance(cast(object, prefix), str):
            raise ConfigError.option("Tasks", "prefix", prefix, 'use a text, like "billing."')
        self.prefix = prefix
        self._by_name: dict[str, Task[..., Any]] = {}
        self._aliases: dict[str, str] = {}
        self._includers: list[weakref.ref[Tasks]] = []
        self._owner: weakref.ref[Any] | None = None
        self._default_policy: RetryPolicy | None = None
        self.version = 0  # changes with every registration
        _registries.add(self)

    @property
    def default_policy(self) -> RetryPolicy:
        """The policy of tasks that have none of their own; an engine sets its `default_retry`."""
        if self._default_policy is not None:
            return self._default_policy
        engine = self.engine
        if engine is None or (isinstance(engine, Tasks) and engine is self):
            return DEFAULT_POLICY
        return engine.default_policy

    @default_policy.setter
    def default_policy(self, policy: RetryPolicy) -> None:
        self._default_policy = policy

    @property
    def engine(self) -> Submitter | None:
        """Where its tasks submit to: the one set here, or that of the registry that included it
        last. It is not kept alive from here."""
        owner = self._owner
        engine: Submitter | None = None if owner is None else owner()
        if engine is not None:
            return engine
        for includer in reversed(self._includers):
            registry = includer()
            if registry is not None and registry.engine is not None:
                return registry.engine
        return None

    @engine.setter
    def engine(self, engine: Submitter | None) -> None:
        self._owner = None if engine is None else weakref.ref(engine)

    @overload
    def task(  # type: ignore[overload-overlap]
        self, fn: "Callable[Concatenate[Attempt, P], Coroutine[Any, Any, R]]", /
    ) -> AsyncTask[P, R]: ...
    @overload
    def task(self, fn: "Callable[Concatenate[Attempt, P], R]", /) -> SyncTask[P, R]: ...
    @overload
    def task(  # type: ignore[overload-overlap]
        self, fn: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncTask[P, R]: ...
    @overload
    def task(self, fn: Callable[P, R], /) -> SyncTask[P, R]: ...
    @overload
    def task(
        self,
        *,
        name: str | None = None,
        aliases: Sequence[str] = (),
        retry: RetryPolicy | int | Sequence[Duration] | None = _AUTO,
        timeout: Duration | None = None,
        lease: Duration | Literal["auto"] = "auto",
        key: str | None = None,
        unique: str | None = None,
        target: str | None = None,
        breaker: Breaker | None = None,
        limits: Sequence[Limit] = (),
        priority: int = 0,
        expires: Duration | None = None,
        max_snoozes: int = 1000,
        on_crash: Literal["retry", "ambiguous"] = "retry",
        where: Literal["auto", "thread", "loop", "process"] = "auto",
        keep: Duration | None = None,
        tags: Mapping[str, str] | None = None,
        summary: str | None = None,
        on_done: "Task[..., Any] | None" = None,
        on_dead: "Task[..., Any] | None" = None,
        on_cancel: "Task[..., Any] | None" = None,
    ) -> TaskDecorator: ...
    def task(self, *fn: Any, **given: Any) -> Any:
        """Register a handler: `@engine.task`, or `@engine.task(name="billing.charge", ...)`.

        `key`, `unique`, `target` and `summary` are templates over the arguments, like
        "order-{order.id}". `aliases` are names of old under which tickets may still wait. Raises
        `ConfigError` for an option, a template, a name or a handler that cannot be right.
        """
        call = "@tasks.task" if type(self) is Tasks else "@engine.task"
        if not fn:
            return functools.partial(self._decorate, call, given)
        return self._decorate(call, given, *fn)

    def include(self, *tasks: "Tasks") -> None:
        """Take in other registries, with what is added to them afterwards too.

        Raises `ConfigError` (PK-305) where a name is taken.
        """
        for other in tasks:
            if not isinstance(cast(object, other), Tasks) or other is self:
                raise ConfigError.option("include", "tasks", other, "use other Tasks objects")
            is_new = not any(includer() is self for includer in other._includers)
            if is_new:
                for task in other.all_tasks():
                    self._check_free(task)
            includers = [ref for ref in other._includers if ref() not in (None, self)]
            # In this order: what another thread adds from now on, it adds here as well.
            other._includers = [*includers, weakref.ref(self)]
            if is_new:
                for task in other.all_tasks():
                    self._add(task)

    def lookup(self, name: str) -> Task[..., Any]:
        """The task of a name or an alias; raises `UnknownTask`."""
        task = self.task_of(name)
        if task is None:
            raise UnknownTask(name, known=self._by_name)
        return task

    def task_of(self, name: str) -> Task[..., Any] | None:
        """The task of a name or an alias, if it is registered: asked once for each start."""
        return self._by_name.get(name) or self._by_name.get(self._aliases.get(name, ""))

    def call_by_name(self, name: str, payload: Mapping[str, Any]) -> Call[Any]:
        """A call from outside, like the command line's; raises `UnknownTask`, `PayloadError`."""
        return self.lookup(name).call_with(payload)

    def all_tasks(self) -> list[Task[..., Any]]:
        """Every registered task, in the order of registration."""
        return list(self._by_name.values())

    @property
    def name_count(self) -> int:
        """How many names and aliases there are; it only grows."""
        return len(self._by_name) + len(self._aliases)

    def keeps_ms(self) -> dict[str, int | None]:
        """How long each name and alias keeps its ended tickets; None: as the engine does."""
        return {name: task.settings.keep_ms for name, task in self.named().items()}

    def named(self) -> dict[str, Task[..., Any]]:
        """Every name and alias, with its task."""
        aliases = dict(self._aliases)  # first: another thread adds a name before its aliases
        return {alias: self._by_name[name] for alias, name in aliases.items()} | self._by_name

    def _decorate(self, call: str, given: Mapping[str, Any], fn: Any, *more: Any) -> Task[..., Any]:
        if isinstance(fn, Task):
            raise ConfigError(f"{call}: {fn.name} is a task already", code="PK-306")
        if more or not callable(fn):
            advice = f'decorate a function, or give options by name: {call}(name="...")'
            raise ConfigError(f"{call}({shown(fn)}): that is no function; {advice}", code="PK-306")
        settings = read_settings(call, named_routes(call, given))
        handler = Handler(fn, call=call)
        name = settings.name or handler.default_name
        if not settings.name and not name.isidentifier():
            raise ConfigError(f'{call}: a lambda has no name; give it name="..."', code="PK-306")
        definition = Definition(self.prefix + name, handler, settings)
        kind = AsyncTask[..., Any] if handler.is_async else SyncTask[..., Any]
        _check_where(call, handler, settings.where)
        task: Task[..., Any] = kind(definition, self)
        if settings.where == "process":
            check_reachable(handler)
            task.registered_in = _module_of_caller()
        self._check_free(task)
        self._add(task)
        return task

    def _check_free(self, task: Task[..., Any]) -> None:
        """Raise unless the task's name and aliases are free, here and wherever this is included."""
        names = (task.name, *task.definition.settings.aliases)
        if len(set(names)) < len(names):
            call = task.definition.handler.call
            raise ConfigError(
                f'{call}: "{task.name}" and its aliases name one thing twice', code="PK-305"
            )
        for name in names:
            holder = self.task_of(name)
            if holder is not None:
                ours, theirs = task.definition.handler, holder.definition.handler
                raise ConfigError(
                    f'{ours.call}: the name "{name}" of {ours.where()}() is taken by '
                    f'{theirs.where()}(). Give one of them another: name="..."',
                    code="PK-305",
                )
        for includer in self._includers:
            registry = includer()
            if registry is not None:
                registry._check_free(task)

    def _add(self, task: Task[..., Any]) -> None:
        self._by_name[task.name] = task
        for alias in task.definition.settings.aliases:
            self._aliases[alias] = task.name
        self.version += 1  # afterwards: whoever sees it finds the task
        for includer in self._includers:
            registry = includer()
            if registry is not None:
                registry._add(task)


def _check_where(call: str, handler: Handler, where: str) -> None:
    if handler.is_async and where in ("thread", "process"):
        advice = 'leave it out: a coroutine runs on the loop, only a plain function in a "{}"'
        raise ConfigError.option(call, "where", where, advice.format(where))
    if not handler.is_async and where == "loop":
        advice = "use an async def: a plain function would block the loop"
        raise ConfigError.option(call, "where", where, advice)


_registries: Alive[Tasks] = Alive()


def registries() -> "list[Tasks]":
    """Every registry of this process that is still in use, engines among them."""
    return _registries.all()


def _module_of_caller() -> str:
    """The name of the module outside of this one that a decorator was used in."""
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame.f_globals.get("__name__") == __name__ and frame.f_back is not None:
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", ""))
