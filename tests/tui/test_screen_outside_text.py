"""Text from outside is shown, never obeyed: no markup, no escape code, no second line."""

from __future__ import annotations

import json

import pytest
from rich.cells import cell_len
from screen_demo import GIB, NOW, ceilings, fold, gpu, host, rate, sample, stamp
from screen_text import OpenScreen, text_of

from topsmon import events
from topsmon.state import State

HOSTILE = "python train.py [/home/u] [bold]x\x1b[2J\x1b]0;title\x07\nline2\r\t[@click=app.quit]"
SURROGATES = "train\udcff\udcfe 训练🚀 \u202eabc"
EVIL = (HOSTILE, SURROGATES, "[", "[/]", "x" * 120_000, "", "é\u0301", "${HOME} $primary")


def machine(text: str) -> tuple[State, tuple[events.Finding, ...]]:
    """A machine in which every text that can come from outside is `text`."""
    device = gpu(0, name=text, architecture=text, pci_bus_id=text)
    entry = events.ProcessEntry(pid=12, name=text, user=text, command=text, memory_bytes=GIB)
    finding = events.Finding(
        **stamp(),
        code="x",
        severity="fail",
        word=text,
        title=text,
        device=device.device,
        cause=text,
        evidence=(text,),
        remedy=text,
        command=text,
        basis=text,
    )
    state = fold(
        [
            events.Hello(
                **stamp(), version=text, schema=1, role="poller", pid=1, simulated=text or None
            ),
            host(hostname=text, driver_version=text, cuda_version=text, cpu_name=text),
            device,
            ceilings(device.device, {"bf16": 1e15}, matched_by=text, clock_source=text,
                     absent={"fp4": text}, notes=(text,)),
            sample(device.device, unavailable={"busy_ratio": text}, busy_ratio=None),
            events.Processes(**stamp(), device=device.device, entries=(entry,)),
            rate(device.device, "bf16", 7e14, valid=False, invalid_reason=text, method=text,
                 note=text),
            events.ProbeUnsupported(
                **stamp(), device=device.device, precision="fp8", reason=text
            ),
            events.ProberReady(
                **stamp(), device=device.device, torch_version=text, python=text, name=text
            ),
            events.ProberIdle(**stamp(), device=device.device, reason=text),
            events.Problem(**stamp(), subject="nvml", code=text or "x", message=text),
            events.DeviceStatus(
                **stamp(), device=device.device, condition="ok", detail=text, since=NOW
            ),
        ]
    )  # fmt: skip
    return state, (finding,)


SIZES = [(20, 5), (50, 20), (80, 24), (120, 40), (200, 60)]


@pytest.mark.parametrize(
    ("number", "size"),
    [(number, (120, 40)) for number in range(len(EVIL))]
    + [(number, size) for number in (0, 1) for size in SIZES if size != (120, 40)],
)
async def test_hostile_text_is_only_text(
    open_screen: OpenScreen, number: int, size: tuple[int, int]
) -> None:
    text = EVIL[number]
    state, findings = machine(text)
    async with open_screen(state, findings, size) as (app, pilot):
        for key in (None, "enter"):
            if key:
                await pilot.press(key)
                await pilot.pause()
            lines = text_of(app)
            assert len(lines) == size[1]
            for line in lines:
                assert line.isprintable() or not any(ord(sign) < 32 for sign in line)
                assert cell_len(line) == size[0]
                line.encode("utf-8")
        assert app.is_running


async def test_markup_is_shown_as_it_is(open_screen: OpenScreen) -> None:
    state, findings = machine(HOSTILE)
    async with open_screen(state, findings, (200, 60)) as (app, _):
        text = "\n".join(text_of(app))
        assert "python train.py [/home/u] [bold]x\N{REPLACEMENT CHARACTER}[2J" in text
        picture = app.export_screenshot()
        assert "\x1b" not in picture


async def test_an_export_of_hostile_text_is_valid(open_screen: OpenScreen) -> None:
    once = pytest.importorskip("topsmon.report.once")
    state, findings = machine(SURROGATES)
    async with open_screen(state, findings, (120, 40)) as (app, _):
        json.loads(once.to_json(app.view.state, app.view.findings, NOW).decode("utf-8"))
        app.export_screenshot().encode("utf-8")


@pytest.mark.parametrize(
    ("size", "key"),
    [(size, "") for size in SIZES]
    + [((80, 24), key) for key in ("question_mark", "enter", "B", "ctrl+p", "m")],
)
async def test_ascii_means_ascii(open_screen: OpenScreen, size: tuple[int, int], key: str) -> None:
    state, findings = machine(SURROGATES)
    async with open_screen(state, findings, size, ascii_only=True) as (app, pilot):
        if key:
            await pilot.press(key)
        await pilot.pause(0.05)
        for line in text_of(app):
            assert line.isascii()
            assert len(line) == size[0]
