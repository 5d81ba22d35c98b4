"""Themes: all shipped ones are readable, a broken file is named and costs nothing else."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.color import Color as RichColor
from rich.color import ColorSystem
from screen_demo import eight
from textual.color import Color
from textual.theme import BUILTIN_THEMES, Theme

from topsmon.tui import themes
from topsmon.tui.app import TopsmonApp
from topsmon.tui.palette import VARIABLE_PREFIX, Palette, contrast

SHIPPED = themes.load([themes.packaged_directory()])
TRUECOLOR = [theme for theme in SHIPPED.themes if not theme.ansi]
TEXTS = ("foreground", "primary", "warning", "error")


def name_of(theme: Theme) -> str:
    return theme.name


def test_the_shipped_themes_load() -> None:
    assert SHIPPED.problems == ()
    names = {theme.name for theme in SHIPPED.themes}
    assert len(names) >= 8
    assert {themes.DEFAULT_THEME, themes.TERMINAL_THEME, "colour-safe", "high-contrast"} <= names
    assert any(not theme.dark for theme in SHIPPED.themes)


def test_contrast_is_that_of_wcag() -> None:
    assert contrast(Color.parse("#000000"), Color.parse("#ffffff")) == pytest.approx(21)
    assert contrast(Color.parse("#777777"), Color.parse("#ffffff")) == pytest.approx(4.48, abs=0.01)


def exact(color: str) -> Color:
    return Color.parse(color)


def of_256(color: str) -> Color:
    """The colour as Rich sends it to a terminal of 256 colours."""
    rounded = RichColor.parse(color).downgrade(ColorSystem.EIGHT_BIT)
    return Color.parse(rounded.get_truecolor().hex)


@pytest.mark.parametrize("shown", [exact, of_256])
@pytest.mark.parametrize("theme", TRUECOLOR, ids=name_of)
def test_text_is_readable(theme: Theme, shown: Callable[[str], Color]) -> None:
    """4.5:1 is the limit of WCAG 2.2 AA for text, 7:1 that of AAA, 3:1 that for graphics."""
    background = shown(theme.background or "")
    cursor = shown(theme.variables[VARIABLE_PREFIX + "cursor"])
    texts = [getattr(theme, name) for name in TEXTS] + [theme.variables[VARIABLE_PREFIX + "muted"]]
    limit = 7.0 if theme.name.startswith("high-contrast") else 4.5
    for text in texts:
        assert contrast(shown(text), background) >= limit
    for text in (theme.foreground, theme.warning, theme.error):
        assert contrast(shown(text or ""), cursor) >= 4.0
    for name in ("spark", "good", "series-2", "series-3"):
        color = shown(theme.variables[VARIABLE_PREFIX + name])
        assert contrast(color, background) >= 3.0


@pytest.mark.parametrize("theme", TRUECOLOR, ids=name_of)
def test_colours_lie_on_the_256_colour_cube(theme: Theme) -> None:
    """A terminal without true colour shows what the file says; Rich moves light greys one step."""
    own = [value for key, value in theme.variables.items() if key.startswith(VARIABLE_PREFIX)]
    base = [getattr(theme, name) for name in (*themes.REQUIRED_COLORS, *themes.OPTIONAL_COLORS)]
    for value in filter(None, own + base):
        color, shown = Color.parse(value), of_256(value)
        step = 10 if color.r == color.g == color.b else 0
        assert abs(color.r - shown.r) <= step
        assert abs(color.g - shown.g) <= step
        assert abs(color.b - shown.b) <= step


@pytest.mark.parametrize("theme", [*SHIPPED.themes, *BUILTIN_THEMES.values()], ids=name_of)
def test_every_role_has_a_style_in_every_theme(
    theme: Theme, make_app: Callable[..., TopsmonApp]
) -> None:
    app = make_app(eight(ticks=1, count=1))
    app.register_theme(theme)
    app.theme = theme.name
    palette = Palette(app.get_css_variables())
    for role in ("text", "muted", "faint", "warn", "fail@cursor", "badge-warn", "spark", "tab"):
        assert palette.style(role).color is not None
    with pytest.raises(KeyError):
        palette.style("no such role")


def write(directory: Path, name: str, text: str) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / name).write_text(text)


GOOD = """
name = "mine"
dark = true
[colors]
primary = "#5fafd7"
warning = "#d7af00"
error = "#ff5f5f"
success = "#87af5f"
foreground = "#d0d0d0"
background = "#121212"
"""


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("name = ", "not valid TOML"),
        ("dark = true", "'name'"),
        (GOOD.replace('"#d0d0d0"', '"mauve-ish"'), "foreground = 'mauve-ish' is no colour"),
        (GOOD.replace('"#d0d0d0"', "7"), "foreground = 7 is no colour"),
        (GOOD.replace('warning = "#d7af00"', ""), "no 'warning'"),
        (GOOD.replace("primary", "primry"), "unknown entry 'primry'"),
        (GOOD + "[topsmon]\nglow = '#ffffff'", "unknown entry 'glow'"),
        (GOOD.replace("dark = true", "dark = 1"), "must be true or false"),
        (GOOD.replace('"#d0d0d0"', '"ansi_red"'), "does not go without ansi = true"),
        (GOOD.replace('"#d0d0d0"', '"#d0d0d080"'), "not opaque"),
        (GOOD.replace("[colors]", "[colours]"), "unknown entry 'colours'"),
        ("\xff\xfe", "not valid TOML"),
    ],
)
def test_a_broken_theme_is_named_and_skipped(tmp_path: Path, text: str, complaint: str) -> None:
    write(tmp_path, "good.toml", GOOD)
    (tmp_path / "bad.toml").write_bytes(text.encode("latin-1"))
    loaded = themes.load([tmp_path])
    assert [theme.name for theme in loaded.themes] == ["mine"]
    (problem,) = loaded.problems
    assert problem.startswith("theme bad.toml skipped: ")
    assert complaint in problem


def test_a_missing_directory_is_no_problem(tmp_path: Path) -> None:
    assert themes.load([tmp_path / "none"]) == themes.LoadedThemes((), ())


def test_a_users_theme_replaces_a_shipped_one(tmp_path: Path) -> None:
    write(tmp_path, "x.toml", GOOD.replace('"mine"', '"dusk"').replace("#5fafd7", "#ff00ff"))
    loaded = themes.load([themes.packaged_directory(), tmp_path])
    (dusk,) = (theme for theme in loaded.themes if theme.name == "dusk")
    assert dusk.primary == "#ff00ff"


def test_packaged_themes_come_before_those_of_a_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "site" / "topsmon" / "tui" / "themes.py"
    (tmp_path / "site" / "themes").mkdir(parents=True)
    module.parent.mkdir(parents=True)
    monkeypatch.setattr(themes, "__file__", str(module))
    assert themes.packaged_directory() == tmp_path / "site" / "themes"
    (tmp_path / "site" / "topsmon" / "themes").mkdir()
    assert themes.packaged_directory() == tmp_path / "site" / "topsmon" / "themes"


async def test_a_broken_theme_is_told_on_the_screen(open_screen, tmp_path: Path) -> None:
    write(tmp_path / "themes", "bad.toml", "name = ")
    async with open_screen(eight(ticks=1, count=1), theme="nowhere") as (app, _):
        messages = [notification.message for notification in app._notifications]
        assert any(message.startswith("theme bad.toml skipped") for message in messages)
        assert any("no theme 'nowhere'" in message for message in messages)
        assert app.theme == themes.DEFAULT_THEME


@pytest.mark.parametrize("system", ["standard", "256"])
async def test_sixteen_colours_get_the_terminals_own(
    open_screen, monkeypatch: pytest.MonkeyPatch, system: str
) -> None:
    monkeypatch.setattr("textual.constants.COLOR_SYSTEM", system)
    async with open_screen(eight(ticks=1, count=1)) as (app, _):
        assert app.theme == ("terminal" if system == "standard" else "dusk")


async def test_all_themes_draw(open_screen) -> None:
    async with open_screen(eight(ticks=4, count=2)) as (app, pilot):
        for name in app.available_themes:
            app.theme = name
            await pilot.pause()
            assert "topsmon" in app.export_screenshot()


def test_only_regular_files_of_a_sensible_size_are_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.toml")
    (tmp_path / "endless.toml").symlink_to("/dev/zero")
    (tmp_path / "huge.toml").write_bytes(b"#" * (themes.MAX_FILE_BYTES + 1))
    loaded = themes.load([tmp_path])
    assert loaded.themes == ()
    assert loaded.problems == (
        "theme endless.toml skipped: endless.toml is not a regular file",
        f"theme huge.toml skipped: larger than {themes.MAX_FILE_BYTES} bytes",
        "theme pipe.toml skipped: pipe.toml is not a regular file",
    )
