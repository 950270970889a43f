"""The lanes of all shards as admission sees them: each at a post, the posts in queues, by task.

The lanes of one task and target, of whatever shard and priority, are held by the same things: they
make up a `Queue`.
"""

from parkade.guards import Hold, Plan
from parkade.ranking import Rank, Ranking
from parkade.shard.lanes import Lane
from parkade.shard.placement import Placement

__all__ = ["Held", "Owner", "Post", "Queue", "TaskQueues", "rank_of"]


class Owner:
    """The lanes of one shard, for as long as its memory lives. `is_open`: it takes starts now."""

    __slots__ = ("is_current", "is_open", "lanes", "number", "placement", "posts", "shelf")

    def __init__(self, number: int, placement: Placement) -> None:
        self.number = number
        self.placement = placement
        self.lanes = placement.lanes
        self.posts: dict[Lane, Post] = {}
        self.shelf: set[Post] = set()  # met while it took no starts
        self.is_current = True
        self.is_open = True


class Post:
    """One lane in its queue."""

    __slots__ = ("lane", "listed", "order", "owner", "queue")

    def __init__(self, owner: Owner, lane: Lane, queue: "Queue") -> None:
        self.owner = owner
        self.lane = lane
        self.order = -lane.priority
        self.queue = queue
        self.listed: Rank | None = None

    def head(self) -> Rank | None:
        owner, window = self.owner, self.lane.window
        if not window or not owner.is_current or self.lane in owner.lanes.passed:
            return None
        if not owner.is_open:
            owner.shelf.add(self)
            return None
        return self.order, window[0]


class Queue:
    """The lanes of one task and target."""

    __slots__ = ("hold", "key", "listed", "plan", "posts", "size", "task")

    def __init__(self, key: tuple[str, str | None], task: "TaskQueues", plan: Plan) -> None:
        self.key = key
        self.task = task
        self.plan = plan
        self.posts: Ranking[Post] = Ranking()
        self.size = 0  # lanes that are not empty
        self.hold: Hold | None = None
        self.listed: Rank | None = None

    def head(self) -> Rank | None:
        return self.posts.head()


class TaskQueues:
    """The queues of one task that no target holds."""

    __slots__ = ("hold", "kind", "listed", "plan", "queues")

    def __init__(self, kind: str, plan: Plan) -> None:
        self.kind = kind  # empty: there is no handler, or no place for it
        self.plan = plan
        self.queues: Ranking[Queue] = Ranking()
        self.hold: Hold | None = None
        self.listed: Rank | None = None

    def head(self) -> Rank | None:
        return self.queues.head()


Held = Queue | TaskQueues


def rank_of(listed: TaskQueues | Post) -> Rank:
    """Of who is listed in a ranking: that of its head, when it was looked at last."""
    assert listed.listed is not None
    return listed.listed
