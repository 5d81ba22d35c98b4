"""The prober's own code: which language, which imports."""

from __future__ import annotations

import ast
import sys

import pytest
from probe_children import PROBES

SOURCES = sorted(PROBES.rglob("*.py"))


def imports(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.module


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_it_is_the_language_of_python_3_9(path):
    text = path.read_text(encoding="utf-8")
    ast.parse(text, feature_version=(3, 9))
    assert "from __future__ import annotations" in text or path.name == "__init__.py"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_it_needs_the_standard_library_and_torch_alone(path):
    names = {name.partition(".")[0] for name in imports(ast.parse(path.read_text("utf-8")))}
    assert names <= set(sys.stdlib_module_names) | {"torch"}


def test_only_the_late_modules_import_torch():
    # hello must be out, and a pause heard, before torch loads.
    early = {"__main__", "__init__", "wire", "control", "schedule", "verdict", "errors", "prober"}
    early |= {"timing", "plan"}
    for path in SOURCES:
        if path.stem in early:
            top = ast.parse(path.read_text("utf-8")).body
            names = {name for node in top for name in imports(ast.Module([node], []))
                     if isinstance(node, (ast.Import, ast.ImportFrom))}  # fmt: skip
            assert "torch" not in names, path.name
