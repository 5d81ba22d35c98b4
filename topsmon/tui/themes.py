"""Theme files: the packaged ones and the user's, one TOML file a theme.

A file has `name`, `dark`, a table [colors] with Textual's base colours and a table [topsmon] with
own ones. A broken file is named and skipped.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from textual.color import Color, ColorParseError
from textual.theme import BUILTIN_THEMES, Theme

from topsmon.files import read_regular
from topsmon.tui.palette import ROLE_VARIABLES, VARIABLE_PREFIX

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DEFAULT_THEME = "dusk"
TERMINAL_THEME = "terminal"
"""Uses the terminal's own sixteen colours; the default where there are no more."""

MAX_FILE_BYTES = 1 << 16

REQUIRED_COLORS = ("primary", "warning", "error", "success", "foreground", "background")
OPTIONAL_COLORS = ("secondary", "accent", "surface", "panel", "boost")
_TOP_LEVEL = frozenset({"name", "dark", "ansi", "colors", "topsmon"})


class ThemeError(ValueError):
    """A theme file that cannot be used; the message says why."""


@dataclass(frozen=True)
class LoadedThemes:
    """Usable themes in order, and what is wrong with the others, by file."""

    themes: tuple[Theme, ...]
    problems: tuple[str, ...]


def packaged_directory() -> Path:
    """Where the shipped themes are: inside the installed package, else at the top of a checkout."""
    package = Path(__file__).parent.parent
    inside = package / "themes"
    return inside if inside.is_dir() else package.parent / "themes"


def user_directory() -> Path:
    """Where a user puts own themes."""
    import platformdirs

    return platformdirs.user_config_path("topsmon") / "themes"


def names() -> list[str]:
    """Return the names of all themes that can be shown: files, then Textual's own."""
    files = load([packaged_directory(), user_directory()]).themes
    return list(dict.fromkeys([*(theme.name for theme in files), *BUILTIN_THEMES]))


def load(directories: Iterable[Path]) -> LoadedThemes:
    """Read all theme files of the directories; a later theme replaces an earlier of its name."""
    themes: dict[str, Theme] = {}
    problems: list[str] = []
    for directory in directories:
        try:
            paths = sorted(directory.glob("*.toml"))
        except OSError as error:
            problems.append(f"{directory}: {error.strerror or error}")
            continue
        for path in paths:
            theme, problem = _try(path)
            if theme is not None:
                themes[theme.name] = theme
            else:
                problems.append(f"theme {path.name} skipped: {problem}")
    return LoadedThemes(tuple(themes.values()), tuple(problems))


def _try(path: Path) -> tuple[Theme | None, str]:
    try:
        return read(path), ""
    except ThemeError as error:
        return None, str(error)


def read(path: Path) -> Theme:
    """Read one theme file; raises ThemeError."""
    try:
        content = read_regular(path, MAX_FILE_BYTES + 1)
        if len(content) > MAX_FILE_BYTES:
            raise ThemeError(f"larger than {MAX_FILE_BYTES} bytes")
        document = tomllib.loads(content.decode())
    except OSError as error:
        raise ThemeError(error.strerror or str(error)) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ThemeError(f"not valid TOML ({error})") from error
    return parse(document)


def parse(document: dict[str, Any]) -> Theme:
    """Turn a theme file's content into a theme; raises ThemeError naming the wrong entry."""
    unknown = sorted(set(document) - _TOP_LEVEL)
    if unknown:
        raise ThemeError(f"unknown entry {unknown[0]!r}")
    name = document.get("name")
    if not isinstance(name, str) or not name.isprintable() or not 0 < len(name) <= 40:
        raise ThemeError("'name' must be a text of 1 to 40 characters")
    dark, ansi = document.get("dark", True), document.get("ansi", False)
    if not isinstance(dark, bool) or not isinstance(ansi, bool):
        raise ThemeError("'dark' and 'ansi' must be true or false")
    colors = _colors(document, "colors", (*REQUIRED_COLORS, *OPTIONAL_COLORS), ansi=ansi)
    missing = [color for color in REQUIRED_COLORS if color not in colors]
    if missing:
        raise ThemeError(f"[colors] has no {missing[0]!r}")
    own = _colors(document, "topsmon", ROLE_VARIABLES, ansi=ansi)
    variables = {VARIABLE_PREFIX + role: value for role, value in own.items()}
    return Theme(
        name=name,
        dark=dark,
        ansi=ansi,
        variables=variables,
        primary=colors["primary"],
        warning=colors["warning"],
        error=colors["error"],
        success=colors["success"],
        foreground=colors["foreground"],
        background=colors["background"],
        secondary=colors.get("secondary"),
        accent=colors.get("accent"),
        surface=colors.get("surface"),
        panel=colors.get("panel"),
        boost=colors.get("boost"),
    )


def _colors(
    document: dict[str, Any], table: str, allowed: tuple[str, ...], *, ansi: bool
) -> dict[str, str]:
    entries = document.get(table, {})
    if not isinstance(entries, dict):
        raise ThemeError(f"{table!r} must be a table")
    for key, value in entries.items():
        if key not in allowed:
            raise ThemeError(f"[{table}] has an unknown entry {key!r}")
        try:
            color = Color.parse(value)
        except (ColorParseError, TypeError, AttributeError) as error:
            raise ThemeError(f"[{table}] {key} = {value!r} is no colour") from error
        if color.a < 1:
            raise ThemeError(f"[{table}] {key} = {value!r} is not opaque")
        if (color.ansi is not None) != ansi:
            kind = "with" if ansi else "without"
            raise ThemeError(f"[{table}] {key} = {value!r} does not go {kind} ansi = true")
    return dict(entries)
