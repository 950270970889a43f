"""Routes: which task hears of a ticket's end, and the ticket that tells it.

The names come from the submit, or else from the code of today. A route's ticket is composed on the
core thread, where the end is decided; so nothing of the application runs here but templates, and
those read an `Outcome` alone. Whatever goes wrong with one leaves the end as it is.
"""

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from parkade.calls import Definition, Prepared
from parkade.errors import ConfigError
from parkade.handlers import Unresolved
from parkade.options import NO_OPTIONS, ROUTES
from parkade.outcome import Outcome, OutcomeFacts
from parkade.shard.births import Ending
from parkade.shard.states import CANCELLED, DEAD, DONE, EXPIRED, STATE_NAMES
from parkade.shard.ticket import Ticket, format_id
from parkade.store.record import Submitted
from parkade.telling import tell

if TYPE_CHECKING:
    from parkade.placing import Placing
    from parkade.tasks import Task, Tasks

__all__ = ["Routing", "named_routes"]

_log = logging.getLogger("parkade.engine")
_encode = msgspec.msgpack.Encoder().encode

_ROUTE_OF_STATE = {DONE: 0, DEAD: 1, CANCELLED: 2, EXPIRED: 2}
_ARGUMENT = "outcome"
_NONE: tuple[str | None, str | None, str | None] = (None, None, None)


def named_routes(call: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The options with each route's task as it is stored: its name, and its argument's where that
    is not called `outcome`. Raises `ConfigError` for what cannot hear of an outcome."""
    options = dict(given)
    for option in ROUTES:
        value = options.get(option)
        if value is not None:
            options[option] = _stored_name(call, option, value)
    return options


def _stored_name(call: str, option: str, task: Any) -> str:
    definition: Any = getattr(task, "definition", None)
    if not isinstance(definition, Definition):
        advice = "use a task, like a function under @engine.task: it must survive a restart"
        raise ConfigError.option(call, option, task, advice)
    if getattr(task, "submit_options", NO_OPTIONS) != NO_OPTIONS:
        advice = f"give {definition.name} itself: a route has the options of its task, and no other"
        raise ConfigError.option(call, option, task, advice)
    argument = _outcome_argument(call, option, definition)
    return definition.name if argument == _ARGUMENT else f"{definition.name} {argument}"


def _outcome_argument(call: str, option: str, definition: Definition) -> str:
    """The name of the argument that takes the outcome: the first, and the only one without a
    default."""
    parameters = list(definition.handler.signature.parameters.values())
    variadic = (parameters[0].VAR_POSITIONAL, parameters[0].VAR_KEYWORD) if parameters else ()
    needed = [p for p in parameters[1:] if p.default is p.empty and p.kind not in variadic]
    if not parameters or parameters[0].kind in variadic or needed:
        advice = "use a task that takes the outcome, and needs nothing else"
        raise ConfigError.option(call, option, definition.name, advice)
    name = parameters[0].name
    try:
        hint: Any = definition.handler.hints().get(name)
    except Unresolved:
        return name
    if (getattr(hint, "__origin__", None) or hint) is not Outcome:
        advice = f'annotate {name} of it, like "{name}: Outcome[str]"'
        raise ConfigError.option(call, option, definition.name, advice)
    return name


class _Names(NamedTuple):
    """Routes by task, of one version of the registry."""

    version: int
    by_task: Mapping[str, tuple[str | None, str | None, str | None]]


class Routing:
    """Composes the tickets of routes. `placing` gives them serials and parts."""

    def __init__(
        self, tasks: "Tasks", placing: "Placing", salt: int, report: Callable[..., None]
    ) -> None:
        self._tasks = tasks
        self._placing = placing
        self._salt = salt
        self._report = report
        self._names = _Names(-1, {})

    def routes(self, ticket: Ticket, state: int) -> bool:
        """Whether anything hears of this end."""
        return self._route(ticket, state) is not None

    def drafts(self, ending: Ending) -> list[Submitted]:
        """The tickets that hear of it. Never raises: a route whose own templates do not go with the
        outcome is submitted without them; one that cannot be made at all is told in the log."""
        route = self._route(ending.ticket, ending.state)
        if route is None:
            return []
        try:
            return [self._draft(route, ending)]
        except Exception as error:
            self._report(f"the route {route} of a ticket of {ending.ticket.task}", error)
            return []

    def _route(self, ticket: Ticket, state: int) -> str | None:
        place = _ROUTE_OF_STATE[state]
        options = ticket.options
        if options is not None and options.routes is not None:
            named = options.routes[place]
            if named is not None:
                return named
        if self._names.version != self._tasks.version:
            self._names = self._read_names()
        return self._names.by_task.get(ticket.task, _NONE)[place]

    def _read_names(self) -> _Names:
        version = self._tasks.version
        found: dict[str, tuple[str | None, str | None, str | None]] = {}
        for name, task in self._tasks.named().items():
            settings = task.settings
            routes = (settings.on_done, settings.on_dead, settings.on_cancel)
            if routes != _NONE:
                found[name] = routes
        return _Names(version, found)

    def _draft(self, route: str, ending: Ending) -> Submitted:
        name, _, argument = route.partition(" ")
        outcome = self._outcome(ending)
        argument = argument or _ARGUMENT
        payload = _encode({argument: outcome.stored()})
        task = self._tasks.task_of(name)
        prepared = _plain(name, payload, ending.at_ms)
        if task is not None:
            prepared = self._prepared(task, payload, {argument: outcome}, ending.at_ms)
        return self._placing.child(prepared, ending.ticket.part)

    def _prepared(
        self, task: "Task[..., Any]", payload: bytes, values: Mapping[str, Any], at_ms: int
    ) -> Prepared:
        definition = task.definition
        stored = definition.stored(NO_OPTIONS)
        try:
            call = definition.call((payload, values), NO_OPTIONS, stored, task)
        except Exception as error:
            text = f"the route {task.name} goes without key, unique and target"
            tell(_log, logging.WARNING, "%s: %s", text, error)
            plain = _plain(task.name, payload, at_ms)
            return msgspec.structs.replace(plain, options=stored)
        return call.prepare(at_ms, payload_bytes_max=len(payload))

    def _outcome(self, ending: Ending) -> Outcome[Any]:
        ticket, error = ending.ticket, ending.error
        options = ticket.options
        facts = OutcomeFacts(
            ticket_id=format_id(ticket.serial, ticket.part, self._salt),
            task=ticket.task,
            state=STATE_NAMES[ending.state],
            attempts=ending.attempts,
            error_type=None if error is None else error.type,
            error=None if error is None else error.message,
            ambiguous=ending.is_ambiguous,
            maybe_applied=ending.maybe_applied,
            reason=ending.why,
            result=ending.result,
            expires_ms=0 if options is None else options.expires_ms or 0,
        )
        return Outcome(facts, lambda result: None)


def _plain(name: str, payload: bytes, at_ms: int) -> Prepared:
    return Prepared(name, payload, at_ms, at_ms, None, None, 0, -1, 0, None)
