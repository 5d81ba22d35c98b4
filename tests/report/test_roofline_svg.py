"""The picture: well-formed, text as text, marks where they belong, labels apart, readable."""

from __future__ import annotations

import itertools
import math
import re
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from roofline_devices import device, h100, measured_h100, probe, processor, rate

from topsmon.report import roofline
from topsmon.report.roofline.svg import STYLE

NAMESPACE = "{http://www.w3.org/2000/svg}"


def parse(line: roofline.Roofline, **size: int) -> ET.Element:
    return ET.fromstring(roofline.svg(line, **size))


def texts(root: ET.Element, kind: str = "") -> list[ET.Element]:
    return [item for item in root.iter(f"{NAMESPACE}text") if kind in item.get("class", "")]


def frame(root: ET.Element) -> tuple[float, float, float, float]:
    (rect,) = [item for item in root.iter(f"{NAMESPACE}rect") if item.get("class") == "frame"]
    x, y, width, height = (float(rect.get(name)) for name in ("x", "y", "width", "height"))
    return x, y, x + width, y + height


@pytest.mark.parametrize("make", [measured_h100, processor, device])
def test_it_is_xml_with_text_as_text(make) -> None:
    root = parse(roofline.build(make()))
    assert root.tag == f"{NAMESPACE}svg"
    words = {item.text for item in texts(root)}
    assert any(text and "roofline" in text for text in words)
    assert not list(root.iter(f"{NAMESPACE}image"))


def test_numbers_and_units_are_in_the_picture() -> None:
    words = {item.text for item in texts(parse(roofline.build(measured_h100())))}
    assert {"989 TFLOPS", "ridge 295 FLOP/byte", "3352 GB/s", "1429 TOPS"} <= words
    assert "arithmetic intensity, FLOP/byte" in words


def test_names_from_outside_cannot_break_it() -> None:
    values = {"rate_ops_per_second": 300e12, "intensity_flops_per_byte": 40.0}
    root = parse(roofline.build(h100(probe("<b>&\"'", values)), simulated="<&>"))
    assert any(item.text == "<b>&\"'" for item in texts(root))


def test_a_point_stands_where_the_ticks_say() -> None:
    root = parse(roofline.build(h100(rate("bf16", 520e12, (2048,) * 3)), ["bf16"]))
    bottom = frame(root)[3]
    (circle,) = [
        item
        for item in root.iter(f"{NAMESPACE}circle")
        if item.get("class") == "gemm" and float(item.get("cy")) < bottom
    ]
    x_ticks, y_ticks = {}, {}
    for item in texts(root, "muted"):
        if re.fullmatch(r"[0-9.e-]+", item.text or ""):
            if item.get("text-anchor") == "middle":
                x_ticks[float(item.text)] = float(item.get("x"))
            else:
                y_ticks[float(item.text)] = float(item.get("y")) - 13 * 0.35

    def place(ticks: dict[float, float], value: float) -> float:
        (first, at_first), (last, at_last) = min(ticks.items()), max(ticks.items())
        share = math.log(value / first) / math.log(last / first)
        return at_first + (at_last - at_first) * share

    assert float(circle.get("cx")) == pytest.approx(place(x_ticks, 2048 / 3), abs=0.5)
    assert float(circle.get("cy")) == pytest.approx(place(y_ticks, 520.0), abs=0.5)
    assert all(f"{number:e}"[0] in "125" for number in (*x_ticks, *y_ticks))
    # Larger numbers stand farther right and higher up.
    assert list(x_ticks.values()) == [x_ticks[number] for number in sorted(x_ticks)]
    assert x_ticks[min(x_ticks)] < x_ticks[max(x_ticks)]
    assert y_ticks[min(y_ticks)] > y_ticks[max(y_ticks)]


def label_boxes(root: ET.Element) -> list[tuple[float, float, float, float]]:
    """Boxes of the labels in the plot, taking 0.55 of the height for a letter's mean width."""
    boxes = []
    for item in texts(root, "over"):
        x, y = float(item.get("x")), float(item.get("y"))
        boxes.append((x, y - 11, x + len(item.text) * 13 * 0.55, y + 3))
    return boxes


@pytest.mark.parametrize("make", [measured_h100, processor])
@pytest.mark.parametrize("size", [(480, 320), (960, 640), (1600, 1000)])
def test_labels_do_not_overlap_and_stay_in_the_plot(make, size) -> None:
    root = parse(roofline.build(make()), width=size[0], height=size[1])
    left, top, right, bottom = frame(root)
    boxes = label_boxes(root)
    assert boxes
    for box in boxes:
        assert left <= box[0] < box[2] <= right
        assert top <= box[1] < box[3] <= bottom
    for one, other in itertools.combinations(boxes, 2):
        apart = one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]
        assert apart, (one, other)


@settings(max_examples=30, deadline=None)
@given(
    points=st.lists(st.tuples(st.floats(1e-6, 1e9), st.floats(1e6, 1e16)), min_size=1, max_size=5),
    bandwidth=st.none() | st.floats(1e6, 1e16),
)
def test_any_points_lie_in_the_plot(points, bandwidth) -> None:
    seen = [
        probe(f"probe {number}", {"intensity_flops_per_byte": x, "rate_ops_per_second": y})
        for number, (x, y) in enumerate(points)
    ]
    line = roofline.build(h100(*seen, memory_bandwidth_bytes_per_second=bandwidth))
    root = parse(line)
    left, top, right, bottom = frame(root)
    squares = [item for item in root.iter(f"{NAMESPACE}polygon") if item.get("class") == "probe"]
    inside = 0
    for square in squares:
        corners = [tuple(map(float, pair.split(","))) for pair in square.get("points").split()]
        x = sum(corner[0] for corner in corners) / 4
        y = sum(corner[1] for corner in corners) / 4
        inside += left - 0.1 <= x <= right + 0.1 and top - 0.1 <= y <= bottom + 0.1
    assert inside == len(points)
    assert len(squares) == 2 * len(points)


def luminance(color: str) -> float:
    """Relative luminance (WCAG 2.2)."""
    channels = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in channels
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    lighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_contrast_on_light_and_on_dark_pages(scheme: str) -> None:
    light, dark = STYLE.split("@media (prefers-color-scheme: dark)")
    rules = light if scheme == "light" else dark
    fills = dict(re.findall(r"\.([a-z-]+) \{ fill: (#[0-9a-f]{6}) \}", rules))
    for name, color in fills.items():
        if name == "text" or name == "muted" or name.endswith("-text"):
            assert contrast(color, fills["page"]) >= 4.5, name
    strokes = dict(re.findall(r"\.([a-z-]+) \{ stroke: (#[0-9a-f]{6})", rules))
    for name in ("rated", "held", "measured", "cache"):
        assert contrast(strokes[name], fills["page"]) >= 3, name
