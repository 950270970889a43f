"""What a running engine answers over its control socket: the command line's questions."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from parkade.changing import CHANGES, plan_cancel
from parkade.dead_facts import DEAD_ANSWERS, DEAD_CHANGES
from parkade.event_facts import tail_facts
from parkade.facts import held_fact, list_facts, show_facts, why_facts
from parkade.holding import HOLD_CALLS
from parkade.lever_facts import LEVER_CHANGES
from parkade.redacting import redact_arguments
from parkade.status_facts import engine_status

if TYPE_CHECKING:
    from parkade.engine import Engine

__all__ = ["control_handlers"]


def control_handlers(engine: "Engine") -> Mapping[str, Callable[[Mapping[str, Any]], Any]]:
    """By name; each takes the request's arguments and gives plain values.

    `status` takes none; `ls` what `list_facts` says; `show` and `why` id; `tail` what
    `tail_facts` says; what changes something is in `parkade.changing` and `parkade.lever_facts`,
    the dead letter office in `parkade.dead_facts`.
    """

    def as_shown(task: str, arguments: Any) -> Any:
        found = engine.task_of(task)
        if found is None:
            return arguments
        return redact_arguments(arguments, found.definition.handler.hints())

    def show(args: Mapping[str, Any]) -> dict[str, Any]:
        desk = engine.desk("show")
        facts = show_facts(desk, args.get("id", ""), as_shown)
        return facts | {"held": held_fact(desk, facts["ticket"])}

    return {
        "status": lambda _: engine_status(engine),
        "ls": lambda args: list_facts(engine.desk("ls"), args),
        "why": lambda args: why_facts(engine.desk("why"), args.get("id", "")),
        "show": show,
        "tail": partial(tail_facts, engine),
        "plan_cancel": lambda args: plan_cancel(engine.desk("cancel"), args),
        **{name: partial(change, engine) for name, change in CHANGES.items()},
        **{name: partial(answer, engine) for name, answer in (DEAD_ANSWERS | DEAD_CHANGES).items()},
        **{name: partial(turn, engine) for name, turn in LEVER_CHANGES.items()},
        **{name: partial(call, engine) for name, call in HOLD_CALLS.items()},
    }
