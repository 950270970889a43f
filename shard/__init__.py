"""The pure core: what may happen to a ticket."""

if __name__ != "parkade.shard":  # pragma: no cover
    raise ImportError("import parkade.shard: the folder name is not the module name")

from parkade.shard.bounds import Bounds
from parkade.shard.core import ENTRY_AGENDA, ENTRY_LANE, ENTRY_WAITS, Shard
from parkade.shard.generation import Cut, Generation, LaneMove
from parkade.shard.history import AttemptRow, attempts_of, decode_attempt, encode_attempt
from parkade.shard.lanes import Lane, LaneKey, decode_lane, encode_lane
from parkade.shard.memory import UNREAD, Unread
from parkade.shard.placement import Placement, SweepAsk, Swept, SweptEntry
from parkade.shard.refill import RefillAsk, Refilled
from parkade.shard.states import (
    CANCELLED,
    DEAD,
    DONE,
    EXPIRED,
    NEXT,
    PENDING,
    RUNNING,
    STATE_NAMES,
    STATES,
)
from parkade.shard.unique import is_taken, unique_name, unique_name_of

__all__ = [
    "CANCELLED",
    "DEAD",
    "DONE",
    "ENTRY_AGENDA",
    "ENTRY_LANE",
    "ENTRY_WAITS",
    "EXPIRED",
    "NEXT",
    "PENDING",
    "RUNNING",
    "STATES",
    "STATE_NAMES",
    "UNREAD",
    "AttemptRow",
    "Bounds",
    "Cut",
    "Generation",
    "Lane",
    "LaneKey",
    "LaneMove",
    "Placement",
    "RefillAsk",
    "Refilled",
    "Shard",
    "SweepAsk",
    "Swept",
    "SweptEntry",
    "Unread",
    "attempts_of",
    "decode_attempt",
    "decode_lane",
    "encode_attempt",
    "encode_lane",
    "is_taken",
    "unique_name",
    "unique_name_of",
]
