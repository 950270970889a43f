"""Every bound of the host, with its reason. Bytes and counts are of one shard unless said."""

__all__ = [
    "BODY_FETCH_MAX",
    "CHECKPOINT_AGE_MS",
    "CHECKPOINT_DIRTY_BYTES",
    "CHECKPOINT_JOURNAL_BYTES",
    "CHECKPOINT_RETRY_MS",
    "CHECKPOINT_SEGMENTS_MAX",
    "CHECKPOINT_TICKETS_MAX",
    "COMMANDS_PER_TURN_MAX",
    "COMMAND_BYTES_MAX",
    "DIRTY_BYTES_MAX",
    "DOOR_BYTES_MAX",
    "ENCODE_SLICE_TICKETS",
    "ENDS_FRAME_RECORDS",
    "EXPIRED_BYTES",
    "FIND_LIMIT_MAX",
    "FIND_SCAN_MAX",
    "FIND_SLICE",
    "FIRE_MAX",
    "FORGET_MAX",
    "FORGET_SPAN_MS",
    "FORGOTTEN_UNCOMMITTED_MAX",
    "FRAME_MARGIN_BYTES",
    "HAND_RETRY_MS",
    "HOUSE_JOURNAL_BYTES",
    "IDLE_COVER_MS",
    "LOAD_CHUNK",
    "LOST_CHUNK",
    "OUTBOX_READ_MAX",
    "OUTCOME_BYTES",
    "POISON_WINDOW_MS",
    "QUIET_MS",
    "READ_ON_BYTES_MAX",
    "RECOVERIES_IN_WINDOW_MAX",
    "RECOVERY_RETRY_MS",
    "REREADS_BEFORE_HOLD",
    "RESHARD_BATCH_BYTES",
    "REST_MS_MAX",
    "RETENTION_COUNT_PAUSE_MS",
    "RETENTION_PAUSE_MS_MAX",
    "RETENTION_PAUSE_MS_MIN",
    "RETENTION_REST_PAUSE_MS",
    "SERIAL_LEASE",
    "SHARDS_DEFAULT",
    "SHARDS_MAX",
    "SMALL_FRAME_RECORDS",
    "SPENT_SEEK_PAUSE_MS",
    "SPENT_WALK_BLOBS",
    "STARTS_ALONE_MIN",
    "STARTS_IN_A_ROW_MAX",
    "STARTS_UNDER_WAY_MAX",
    "START_BATCH_MAX",
    "SUBMIT_BYTES_MAX",
    "SUBMIT_CHUNK",
    "TURN_BYTES_MAX",
    "WAIT_MS_MAX",
]

SHARDS_DEFAULT = 4
SHARDS_MAX = 256  # a part has 16 bits; beyond this, descriptors and fsyncs cost more than they give

COMMANDS_PER_TURN_MAX = 4_096  # so that timers and leases are looked at every few milliseconds
TURN_BYTES_MAX = 320_000  # of one frame; a larger command makes one alone, in a larger segment
SMALL_FRAME_RECORDS = 16  # up to so many wait for the end of the pass, and may be written there
ENDS_FRAME_RECORDS = 64  # up to so many wait for what starts in their places: one write for both
FRAME_MARGIN_BYTES = 65_536  # what a frame may be larger than the estimate of its records
SUBMIT_CHUNK = 1_000  # drafts in one command
COMMAND_BYTES_MAX = 128_000  # a chunk of outcomes is split there
SUBMIT_BYTES_MAX = 320_000  # and one of drafts: a thousand of 1,000 bytes are a frame a shard
LOST_CHUNK = 1_000  # lost attempts settled by one command
OUTCOME_BYTES = 100  # what an outcome writes beside its result and its error

DOOR_BYTES_MAX = 32_000_000  # engine-wide: undecided commands of the application
DIRTY_BYTES_MAX = 12_000_000  # of all shards, dirty and flight, but moves; at it submits wait
READ_ON_BYTES_MAX = 10_000_000  # the same, moves too: at it a crowd's rows are hardly read on

RESHARD_BATCH_BYTES = 16_000_000  # dealt to all new shards together, and in no store yet
CHECKPOINT_DIRTY_BYTES = 8_000_000  # of all shards, like the next
CHECKPOINT_TICKETS_MAX = 15_000  # of all shards: bounds what a bulk load leaves in the heap
CHECKPOINT_JOURNAL_BYTES = 64_000_000
CHECKPOINT_SEGMENTS_MAX = 16  # every open begins one: being killed again and again fills no disk
CHECKPOINT_AGE_MS = 5_000
CHECKPOINT_RETRY_MS = 1_000
HOUSE_JOURNAL_BYTES = 256_000  # some thousand changes of breakers; then the house is checkpointed
RECOVERY_RETRY_MS = 1_000  # without a free descriptor
ENCODE_SLICE_TICKETS = 500  # some 1 ms of encoding between two looks at the clock

IDLE_COVER_MS = 1_000
QUIET_MS = 5  # until a shard looks at what a start has left it to do, if nothing else comes
WAIT_MS_MAX = 2_000  # a clock set forward and a suspend are noticed within this
REST_MS_MAX = 30_000  # of a shard with nothing in hand, until it looks whether that is so

FIRE_MAX = 256  # timers in a turn: some 10 ms of four shards where they find their lanes full
LOAD_CHUNK = 256  # about 2 ms of reading between two frames
REREADS_BEFORE_HOLD = 2
BODY_FETCH_MAX = 256
OUTBOX_READ_MAX = 256  # entries of an outbox read at a time
HAND_RETRY_MS = 1_000  # after a hand-over that failed while its receiver was open
EXPIRED_BYTES = 40  # what the record of one expired ticket writes
START_BATCH_MAX = 256  # tickets started by a pass: who becomes due meanwhile waits for its end
STARTS_IN_A_ROW_MAX = 64  # of one task, while another of its priority waits
STARTS_ALONE_MIN = 4_096  # of one task, no other's between them: nobody is there to go behind it
STARTS_UNDER_WAY_MAX = 256  # not durable yet: who becomes due goes behind them

POISON_WINDOW_MS = 60_000
RECOVERIES_IN_WINDOW_MAX = 1  # a second failure within the window refuses the shard

FORGET_MAX = 256  # tickets that one command of retention forgets: some 3 ms of reading them
FORGOTTEN_UNCOMMITTED_MAX = 8_192  # of all shards: 4 MB of what may be dirty or in flight
FORGET_SPAN_MS = 1 << 16  # by number, the oldest go first to within so much
SPENT_WALK_BLOBS = 64  # of what has ended, looked at in one read
SPENT_SEEK_PAUSE_MS = 600_000  # between two walks: a blob of each kind, and what is spent
RETENTION_PAUSE_MS_MIN = 500
RETENTION_PAUSE_MS_MAX = 60_000
RETENTION_COUNT_PAUSE_MS = 2_000  # between two counts of what is kept by number
RETENTION_REST_PAUSE_MS = 15_000  # the same, where nothing was written since

SERIAL_LEASE = 1 << 40  # 17 minutes of clock

FIND_LIMIT_MAX = 1_000
FIND_SCAN_MAX = 50_000  # tickets that one page looks at in a shard
FIND_SLICE = 512  # some 3 ms of reading heads between two frames
