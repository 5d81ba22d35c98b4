"""The report: numbers that were counted by hand, safe to paste, without who and where."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from recorded import (
    CEILING,
    HOST,
    RATE,
    SECRET_COMMAND,
    START,
    UUIDS,
    at,
    identities,
    rate,
    sample,
    stream,
)

from topsmon import events
from topsmon.recording import index as index_module
from topsmon.recording.reader import RecordingReader
from topsmon.recording.series import Series
from topsmon.recording.summary import Summary, summarise
from topsmon.redaction import Redactor
from topsmon.report import recording
from topsmon.report.recording import plots
from topsmon.report.recording.markdown import escaped
from topsmon.report.recording.model import Document, Lines, Listing, Plot, Section, Table

HELLO = events.Hello(**at(-0.5), version="0.9.9", schema=1, role="recording", pid=1)


def stored(folder: Path, found: list[events.AnyEvent]) -> Path:
    path = folder / "a.jsonl"
    path.write_bytes(b"".join(map(events.encode, found)))
    return path


def summary_of(
    folder: Path, found: list[events.AnyEvent], redactor: Redactor | None = None
) -> Summary:
    reader = RecordingReader(stored(folder, found))
    index = index_module.build(reader)
    return (
        summarise(reader, index) if redactor is None else summarise(reader, index, redactor.event)
    )


def finding(seconds: float, code: str = "slow", *, ended: bool = False) -> events.Finding:
    return events.Finding(
        **at(seconds),
        code=code,
        severity="warn",
        word="SLOW",
        title=f"GPU 0 {code}: {SECRET_COMMAND} of bob",
        device=UUIDS[0],
        ended=ended,
    )


def test_rates(tmp_path: Path) -> None:
    """Rates at 10, 20, 30 s: 601, 602, 603 TFLOPS; a disturbed and a wrong one beside them."""
    found = [
        *stream(35),
        rate(40, UUIDS[0], 1e15, valid=False, invalid_reason="shared"),
    ]
    device = summary_of(tmp_path, found).devices[UUIDS[0]]
    assert list(device.rates["bf16"].valid) == [601e12, 602e12, 603e12]
    assert device.rates["bf16"].median() == 602e12
    assert device.rates["bf16"].invalid == 1
    text = recording.markdown(recording.document(summary_of(tmp_path, found), redacted=False))
    row = next(line for line in text.splitlines() if line.startswith("| BF16"))
    assert [cell.strip() for cell in row.strip("|").split("|")] == [
        "BF16",
        "989 TFLOPS",
        "603 TFLOPS",
        f"{603e12 / CEILING:.1%}",
        "N/A",
        "602 TFLOPS",
        "3",
        "1 disturbed",
    ]
    assert RATE == 600e12


def test_readings(tmp_path: Path) -> None:
    found = [
        *identities(),
        *(sample(second, UUIDS[0], power_watts=100.0 * second) for second in (1, 2, 3)),
        sample(4, UUIDS[0], power_watts=None, busy_ratio=None),
    ]
    series = summary_of(tmp_path, found).devices[UUIDS[0]].series
    power = series["power_watts"].whole()
    assert power is not None
    assert (power.low, power.mean, power.high, power.values) == (100.0, 200.0, 300.0, 3)


def test_a_long_series_stays_short_and_exact() -> None:
    series = Series()
    values = [(number * 7919) % 1000 for number in range(50_000)]
    for second, value in enumerate(values):
        series.add(float(second), float(value))
    whole = series.whole()
    assert whole is not None
    assert len(series.buckets) <= 512
    assert whole.values == len(values)
    assert whole.mean == pytest.approx(sum(values) / len(values))
    assert (whole.low, whole.high) == (min(values), max(values))
    (first_at, first), *_ = series.points()
    count = int(series.width)
    assert first.mean == pytest.approx(sum(values[:count]) / count)
    assert first_at == series.width / 2


def test_findings_have_a_beginning_and_an_end(tmp_path: Path) -> None:
    found = [HELLO, *stream(60), finding(10), finding(20, ended=True), finding(50)]
    found = sorted(found, key=lambda event: event.monotonic)
    spans = summary_of(tmp_path, found).spans
    assert [(span.begin, span.end, span.lasting) for span in spans] == [
        (10.5, 20.5, False),
        (50.5, pytest.approx(59.52), True),
    ]


def test_findings_of_a_stream_are_made_anew(tmp_path: Path) -> None:
    spans = summary_of(tmp_path, stream(60)).spans
    (lost,) = [span for span in spans if span.finding.word == "LOST"]
    assert 30 <= lost.begin <= 31.1
    assert lost.lasting


def test_throttling_by_the_drivers_counter_and_by_single_readings(tmp_path: Path) -> None:
    found = [
        *identities(),
        *(sample(second, UUIDS[0], throttle_ratios={"power": 0.25}) for second in range(1, 12)),
        *(sample(second, UUIDS[1], clock_event_mask=0x4 | 0x1) for second in range(1, 6)),
        *(sample(second, UUIDS[1], clock_event_mask=0x1) for second in range(6, 12)),
    ]
    found.sort(key=lambda event: event.monotonic)
    devices = summary_of(tmp_path, found).devices
    assert devices[UUIDS[0]].counted == pytest.approx({"power": 2.5})
    assert devices[UUIDS[1]].estimated == pytest.approx({"SW power cap": 4.0})
    assert not devices[UUIDS[1]].counted
    text = recording.markdown(recording.document(summary_of(tmp_path, found), redacted=False))
    held = [line for line in text.splitlines() if line.endswith((" counter |", " readings |"))]
    assert held == [
        "| GPU 0 | power | 2.5 s | 22.7% | driver's counter |",
        "| GPU 1 | SW power cap | 4.0 s | 36.4% | estimated from single readings |",
    ]


def test_gaps_and_pauses(tmp_path: Path) -> None:
    def about(seconds: float, since: float | None, **more) -> events.Recording:
        return events.Recording(
            **at(seconds),
            recording="a",
            part=1,
            began=1.0,
            interval=1.0,
            sampling_since=since,
            **more,
        )

    found = [
        *identities(),
        about(0, START),
        *(sample(second, UUIDS[0]) for second in (1, 2, 3)),
        sample(30, UUIDS[0]),
        about(31, None),
        about(60, START + 60),
        sample(61, UUIDS[0]),
        about(62, START + 60, lost_lines=12, lost_reason="the disk took nothing"),
        about(63, START + 60, ended=True),
    ]
    gaps = summary_of(tmp_path, found).gaps
    assert [(gap.begin, gap.end) for gap in gaps] == [(3, 30), (31, 60), (62, 62)]
    assert [gap.reason for gap in gaps] == [
        "nothing was read",
        "paused",
        "12 lines were not written: the disk took nothing",
    ]


def test_what_happened_in_runs_is_counted_once(tmp_path: Path) -> None:
    twice = [event for event in stream(35) if isinstance(event, events.RunEvent)]
    summary = summary_of(tmp_path, [*stream(35), *twice])
    assert summary.happened["r-1"] == {"skip": 3}
    text = recording.markdown(recording.document(summary, redacted=False))
    assert "| train.py | skip | 3 |" in text
    assert "loss scale 32768" in text


SECRETS = ("hunter2", "bob", "private", HOST, "node17", UUIDS[0], UUIDS[1], "00000000:01:00.0")


@pytest.mark.parametrize("kind", ["markdown", "html"])
def test_nothing_names_anybody(tmp_path: Path, kind: str) -> None:
    reader_error = events.Problem(
        **at(12), subject="nvml", code="x", message="/home/bob/lib from 10.1.2.3 aa:bb:cc:dd:ee:ff"
    )
    exception = events.RunEvent(
        **at(13), run="r-1", number=99, kind="exception", step=5,
        names=("OSError",), message="cannot open /home/bob/private/data on node17.example",
    )  # fmt: skip
    idle = events.ProberIdle(
        **at(14), device=UUIDS[0], reason="python3 train.py --token hunter2 ... (PID 77) uses GPU 0"
    )
    shared = rate(
        15, UUIDS[0], 1e14, valid=False,
        invalid_reason="shared: python3 train.py --token ... (PID 77) uses GPU 0",
    )  # fmt: skip
    found = [HELLO, *stream(40), finding(11), reader_error, exception, idle, shared]
    found.sort(key=lambda event: event.monotonic)
    redactor = Redactor({"HOME": "/home/bob"})
    document = recording.document(summary_of(tmp_path, found, redactor), redacted=True)
    document = recording.changed(document, redactor.text)
    text = getattr(recording, kind)(document)
    open_document = recording.document(summary_of(tmp_path, found), redacted=False)
    open_text = getattr(recording, kind)(open_document)
    for secret in (*SECRETS, "10.1.2.3", "aa:bb:cc", "--token"):
        assert secret not in text, secret
    assert {"hunter2", "bob", "private", HOST, UUIDS[0], "10.1.2.3"} <= {
        secret for secret in (*SECRETS, "10.1.2.3") if secret in open_text
    }
    assert "GPU 0" in text
    assert "580.65.06" in text
    assert "H100" in text
    assert "replaced by hashes" in text.replace("\n", " ")


def test_identifiers_stay_where_they_are_asked_for(tmp_path: Path) -> None:
    text = recording.markdown(recording.document(summary_of(tmp_path, stream(5)), redacted=False))
    assert HOST in text
    assert UUIDS[0] in text
    assert "Nothing was redacted" in text


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("python3 train.py --token hunter2 --data /home/bob/private (PID 7)", "python3 (PID 7)"),
        ("python3 train.py --token ... (PID 7) uses GPU 0", "python3 (PID 7) uses GPU 0"),
        ("python3 is old", "python3 is old"),
        ("python -m busy_alice (PID 7)", "python (PID 7)"),
        ("python3 -m other_bob --lr 1 (PID 7)", "python3 (PID 7)"),
        ("python3 -m other_bob (PID 7) uses GPU 0", "python3 (PID 7) uses GPU 0"),
        ("python3 -m unseen_carol uses GPU 0", "python3 uses GPU 0"),
        ("driver 580.65.06", "driver 580.65.06"),
    ],
)
def test_command_lines_are_known_again_in_sentences(text: str, kept: str) -> None:
    redactor = Redactor({})
    entries = tuple(
        events.ProcessEntry(pid=pid, command=command)
        for pid, command in (
            (7, "/usr/bin/python -m busy_alice"),
            (8, "/usr/bin/python3 -m other_bob --lr 1"),
        )
    )
    for event in [*stream(2), events.Processes(**at(3), device=UUIDS[0], entries=entries)]:
        redactor.event(event)
    assert redactor.text(text) == kept


NASTY = Document(
    "a <b>title</b>",
    (
        Section(
            "s|t *x*",
            (
                Lines(("<script>alert(1)</script> @everyone [a](http://x)",), listed=True),
                Table(("a|b", "c"), (("x|y\\", "`z`"),)),
                Listing("```\n<pre>\n```"),
                Plot('p"<', "W", ((0.5, 1, 2, 3), (1.5, 2, 2, 2)), 2.0, 1.0, marks=((1.0, "<m>"),)),
            ),
        ),
    ),
)


def test_nothing_in_markdown_is_markup_from_outside() -> None:
    text = recording.markdown(NASTY)
    assert "<script>" not in text.replace("\\<script\\>", "")
    assert "@everyone" not in text
    row = next(line for line in text.splitlines() if line.startswith("| x"))
    assert len(re.split(r"(?<!\\)\|", row.strip())) == 4
    assert text.count("````") == 2
    assert escaped("a_b") == "a\\_b"


def test_nothing_in_html_is_markup_from_outside() -> None:
    found: list[str] = []

    class Tags(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            found.append(tag)

    text = recording.html(NASTY)
    Tags().feed(text)
    assert "script" not in found
    assert "b" not in found
    assert "m" not in found
    assert "src=" not in text
    assert "http" not in text.replace("http://x", "")


def test_a_plot_is_sound_svg_and_true_to_scale() -> None:
    points = ((10.0, 0.0, 50.0, 100.0), (20.0, 100.0, 100.0, 100.0), (80.0, 0.0, 0.0, 0.0))
    plot = Plot("busy", "%", points, 100.0, 10.0, most=100.0)
    root = ET.fromstring(plots.svg(plot))
    line = next(one for one in root if one.tag == "polyline")
    (x0, y0), (x1, y1) = (
        tuple(map(float, pair.split(","))) for pair in line.attrib["points"].split()
    )
    across = plots.WIDTH - plots.LEFT - plots.RIGHT
    down = plots.HEIGHT - plots.TOP - plots.BOTTOM
    assert x1 - x0 == pytest.approx(across * 10 / 100, abs=0.2)
    assert y0 - y1 == pytest.approx(down * 50 / 100, abs=0.2)
    circle = next(one for one in root if one.tag == "circle")  # the gap is not bridged
    assert float(circle.attrib["cy"]) == pytest.approx(plots.HEIGHT - plots.BOTTOM, abs=0.1)


def test_an_empty_recording_says_so(tmp_path: Path) -> None:
    text = recording.markdown(recording.document(summary_of(tmp_path, [HELLO]), redacted=True))
    assert "Nothing was off" not in text or "N/A" in text
    assert text.startswith("# topsmon")


def test_a_user_s_name_that_is_a_word_is_left_in_sentences() -> None:
    entry = events.ProcessEntry(pid=1, name="python", user="root", command="python train.py")
    redactor = Redactor({"HOME": "/root"})
    redactor.event(
        events.Processes(time=1.0, monotonic=1.0, source="node", device="GPU-1", entries=(entry,))
    )
    assert redactor.text("eps in log, division and square root") == (
        "eps in log, division and square root"
    )


def test_a_report_of_a_damaged_recording_gives_no_all_clear(tmp_path: Path) -> None:
    text = recording.markdown(recording.document(summary_of(tmp_path, [HELLO]), redacted=True))
    path = tmp_path / "a.jsonl"
    path.write_bytes(path.read_bytes() + b'{"type":"finding", "rubbish\n' + path.read_bytes())
    reader = RecordingReader(path)
    damaged = summarise(reader, index_module.build(reader))
    told = recording.markdown(recording.document(damaged, redacted=True))
    assert "Nothing was off." in text
    assert "Nothing was off." not in told
    assert "Nothing was off in what could be read; a part of the recording is missing." in told
