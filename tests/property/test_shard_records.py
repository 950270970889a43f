"""Any record may meet any ticket: apply never fails, and live equals replay whatever the records.

Nothing here has been decided, so most of the records are nonsense, as a journal's are when a ticket
was cancelled meanwhile. Nonsense has no effect.
"""

from hypothesis import given
from hypothesis import strategies as st

from kit.rig import NOW_MS, SMALL, Rig
from parkade.shard.check import check
from parkade.store.record import (
    Bookmarked,
    BreakerSet,
    Buried,
    Cancelled,
    CancelRequested,
    Completed,
    Dropped,
    ErrorText,
    Expired,
    Forgotten,
    Handed,
    Late,
    Leased,
    Options,
    Record,
    Released,
    Rescheduled,
    Resolved,
    Retried,
    Revived,
    Snoozed,
    Started,
    Submitted,
    UniqueClaim,
)

serials = st.integers(1, 5)
fences = st.integers(-1, 3)
times = st.integers(NOW_MS, NOW_MS + 3_000)
bodies = st.binary(max_size=4)
flags = st.booleans()
errors = st.one_of(st.none(), st.builds(ErrorText, st.just("E"), st.just("no")))
lists = st.lists(serials, max_size=4)

records: st.SearchStrategy[Record] = st.one_of(
    st.builds(Started, lists, times, st.integers(0, 1)),
    st.builds(Started, lists, times),
    st.builds(Completed, serials, fences, times, bodies),
    st.builds(
        Retried,
        serials,
        fences,
        times,
        times,
        st.sampled_from(("failed", "timeout", "lease", "lost")),
        errors,
        st.integers(0, 1),
        flags,
    ),
    st.builds(Snoozed, serials, fences, times, times),
    st.builds(Released, serials, fences, times, times, flags),
    st.builds(
        Buried,
        serials,
        fences,
        times,
        st.sampled_from(("failed", "unsafe", "bad_payload", "crashed")),
        errors,
        flags,
    ),
    st.builds(CancelRequested, serials, fences, times, st.just("enough")),
    st.builds(Cancelled, serials, fences, times, st.just("enough"), errors, flags, flags),
    st.builds(Expired, serials, times),
    st.builds(Rescheduled, serials, times, times),
    st.builds(Revived, serials, times, times, flags, st.one_of(st.none(), bodies)),
    st.builds(Resolved, serials, times, bodies),
    st.builds(Dropped, serials, times),
    st.builds(Late, serials, st.integers(1, 3)),
    st.builds(Forgotten, st.just("t"), st.integers(0, 5), lists),
    st.builds(Bookmarked, serials, fences, times),
    st.builds(Handed, serials, serials, serials, serials),
    st.builds(Leased, times),
    st.builds(BreakerSet, st.just("b"), bodies),
)
steps = st.lists(st.one_of(records, records, st.sampled_from(("checkpoint", "cut", "fail"))))


def submitted(serial: int) -> Submitted:
    """Five tickets of different kinds; no two with one key, which decide would not run at once."""
    claim = UniqueClaim("name", serial % 3, NOW_MS + 500, 500) if serial in (2, 3) else None
    options = Options(expires_ms=100) if serial == 4 else None
    key = "k" if serial == 3 else None
    due_ms = NOW_MS + 700 * (serial - 1)
    return Submitted(serial, 7, "t", due_ms, NOW_MS, b"payload", key, claim, options)


@given(steps, st.integers(0, 4))
def test_any_records_are_applied_and_replay_comes_to_the_same(
    steps: list[Record | str], late: int
) -> None:
    rig = Rig(SMALL)
    for serial in range(1, 6):
        rig.apply(submitted(serial))
    for nth, step in enumerate(steps):
        before = rig.core.lsn
        if isinstance(step, Record):
            names = rig.core.names(step)
            assert rig.core.adopt(rig.store.load(list(names[0]), list(names[1])))
            rig.apply(step)
            assert rig.core.lsn == before + 1
        elif step == "cut" and rig.building is None:
            rig.cut()
        elif step == "fail" and rig.building is not None:
            rig.fail_commit()
        elif rig.building is None:
            rig.checkpoint()
        else:
            rig.commit()
            rig.complete()
        if nth % 5 == late:
            rig.settle_down()
        check(rig.core, rig.store.view())
    live = rig.state()
    rig.reopen()
    assert rig.state() == live
    check(rig.core, rig.store.view())
