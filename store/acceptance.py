"""Which of the frames found on disk are the log: rule 1 of docs/format.md, as a pure function.

Torn is a tail that was never acknowledged: it is cut and life goes on. Damage is a change to
something that is proven to have been durable: nothing is touched and the shard is refused. The
proof is the greatest of the store's LSN and every `synced` in any valid frame or header.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from parkade.store.errors import Damage
from parkade.store.frame import FrameHead
from parkade.store.segment import Mode, SegmentScan


@dataclass(slots=True)
class RunPart:
    """What one segment gives to the run: at least one frame."""

    scan: SegmentScan
    frames: tuple[FrameHead, ...]


@dataclass(slots=True)
class Run:
    """The log: an unbroken run of LSNs, and what is to become of the other files.

    `last_lsn` is the run's last record, `proof_lsn` the last that must be there. `parts` are in
    order. `spent` give nothing to the run and are to be removed once a new segment is there;
    `beyond` hold what was never acknowledged and are to be removed before.
    """

    last_lsn: int
    proof_lsn: int
    parts: list[RunPart] = field(default_factory=list[RunPart])
    spent: list[SegmentScan] = field(default_factory=list[SegmentScan])
    beyond: list[SegmentScan] = field(default_factory=list[SegmentScan])

    @property
    def epoch_max(self) -> int:
        """The greatest epoch of any segment, 0 if there is none."""
        scans = [part.scan for part in self.parts] + self.spent + self.beyond
        return max((scan.name.epoch for scan in scans), default=0)

    @property
    def end(self) -> int:
        """Where the last segment of the run ends, in bytes; 0 if there is none."""
        return self.parts[-1].frames[-1].end if self.parts else 0


def accept(scans: Sequence[SegmentScan], store_lsn: int) -> Run:
    """The run that holds `store_lsn + 1`, or ends just before it; `scans` in order of names.

    Raises Damage with the place where the run breaks off too early.
    """
    return _Walk(scans, store_lsn).run()


class _Walk:
    """One pass over the segments. `expected` is the LSN that must come next, 0 at the start."""

    def __init__(self, scans: Sequence[SegmentScan], store_lsn: int) -> None:
        self.scans = scans
        self.store_lsn = store_lsn
        self.synced_lsn = _synced_max(scans)
        self.log = Run(0, max(store_lsn, self.synced_lsn))
        self.expected = 0
        self.begin = 0
        self.mode = Mode.DISK
        self.place = ("", 0)
        self.is_over = False

    def run(self) -> Run:
        for scan in self.scans:
            if scan.header is None:
                raise Damage(scan.path, 0, "its header is gone: it had one before it had its name")
            elif self.is_over or not self._enter(scan):
                self.is_over = True
                self.log.beyond.append(scan)
            else:
                self._take(scan)
        self.log.last_lsn = self.expected - 1 if self.expected else self.store_lsn
        self._judge()
        return self.log

    def _enter(self, scan: SegmentScan) -> bool:
        assert scan.header is not None
        first_lsn = scan.first_lsn
        if first_lsn < self.expected:
            reason = f"it begins at LSN {first_lsn}, which the segments before it hold already"
            raise Damage(scan.path, 0, reason)
        if first_lsn > self.expected:
            if self.expected and not self._may_skip_to(first_lsn):
                return False
            self._begin_again(first_lsn)
        self._check_prior(scan.header.prior_end)
        self.mode = scan.header.mode
        self.place = (scan.path, scan.end)
        return True

    def _check_prior(self, prior_end: int) -> None:
        if not self.log.parts:
            return
        prior = self.log.parts[-1].scan
        assert prior.header is not None
        if prior.header.mode is Mode.DISK and prior.end < prior_end:
            reason = f"a frame is damaged: the next segment knows frames up to byte {prior_end}"
            raise Damage(prior.path, prior.end, reason)

    def _take(self, scan: SegmentScan) -> None:
        taken: list[FrameHead] = []
        for frame in scan.frames:
            if self.mode is Mode.DISK and frame.offset > scan.end:
                # A frame is written only once the one before it is durable: this is no tear.
                raise Damage(scan.path, scan.end, "a frame is damaged, and others stand behind it")
            if frame.first_lsn != self.expected:
                if self.mode is Mode.DISK:
                    reason = f"it holds LSN {frame.first_lsn} where {self.expected} must come"
                    raise Damage(scan.path, frame.offset, reason)
                if not self._may_skip_to(frame.first_lsn):
                    self.is_over = True
                    break
                self._begin_again(frame.first_lsn)
                taken.clear()
            taken.append(frame)
            self.expected = frame.last_lsn + 1
        if taken:
            self.log.parts.append(RunPart(scan, tuple(taken)))
        else:
            self.log.spent.append(scan)

    def _may_skip_to(self, lsn: int) -> bool:
        # Frames that were not synced may be lost while the store, which is, has their records.
        return self.mode is not Mode.DISK and self.expected < lsn <= self.store_lsn + 1

    def _begin_again(self, lsn: int) -> None:
        self.log.spent += [part.scan for part in self.log.parts]
        self.log.parts.clear()
        self.expected = self.begin = lsn

    def _judge(self) -> None:
        path, offset = self.place
        if self.begin > self.store_lsn + 1:
            reason = f"the journal begins at LSN {self.begin}, the store ends at {self.store_lsn}"
            raise Damage(self.scans[0].path, 0, reason)
        needed = self.log.proof_lsn if self.mode is Mode.DISK else self.synced_lsn
        last = self.scans[-1] if self.scans else None
        if last is not None and last.goes_on:
            reason = "the log goes on in another file, which is missing"
            raise Damage(last.path, last.end, reason)
        if self.log.last_lsn < needed:
            reason = (
                f"the log ends at LSN {self.log.last_lsn}, and LSN {needed} is known to have "
                f"been durable"
            )
            raise Damage(path, offset, reason)


def _synced_max(scans: Sequence[SegmentScan]) -> int:
    headers = [scan.header.synced_lsn for scan in scans if scan.header is not None]
    frames = [frame.synced_lsn for scan in scans for frame in scan.frames]
    return max(headers + frames, default=0)
