"""The roofline panel in an application of its own."""

from __future__ import annotations

from dataclasses import replace

import screen_demo as demo
from textual.app import App, ComposeResult

from topsmon import events
from topsmon.state import State
from topsmon.tui.cells import line_width, plain_text
from topsmon.tui.glyphs import ASCII, UTF8
from topsmon.tui.palette import Palette, derived_variables
from topsmon.tui.roofline_view import ROLES, RooflineView
from topsmon.tui.view import View

GPU = "GPU-00000000"


def view_of(state: State, selected: str | None = GPU, precision: str = "bf16", **changes) -> View:
    values = {"state": state, "findings": (), "now": demo.NOW, "wall": demo.WALL, "interval": 0.5}
    return View(**values, selected=selected, precision=precision, **changes)


class Host(App[None]):
    """What a panel needs of an application, and no more."""

    CSS = "RooflineView { width: 100%; height: 100%; }"

    def __init__(self, view: View, framed: bool = False) -> None:
        super().__init__()
        self.view = view
        self.framed = framed
        self.palette = Palette(self.get_css_variables())

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return derived_variables(self.current_theme.to_color_system().generate())

    def compose(self) -> ComposeResult:
        panel = RooflineView(id="roofline")
        panel.framed = self.framed
        yield panel

    @property
    def panel(self) -> RooflineView:
        return self.query_one(RooflineView)

    def painted(self) -> list[str]:
        return [self.panel.render_line(row).text for row in range(self.size.height)]


async def test_the_panel_fills_an_80x24_screen_with_plot_and_numbers() -> None:
    host = Host(view_of(demo.eight(count=1, capped=None, ticks=1)))
    async with host.run_test(size=(80, 24)):
        painted = host.painted()
    assert len(painted) == 24
    assert all(len(row) == 80 for row in painted)
    text = "\n".join(painted)
    assert "roofline  GPU 0 BF16" in painted[0]
    assert "TFLOPS" in text
    assert "FLOP/byte" in text
    assert "BF16 rated" in text
    assert "989 TFLOPS" in text


async def test_the_frame_holds_it_at_120x40() -> None:
    host = Host(view_of(demo.eight(count=1, capped=None, ticks=1)), framed=True)
    async with host.run_test(size=(120, 40)):
        painted = host.painted()
    assert painted[0].startswith("╭─ roofline  GPU 0 BF16 ")
    assert painted[-1].startswith("╰")
    assert all(row.startswith("│") and row.endswith("│") for row in painted[1:-1])
    assert any("DRAM rated" in row and "3350 GB/s" in row for row in painted)


async def test_the_selected_precision_is_the_one_in_full() -> None:
    host = Host(view_of(demo.eight(count=1, capped=None, ticks=1), precision="fp32"))
    async with host.run_test(size=(120, 40)) as pilot:
        assert any("FP32 held" in row for row in host.painted())
        host.view = replace(host.view, precision="int8")
        host.panel.show(host.view)
        await pilot.pause()
        text = "\n".join(host.painted())
    assert "INT8 held" in text
    assert "OP/byte" in text
    assert "FP32 held" not in text


async def test_a_new_measurement_moves_the_lines() -> None:
    state = demo.eight(count=1, capped=None, ticks=1)
    host = Host(view_of(state))
    async with host.run_test(size=(120, 40)) as pilot:
        before = host.painted()
        host.panel.show(host.view)
        await pilot.pause()
        assert host.painted() == before
        state.apply(demo.rate(GPU, "bf16", 850e12, shape=(4096,) * 3), demo.NOW)
        host.panel.show(host.view)
        await pilot.pause()
        after = host.painted()
    assert any("850 TFLOPS" in row and "1365 FLOP/byte" in row for row in after)


async def test_ascii_terminals_get_ascii() -> None:
    host = Host(view_of(demo.eight(count=1, capped=None, ticks=1), glyphs=ASCII))
    async with host.run_test(size=(100, 30)):
        painted = host.painted()
    assert all(row.isascii() for row in painted)
    assert any("/" in row for row in painted)


async def test_a_cpu_says_what_its_slanted_roof_is() -> None:
    state = demo.cpu_only(ticks=1)
    state.apply(
        events.ProbeResult(
            **demo.stamp(), device="cpu", probe="memory", values={"copy_bytes_per_second": 21e9}
        ),
        demo.NOW,
    )
    host = Host(view_of(state, "cpu", "fp32"))
    async with host.run_test(size=(120, 40)):
        text = "\n".join(host.painted())
    assert "DRAM copy measured" in text
    assert "No rated memory bandwidth" in text


async def test_without_room_for_a_plot_the_numbers_stay() -> None:
    host = Host(view_of(demo.eight(count=1, capped=None, ticks=1)))
    async with host.run_test(size=(48, 10)):
        painted = host.painted()
    assert any("BF16 rated" in row and "989 TFLOPS" in row for row in painted)
    assert any("more lines: topsmon roofline" in row for row in painted)


async def test_no_device_is_said() -> None:
    host = Host(view_of(State(), None))
    async with host.run_test(size=(80, 24)):
        assert any("no device yet" in row for row in host.painted())


def test_every_size_is_kept() -> None:
    view = view_of(demo.eight(count=1, capped=None, ticks=1), glyphs=UTF8)
    panel = RooflineView(id="roofline")
    for width, height in ((20, 3), (60, 16), (61, 17), (80, 19), (116, 33), (196, 53), (300, 90)):
        lines = panel.lines(view, width, height)
        assert len(lines) <= height
        assert all(line_width(line) <= width for line in lines), (width, height)
        assert "".join(plain_text(line) for line in lines).strip()


def test_every_role_has_a_style() -> None:
    names = ("foreground", "background", "primary", "secondary", "accent", "success", "warning")
    palette = Palette(dict.fromkeys((*names, "error"), "#808080"))
    for role in ROLES.values():
        palette.style(role)
