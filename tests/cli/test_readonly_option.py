"""--readonly, on the command line and in the settings file, reaches the screen."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from topsmon.cli import root, screen

COMMAND_MODULE = sys.modules["topsmon.cli.root"]


@pytest.mark.parametrize(
    ("setting", "arguments", "readonly"),
    [
        ("", [], False),
        ("", ["--readonly"], True),
        ("readonly = true", [], True),
        ("readonly = false", ["--readonly"], True),
    ],
)
def test_readonly_reaches_the_screen(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    setting: str,
    arguments: list[str],
    readonly: bool,
) -> None:
    given: dict[str, Any] = {}

    def shown(*_: object, **options: Any) -> int:
        given.update(options)
        return 0

    monkeypatch.setattr(COMMAND_MODULE, "has_screen", lambda: True)
    monkeypatch.setattr(screen, "screen", shown)
    settings = tmp_path / "config.toml"
    settings.write_text(setting)
    done = CliRunner().invoke(root, ["--config", str(settings), *arguments])
    assert done.exit_code == 0, done.output
    assert given["readonly"] is readonly


def test_a_setting_that_is_no_truth_value_is_refused(tmp_path: Path) -> None:
    settings = tmp_path / "config.toml"
    settings.write_text('readonly = "perhaps"')
    done = CliRunner().invoke(root, ["--config", str(settings), "--once"])
    assert done.exit_code != 0
    assert "readonly" in done.output
