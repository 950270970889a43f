"""Calls: a task with its arguments and options, encoded and checked, ready to be submitted.

All that can be refused is refused here, on the caller's thread: the engine's own thread gets bytes
and numbers.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from parkade.durations import after_ms
from parkade.errors import ConfigError
from parkade.handlers import Handler, Unresolved
from parkade.options import (
    REPLACE,
    SubmitOptions,
    TaskSettings,
    record_options,
    with_indexed,
)
from parkade.payload import PAYLOAD_BYTES_MAX, PayloadCodec, ResultCodec, check_size
from parkade.store.record import Options, Submitted, UniqueClaim
from parkade.templates import Template

if TYPE_CHECKING:
    from parkade.tasks import Task

__all__ = ["Call", "Definition", "Prepared", "prepare_many"]

R_co = TypeVar("R_co", covariant=True)


class Prepared(msgspec.Struct, frozen=True, gc=False):
    """One submit, reckoned to a time: what a ticket is made of, but for its identity."""

    task: str
    payload: bytes
    at_ms: int
    due_ms: int
    key: str | None
    unique: str | None
    unique_mode: int  # a place in parkade.options.UNIQUE_MODES
    unique_until_ms: int  # -1 unless the unique was given a duration
    on_conflict: int  # a place in parkade.options.CONFLICTS
    options: Options | None

    def draft(
        self, serial: int, part: int, *, keep_ms: int = 0, index_tags: Sequence[str] = ()
    ) -> Submitted:
        """The record that will stand for it; `keep_ms` is how long a kept unique outlives its
        ticket's end, `index_tags` are the tags that tickets of today are found by."""
        claim = None
        if self.unique is not None:
            claim = UniqueClaim(
                self.unique,
                self.unique_mode,
                self.unique_until_ms,
                keep_ms,
                self.on_conflict == REPLACE,
            )
        return Submitted(
            serial,
            part,
            self.task,
            self.due_ms,
            self.at_ms,
            self.payload,
            self.key,
            claim,
            with_indexed(self.options, index_tags),
        )


class Call(msgspec.Struct, Generic[R_co], frozen=True, gc=False):
    """A task with arguments and options: frozen, and good for any number of submits.

    The arguments were encoded when it was made; what they are changed to since does not matter.
    """

    task: str
    payload: bytes
    key: str | None
    unique: str | None
    stored: Options | None  # what the ticket keeps of the options
    options: SubmitOptions
    bound: Any  # the Task that was called, which decodes the result

    def prepare(self, now_ms: int, *, payload_bytes_max: int = PAYLOAD_BYTES_MAX) -> Prepared:
        """What to submit at `now_ms`. Raises `PayloadError` for a payload that is too large,
        `ConfigError` for a due time past the year 9999."""
        if len(self.payload) > payload_bytes_max:
            check_size(self.task, self.payload, payload_bytes_max)
        options = self.options
        due_ms = now_ms
        if options.at_ms is not None:
            # What lies in the past is due now: it did not wait, and cannot be late from the start.
            due_ms = max(now_ms, options.at_ms)
        elif options.delay_ms is not None:
            due_ms = after_ms(now_ms, options.delay_ms, what=f"{self.task}.options(delay)")
        until_ms = -1
        if options.unique_for_ms is not None:
            what = f"{self.task}.options(unique_for)"
            until_ms = after_ms(now_ms, options.unique_for_ms, what=what)
        return Prepared(
            self.task,
            self.payload,
            now_ms,
            due_ms,
            self.key,
            self.unique,
            options.unique_mode,
            until_ms,
            options.on_conflict,
            self.stored,
        )


def prepare_many(
    calls: Iterable[Call[Any]], now_ms: int, *, payload_bytes_max: int = PAYLOAD_BYTES_MAX
) -> list[Prepared]:
    """The same for many; the first that cannot be prepared raises, and nothing is lost by it."""
    return [call.prepare(now_ms, payload_bytes_max=payload_bytes_max) for call in calls]


