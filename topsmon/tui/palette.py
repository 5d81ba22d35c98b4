"""Roles and their styles in the current theme.

Panels name roles ("muted", "warn", ...); this is the only place that turns a role into a colour.
A role may carry the background of the row under the cursor: "text@cursor".
"""

from __future__ import annotations

from collections.abc import Mapping

from rich.style import Style
from textual.color import Color, ColorParseError

VARIABLE_PREFIX = "topsmon-"
ROLE_VARIABLES = ("muted", "faint", "spark", "good", "series-2", "series-3", "cursor")
"""Own colours that a theme file may set under [topsmon]."""

ANSI_VARIABLES = {"ansi-background": "ansi_black", "ansi-foreground": "ansi_white"}
"""Variables that Textual's style sheets use and that its generator leaves out for ansi themes."""

_CURSOR = "@cursor"


def derived_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Return what a theme does not set itself: our own colours, derived from its base colours."""
    foreground = _color(variables, "foreground")
    background = _color(variables, "background")
    extra = {name: value for name, value in ANSI_VARIABLES.items() if name not in variables}
    if foreground.ansi is not None or background.ansi is not None:
        chosen = {
            "muted": variables["foreground"],
            "faint": "ansi_bright_black",
            "spark": variables["primary"],
            "good": variables["success"],
            "series-2": variables["accent"],
            "series-3": variables["secondary"],
            "cursor": variables["background"],
        }
    else:
        chosen = {
            "muted": background.blend(foreground, 0.62).hex,
            "faint": background.blend(foreground, 0.25).hex,
            "spark": background.blend(_color(variables, "primary"), 0.65).hex,
            "good": _color(variables, "success").hex,
            "series-2": _color(variables, "accent").hex,
            "series-3": _color(variables, "secondary").hex,
            "cursor": background.blend(foreground, 0.10).hex,
        }
    return extra | {VARIABLE_PREFIX + name: value for name, value in chosen.items()}


class Palette:
    """Styles of all roles, built from a theme's variables."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        merged = {**derived_variables(variables), **variables}
        own = {name: _color(merged, VARIABLE_PREFIX + name) for name in ROLE_VARIABLES}
        base = {
            name: _color(merged, name)
            for name in ("foreground", "background", "primary", "warning", "error", "success")
        }
        self._background = base["background"]
        self._cursor = own["cursor"]
        plain = {
            "text": base["foreground"],
            "muted": own["muted"],
            "faint": own["faint"],
            "title": base["primary"],
            "key": base["primary"],
            "ok": own["muted"],
            "info": base["primary"],
            "warn": base["warning"],
            "fail": base["error"],
            "good": own["good"],
            "spark": own["spark"],
            "series-1": base["primary"],
            "series-2": own["series-2"],
            "series-3": own["series-3"],
        }
        self._colors = {**plain, "strong": base["foreground"]}
        self._bold = frozenset({"strong", "warn", "fail", "title"})
        self._badges = {
            "badge-ok": base["success"],
            "badge-info": base["primary"],
            "badge-warn": base["warning"],
            "badge-fail": base["error"],
            "tab": base["primary"],
        }
        self._styles: dict[str, Style] = {}

    def style(self, role: str) -> Style:
        """Return the style of a role; raises KeyError for a role that does not exist."""
        style = self._styles.get(role)
        if style is None:
            style = self._styles[role] = self._make(role)
        return style

    def _make(self, role: str) -> Style:
        if role in self._badges:
            return self._badge(self._badges[role])
        name, cursor, _ = role.partition(_CURSOR)
        background = self._cursor if cursor else self._background
        bold = name in self._bold
        if cursor and background.ansi is not None and background == self._background:
            bold = True
        return Style(
            color=self._colors[name].rich_color, bgcolor=background.rich_color, bold=bold or None
        )

    def _badge(self, color: Color) -> Style:
        """A filled word. A terminal's own palette is reversed, since its contrast is unknown."""
        if color.ansi is not None or self._background.ansi is not None:
            return Style(color=color.rich_color, bold=True, reverse=True)
        black, white = Color(0, 0, 0), Color(255, 255, 255)
        text = max(black, white, key=lambda ink: contrast(ink, color))
        return Style(color=text.rich_color, bgcolor=color.rich_color, bold=True)


def contrast(first: Color, second: Color) -> float:
    """Contrast ratio of two colours, 1 to 21 (WCAG 2.2, success criterion 1.4.3)."""
    lighter, darker = sorted((_luminance(first), _luminance(second)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def _luminance(color: Color) -> float:
    """Relative luminance (WCAG 2.2)."""

    def linear(channel: int) -> float:
        share = channel / 255
        return float(share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4)

    return 0.2126 * linear(color.r) + 0.7152 * linear(color.g) + 0.0722 * linear(color.b)


def _color(variables: Mapping[str, str], name: str) -> Color:
    try:
        return Color.parse(variables[name])
    except (KeyError, ColorParseError):
        return Color.parse("ansi_default")
