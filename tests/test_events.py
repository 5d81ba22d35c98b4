"""The stream: lines round-trip, newer versions are skipped, garbage is counted and named."""

import json
import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topsmon import events

HEADER = {"time": 1.5, "monotonic": 2.5, "source": "host"}


def every_event() -> list[events.Event]:
    return [
        events.Hello(**HEADER, version="1", schema=1, role="poller", pid=3, simulated="h100-8"),
        events.Host(**HEADER, hostname="a", system="Linux", driver_version="580.65"),
        events.HostSample(**HEADER, cpu_busy_ratio=None),
        events.Problem(**HEADER, subject="nvml", code="12", message="m", remedy="r"),
        events.Device(**HEADER, device="GPU-1", kind="gpu", index=0, name="x"),
        events.Ceilings(
            **HEADER,
            device="GPU-1",
            rates=(
                events.Ceiling(precision="bf16", ops_per_second=1.0, origin="computed", source="s"),
            ),
        ),
        events.DeviceSample(**HEADER, device="GPU-1", power_watts=1.0, unavailable={"x": "why"}),
        events.DeviceStatus(**HEADER, device="GPU-1", condition="lost", since=1.0),
        events.Processes(**HEADER, device="GPU-1", entries=(events.ProcessEntry(pid=1, name="a"),)),
        events.ProberReady(**HEADER, device="GPU-1", torch_version="2", python="3"),
        events.ProbeStarted(**HEADER, device="GPU-1", precision="fp32"),
        events.RateMeasured(
            **HEADER, device="GPU-1", precision="fp32", rate_ops_per_second=2.0, shape=(1, 2, 3)
        ),
        events.ProbeResult(
            **HEADER,
            device="GPU-1",
            probe="memory",
            values={"copy_bytes_per_second": 1.0},
            series={"bytes_per_second_over_bytes": ((1.0, 2.0),)},
        ),
        events.ProbeUnsupported(**HEADER, device="GPU-1", precision="fp4", reason="r"),
        events.ProberIdle(**HEADER, device="GPU-1", reason="r"),
        events.Worker(**HEADER, worker="poller", condition="running"),
        events.Finding(**HEADER, code="c", severity="warn", word="SLOW", title="t"),
        events.CheckResult(
            **HEADER, device="GPU-1", label="GPU 0", check="bf16", state="PASS", title="t"
        ),
        events.Slices(
            **HEADER,
            device="GPU-1",
            slices=(
                events.Slice(
                    uuid="MIG-1", profile="1g.10gb", counters=events.GpuCounters(seconds=1.0)
                ),
            ),
        ),
        events.Xid(**HEADER, device="GPU-1", code=79),
        events.Run(
            **HEADER,
            run="1-2-0",
            pid=2,
            hostname="a",
            started=1.0,
            scaler=events.Scaler(kind="GradScaler", growth_interval=2000),
        ),
        events.RunSample(
            **HEADER,
            run="1-2-0",
            step=3,
            stepped_at=1.0,
            window=events.RunWindow(steps=3, skipped=1),
            totals=events.RunTotals(steps=3, skipped=1, scale_lowest=32768.0),
        ),
        events.RunHistory(
            **HEADER,
            run="1-2-0",
            stride=4,
            buckets=(events.HistoryBucket(first_step=1, steps=3, skipped=1, loss_mean=0.5),),
        ),
        events.RunEvent(**HEADER, run="1-2-0", number=1, kind="skip", step=1, names=("a.b",)),
        events.RunStatus(**HEADER, run="1-2-0", condition="killed", since=2.0, detail="SIGKILL"),
        events.Recording(**HEADER, recording="ab12", part=2, began=1.0, repeated=7, interval=0.5),
    ]


def test_every_kind_of_event_is_tried_here() -> None:
    tags = {event.__struct_config__.tag for event in every_event()}
    assert tags == events.KNOWN_TAGS


@pytest.mark.parametrize("event", every_event(), ids=lambda event: event.__struct_config__.tag)
def test_a_line_round_trips(event: events.Event) -> None:
    line = events.encode(event)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert events.LineDecoder().decode(line) == event


def test_unknown_fields_of_a_newer_version_are_ignored() -> None:
    line = json.dumps({"type": "host", **HEADER, "hostname": "a", "system": "L", "new": [1]})
    decoder = events.LineDecoder()
    assert decoder.decode(line.encode()) == events.Host(**HEADER, hostname="a", system="L")
    assert (decoder.skipped, decoder.malformed) == (0, 0)


def test_unknown_tags_of_a_newer_version_are_skipped_and_counted() -> None:
    decoder = events.LineDecoder()
    assert decoder.decode(b'{"type":"hologram","time":1}') is None
    assert (decoder.skipped, decoder.malformed) == (1, 0)


@pytest.mark.parametrize(
    ("line", "named"),
    [
        (b"not json", "JSON"),
        (b'{"type":"host"', "truncated"),
        (b"[1,2]", "object"),
        (b'{"no":"type"}', "type"),
        (b'{"type":"host","time":"noon"}', "host"),
        (b"\xff\xfe\x00", "JSON"),
        (b'{"type":"host","new":' + b"[" * 100_000, "recursion"),
        (b'"' + b"x" * (events.MAX_LINE_BYTES + 1) + b'"', "bytes"),
    ],
    ids=["text", "cut", "list", "untagged", "mistyped", "binary", "nested", "long"],
)
def test_malformed_lines_are_counted_and_named(line: bytes, named: str) -> None:
    decoder = events.LineDecoder()
    assert decoder.decode(line) is None
    assert decoder.malformed == 1
    assert decoder.last_error is not None
    assert named.lower() in decoder.last_error.lower()


def test_empty_lines_are_nothing() -> None:
    decoder = events.LineDecoder()
    assert decoder.decode(b"  \r\n") is None
    assert (decoder.skipped, decoder.malformed) == (0, 0)


def test_infinite_values_become_null_not_numbers() -> None:
    sample = events.DeviceSample(**HEADER, device="d", power_watts=math.inf)
    line = events.encode(sample)
    assert json.loads(line)["power_watts"] is None
    decoded = events.LineDecoder().decode(line)
    assert isinstance(decoded, events.DeviceSample)
    assert decoded.power_watts is None


@given(st.binary(max_size=300))
def test_no_line_raises(line: bytes) -> None:
    decoder = events.LineDecoder()
    decoder.decode(line)
    assert decoder.skipped + decoder.malformed <= 1


@given(st.text(max_size=50), st.floats(allow_nan=False, allow_infinity=False))
def test_any_text_and_number_survive(text: str, number: float) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        return
    event = events.DeviceSample(
        **HEADER, device=text, power_watts=number, unavailable={"energy_joules": text}
    )
    assert events.LineDecoder().decode(events.encode(event)) == event


def test_events_are_frozen() -> None:
    with pytest.raises(AttributeError):
        every_event()[0].time = 2.0  # type: ignore[misc]
    assert msgspec.structs.replace(every_event()[0], time=2.0).time == 2.0