class Definition:
    """A registered handler: its name, its settings, and how its arguments are stored.

    What needs the annotations' meaning is made when they can be resolved: at decoration, or else
    at the first use. Raises `ConfigError` (PK-303 for templates, PK-306 for the handler).
    """

    __slots__ = (
        "_codecs",
        "_constants",
        "_has_templates",
        "_key",
        "_summary",
        "_target",
        "_unique",
        "handler",
        "name",
        "plain_payloads",
        "settings",
    )

    def __init__(self, name: str, handler: Handler, settings: TaskSettings) -> None:
        self.name, self.handler, self.settings = name, handler, settings
        self._key = self._template("key")
        self._unique = self._template("unique")
        self._constants: dict[str, str] = {}
        self._target = self._changing("target")
        self._summary = self._changing("summary")
        templates = (self._key, self._unique, self._target, self._summary)
        self._has_templates = any(template is not None for template in templates)
        self._codecs: tuple[PayloadCodec, ResultCodec] | None = None
        # How its arguments are stored, where that is known and nothing else is made of them.
        self.plain_payloads: PayloadCodec | None = None
        try:
            self._make_codecs()
        except Unresolved:
            self._codecs = None

    @property
    def payloads(self) -> PayloadCodec:
        """How its arguments are stored."""
        return (self._codecs or self._resolved())[0]

    @property
    def results(self) -> ResultCodec:
        """How its results are stored."""
        return (self._codecs or self._resolved())[1]

    @property
    def has_unique(self) -> bool:
        """Whether every ticket gets a unique from a template."""
        return self._unique is not None

    @property
    def constant_target(self) -> str | None:
        """The target of every ticket, unless a submit gives another; None: it has none, or it
        depends on the arguments."""
        return self._constants.get("target")

    def call(
        self,
        encoded: tuple[bytes, Mapping[str, Any]],
        options: SubmitOptions,
        stored: Options | None,
        bound: "Task[..., Any]",
    ) -> Call[Any]:
        """A call with these encoded arguments; `stored` is `record_options` of the options."""
        payload, values = encoded
        key, unique = options.key, options.unique
        if not self._has_templates:
            return Call(self.name, payload, key, unique, stored, options, bound)
        if key is None and self._key is not None:
            key = self._key.render(values)
        if unique is None and self._unique is not None:
            unique = self._unique.render(values)
        changes: dict[str, str] = {}
        if self._target is not None and options.target is None:
            changes["target"] = self._target.render(values)
        if self._summary is not None and options.summary is None:
            changes["summary"] = self._summary.render_summary(values)
        if changes:
            stored = msgspec.structs.replace(stored or Options(), **changes)
        return Call(self.name, payload, key, unique, stored, options, bound)

    def stored(self, options: SubmitOptions) -> Options | None:
        """What a ticket with these options keeps of them, but for what templates make."""
        if self._constants:
            own = {
                name: text
                for name, text in self._constants.items()
                if getattr(options, name) is None
            }
            options = msgspec.structs.replace(options, **own)
        return record_options(self.settings, options)

    def _changing(self, option: str) -> Template | None:
        """A template that is not the same for all tickets; one that is becomes a constant."""
        template = self._template(option)
        if template is None or not template.is_constant:
            return template
        self._constants[option] = template.constant()
        return None

    def _template(self, option: str) -> Template | None:
        text: Any = getattr(self.settings, option)
        if text is None:
            return None
        return Template(text, option=option, task=self.name, handler=self.handler)

    def _make_codecs(self) -> tuple[PayloadCodec, ResultCodec]:
        hints = self.handler.hints()
        for template in (self._key, self._unique, self._target, self._summary):
            if template is not None:
                template.check_types(hints)
        self._codecs = PayloadCodec(self.name, self.handler), ResultCodec(self.name, self.handler)
        if not self._has_templates:
            self.plain_payloads = self._codecs[0]
        return self._codecs

    def _resolved(self) -> tuple[PayloadCodec, ResultCodec]:
        try:
            return self._make_codecs()
        except Unresolved as error:
            raise ConfigError(
                f"{self.handler.call}: the annotations of {self.handler.default_name}() cannot be "
                f"resolved: {error}. Define or import the name at the top level of its module",
                code="PK-306",
            ) from error
