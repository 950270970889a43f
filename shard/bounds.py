"""How much of the future and of the queues a shard holds in memory."""

from typing import NamedTuple

__all__ = ["Bounds"]


class Bounds(NamedTuple):
    """Numbers from docs/architecture.md, Placement and Lanes; a test makes them small."""

    horizon_ms: int = 65_000  # how far ahead a sweep reads: just inside the wheel's window
    wheel_max: int = 50_000  # timers in the wheel
    window_max: int = 1_024  # serials in a lane's window
    windows_max: int = 50_000  # serials in all windows together; past it a lane keeps its head
    lanes_max: int = 10_000  # lanes that keep a head in memory
    sweep_limit: int = 1_024  # entries one sweep reads: some 5 ms of taking them in
    moves_max: int = 16_384  # moves that wait for a checkpoint before sweeps wait for it too
    aside_max: int = 50_000  # tickets that wait out of their lane, in memory
    payload_cache_bytes_max: int = 8 << 20  # payloads kept for tickets that are soon to start
    outbox_max: int = 512  # outbox entries of each receiver in memory, and their bytes
    outbox_bytes_max: int = 256_000
    waits_window: int = 64  # tickets aside of one lane that wait for one key
    queues_max: int = 10_000  # keys and lanes for which more wait than that
    waiting_max: int = 10_000  # of those that wait on disk, how many may be on their way there
    scout_ahead_ms: int = 1_000  # how near the clock comes to the horizon before looks go past it
    scout_max: int = 256  # tickets that a look past a crowd reads
    scouted_max: int = 1_024  # of those it found that are not due yet; and of those with a key
    refill_max: int = 128  # rows read at a time for a window: some 2 ms between two frames
    plain_ahead_ms: int = 600_000  # whose due is that far is left as submitted till a checkpoint
