"""Event lines as the parent reads them."""

from __future__ import annotations

import os

import pytest
from probe_children import PROBES, decode

import topsmon
from topsmon import events
from topsmon.probes import wire


def lines_of(action):
    lines = []
    action(wire.Writer("GPU-1", lines.append))
    return lines


def test_the_schema_is_that_of_the_vocabulary():
    assert wire.SCHEMA == events.SCHEMA_VERSION


def test_hello_says_who_speaks():
    (line,) = lines_of(lambda writer: writer.hello())
    hello = decode(line)
    assert isinstance(hello, events.Hello)
    assert (hello.role, hello.pid, hello.version) == ("prober", os.getpid(), topsmon.__version__)
    assert hello.source == f"{os.uname().nodename}/GPU-1"


@pytest.mark.parametrize(
    ("tag", "fields", "kind"),
    [
        ("prober-ready", {"torch_version": "2.4.1", "python": "/p", "notes": ["a"]}, "ProberReady"),
        ("probe-started", {"precision": "fp32"}, "ProbeStarted"),
        ("unsupported", {"precision": "fp8", "reason": "because"}, "ProbeUnsupported"),
        ("prober-idle", {"reason": "paused"}, "ProberIdle"),
    ],
)
def test_events_have_the_names_of_the_vocabulary(tag, fields, kind):
    (line,) = lines_of(lambda writer: writer.emit(tag, **fields))
    event = decode(line)
    assert type(event).__name__ == kind
    assert event.device == "GPU-1"


def test_what_is_no_number_becomes_null():
    (line,) = lines_of(
        lambda writer: writer.emit(
            "rate", precision="fp32", rate_ops_per_second=float("nan"), cpu_share=float("inf")
        )
    )
    event = decode(line)
    assert event.rate_ops_per_second is None
    assert event.cpu_share is None


def test_text_of_any_kind_stays_on_one_line():
    (line,) = lines_of(
        lambda writer: writer.emit("prober-idle", reason="a\nb\x1b[31m \u2028 \ud800 é")
    )
    assert line.count(b"\n") == 1
    assert line.isascii()


def test_the_version_is_unknown_rather_than_wrong(monkeypatch, tmp_path):
    monkeypatch.setattr(wire, "__file__", str(tmp_path / "probes" / "wire.py"))
    assert wire.version() == "unknown"


def test_probes_lie_where_the_parent_looks_for_them():
    assert (PROBES / "__main__.py").is_file()
