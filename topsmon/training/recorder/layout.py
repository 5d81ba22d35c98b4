"""The ring file's layout: what lies where, shared by the writer in a run and by the readers.

All numbers are little-endian. The file has a fixed size and four regions after its preamble:

    preamble   64 B           magic, version, sizes of everything below, CRC-32
    identity   2 x 16 KiB     JSON; written in turn, the higher generation is the newer
    records    4096 x 320 B   one a step; step n lies in slot n % 4096
    events     256 x 1 KiB    JSON; event n lies in slot n % 256
    history    256 x 80 B     the whole run in buckets of `stride` steps

Every slot carries a CRC-32 of the rest of itself, so that a torn or foreign one is never believed.
A number that is not known is NaN (floats) or -1 (integers that say so).
"""

from __future__ import annotations

import struct

MAGIC = b"TOPSMON\x01"
VERSION = 1
SUFFIX = ".ring"

PREAMBLE = struct.Struct("<8sIIIIIIIIII")
"""Magic, version, then: identity slots, identity slot size, record slots, record size, event slots,
event slot size, history slots, history slot size, CRC-32 of all before it."""
PREAMBLE_BYTES = 64

IDENTITY_SLOTS, IDENTITY_SLOT_BYTES = 2, 16 * 1024
RECORD_SLOTS, RECORD_SLOT_BYTES = 4096, 320
EVENT_SLOTS, EVENT_SLOT_BYTES = 256, 1024
HISTORY_SLOTS, HISTORY_SLOT_BYTES = 256, 80

IDENTITY_OFFSET = PREAMBLE_BYTES
RECORDS_OFFSET = IDENTITY_OFFSET + IDENTITY_SLOTS * IDENTITY_SLOT_BYTES
EVENTS_OFFSET = RECORDS_OFFSET + RECORD_SLOTS * RECORD_SLOT_BYTES
HISTORY_OFFSET = EVENTS_OFFSET + EVENT_SLOTS * EVENT_SLOT_BYTES
FILE_BYTES = HISTORY_OFFSET + HISTORY_SLOTS * HISTORY_SLOT_BYTES

TEXT = struct.Struct("<IQI")
"""Head of an identity or event slot: CRC-32 of what follows, number, bytes of JSON; then JSON."""

RECORD_FIELDS = (
    # The step itself.
    ("step", "Q"),  # from 1; first field, so that a reader finds the newest slot fast
    ("time", "d"),  # wall clock, s since the epoch
    ("step_seconds", "d"),  # since the step before
    ("loss", "d"),  # sum of what backward was given, unscaled; inf, NaN as they are
    ("scale", "d"),  # loss scale after this step's update; NaN: no scaler
    ("gradient_norm", "d"),  # of the unscaled gradients, before clipping; may be inf
    ("clip_max_norm", "d"),
    ("learning_rate", "d"),
    ("samples", "d"),  # in this step, all its micro-batches, this rank
    ("tokens", "d"),
    ("data_wait_seconds", "d"),  # the loop waited for its data loader
    ("memory_bytes", "d"),
    ("memory_peak_bytes", "d"),
    ("growth_tracker", "i"),  # -1: not known
    ("flags", "I"),
    ("skip_streak", "I"),
    ("backward_calls", "I"),
    # Sticky: sums and extremes from the first step to this one.
    ("skipped", "Q"),
    ("growths", "Q"),
    ("backoffs", "Q"),
    ("calibration_skips", "Q"),
    ("longest_skip_streak", "Q"),
    ("last_skip_step", "Q"),  # 0: never
    ("last_growth_step", "Q"),  # 0: never
    ("nonfinite_losses", "Q"),
    ("first_nonfinite_loss_step", "Q"),  # 0: never
    ("backward_overflows", "Q"),  # skipped with a finite loss
    ("clip_calls", "Q"),
    ("clipped", "Q"),  # calls that changed the gradients
    ("scaled_clips", "Q"),  # calls that found scaled gradients
    ("bypasses", "Q"),
    ("scheduler_steps", "Q"),
    ("dropped", "Q"),
    ("scale_lowest", "d"),
    ("scale_highest", "d"),
    ("tokens_total", "d"),
    ("samples_total", "d"),
    ("recorder_seconds", "d"),
    ("errors", "I"),
)
RECORD_NAMES = tuple(name for name, _ in RECORD_FIELDS)
RECORD = struct.Struct("<" + "".join(code for _, code in RECORD_FIELDS))
"""The record without its CRC-32, which lies in the slot's last four bytes, over RECORD.size."""
CRC = struct.Struct("<I")

SKIPPED = 1 << 0
GREW = 1 << 1
BACKED_OFF = 1 << 2
NONFINITE_LOSS = 1 << 3
HAS_SCALER = 1 << 4
FOUND_INF = 1 << 5
CLIPPED = 1 << 6
"""The clip call of this step changed the gradients."""
CLIP_CALLED = 1 << 7
SCALED_CLIP = 1 << 8
BYPASS = 1 << 9
NORM_SAMPLED = 1 << 10
"""The norm is the recorder's own sample, not that of the run's clip call."""
AUTOCAST_FP16 = 1 << 11
AUTOCAST_BF16 = 1 << 12
PENDING = 1 << 13
"""Readings of this step are still on their way from the device; the slot is written again."""

HISTORY = struct.Struct("<IQQQddddQd")
"""CRC-32 of what follows, first step (from 1; 0: empty), steps, skipped, lowest and highest scale,
mean loss of the finite ones, highest finite gradient norm, non-finite losses, mean step seconds."""

assert RECORD.size + CRC.size <= RECORD_SLOT_BYTES
assert HISTORY.size <= HISTORY_SLOT_BYTES
