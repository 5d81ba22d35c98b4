"""The colours and characters of the application, whatever it shows."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from textual.app import App
from textual.filter import LineFilter

from topsmon.tui import glyphs, themes
from topsmon.tui.ascii_filter import AsciiFilter
from topsmon.tui.options import ScreenOptions
from topsmon.tui.palette import Palette, derived_variables

STANDARD_COLORS = "standard"


class ThemedApp(App[int]):
    """Has `glyphs`, the loaded themes and their `palette`, as the terminal and the user allow."""

    def __init__(self, options: ScreenOptions) -> None:
        if not options.color:
            os.environ.setdefault("NO_COLOR", "1")
        super().__init__()
        self.options = options
        self.animation_level = "none"
        self.glyphs = glyphs.choose(
            ascii_only=options.ascii_only,
            encoding=getattr(sys.__stderr__, "encoding", None),
            terminal=os.environ.get("TERM", ""),
        )
        self._ascii_filter = AsciiFilter()
        self.loaded_themes = themes.load([themes.packaged_directory(), themes.user_directory()])
        for theme in self.loaded_themes.themes:
            self.register_theme(theme)
        self._theme_problems = list(self.loaded_themes.problems)
        self.theme = self._first_theme(options.theme)
        self.palette = Palette(self.get_css_variables())

    def _first_theme(self, wanted: str | None) -> str:
        if wanted is not None:
            if wanted in self.available_themes:
                return wanted
            known = ", ".join(theme.name for theme in self.loaded_themes.themes)
            self._theme_problems.append(f"no theme {wanted!r}; there are: {known}")
        default = themes.DEFAULT_THEME
        if self.console.color_system == STANDARD_COLORS:
            default = themes.TERMINAL_THEME
        return default if default in self.available_themes else self.theme

    def get_theme_variable_defaults(self) -> dict[str, str]:
        """Return our own variables for themes that do not set them (Textual's own, a user's)."""
        return derived_variables(self.current_theme.to_color_system().generate())

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Return Textual's filters, and ours on a terminal without Unicode."""
        filters = super().get_line_filters()
        return [*filters, self._ascii_filter] if self.glyphs.ascii_only else filters

    def action_next_theme(self) -> None:
        """Use the next of the loaded themes."""
        names = [theme.name for theme in self.loaded_themes.themes]
        if names:
            place = names.index(self.theme) + 1 if self.theme in names else 0
            self.theme = names[place % len(names)]
            self.notify(f"theme {self.theme}", timeout=2, markup=False)
