"""Pages that say how topsmon is put to work elsewhere: one Markdown file each, shown by name."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent


def titles() -> dict[str, str]:
    """The pages by name, each with its first heading."""
    return {path.stem: _title(path) for path in sorted(FOLDER.glob("*.md"))}


def page(name: str) -> str:
    """Return a page; KeyError where there is none of that name."""
    if name not in titles():
        raise KeyError(name)
    return (FOLDER / f"{name}.md").read_text(encoding="utf-8")


def _title(path: Path) -> str:
    return path.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ").strip()
