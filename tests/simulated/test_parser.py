"""Wrong scenario files: every mistake is one line that names the place and what to do."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topsmon.simulated import SimulationError, load, scenario, table

GOOD: dict[str, Any] = {"title": "t", "description": "d", "expected": "ok"}


def check(content: dict[str, Any]) -> list[str]:
    return list(table.lines(scenario.parse(content, "mine")))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"titel": "x"}, "unknown field `titel`"),
        ({"title": 3}, "`$.title`"),
        ({"look_seconds": -1}, "`$.look_seconds`"),
        ({"count": 65}, "count must be 0..64"),
        ({"count": -1}, "count must be 0..64"),
        ({"driver": {"symbols": 999}}, "`$.driver.symbols`"),
        ({"driver": {"cuda": "thirteen"}}, "driver.cuda must look like 13.0"),
        ({"library": "none"}, "`$.library`"),
        ({"device": {"wattage": 3}}, "devices.0: unknown field 'wattage'"),
        ({"device": {"power_watts": "3"}}, "devices.0.power_watts: expected a number"),
        ({"device": {"name": 3}}, "devices.0.name: expected text"),
        ({"device": {"name": "\ud800"}}, "devices.0.name: write a byte"),
        ({"device": {"compute_capability": 9.0}}, "text like '9.0', not 9.0"),
        ({"device": {"pci_device": "xyz"}}, "text like '2330', not 'xyz'"),
        ({"device": {"pci_subsystem": "10DE"}}, "text like '10DE:16C1'"),
        ({"device": {"processes": [{"pid": -4}]}}, "devices.0.processes"),
        ({"device": {"processes": [{"pid": 4, "kind": "game"}]}}, "`$[0].kind`"),
        ({"device": {"xids": [{"xid": 79}]}}, "devices.0.xids"),
        ({"device": {"xids": [{"xid": 1, "time": 3}, {"xid": 2, "time": 3}]}}, "times must rise"),
        ({"device": {"links": {"x": {}}}}, "devices.0.links: expected fields by number"),
        ({"device": {"links": 3}}, "devices.0.links: expected fields by number"),
        ({"device": {"links": {"1": {"fan_percent": 3}}}}, "no field of links"),
        ({"device": {"fan_percent.1": 3}}, "below links, fans, peers"),
        ({"device": {"numa_node": "x"}}, "devices.0.numa_node: expected a number"),
        ({"files": {"/etc/x": ""}}, "must be a path below the root"),
        ({"files": {"a/../../x": ""}}, "must be a path below the root"),
        ({"faults": [{"call": "nvmlInit*", "crash": True, "every": 0}]}, "`$.faults[0].every`"),
        ({"faults": [{"call": "gpm:x", "crash": True}]}, "no simulated call matches"),
        ({"driver": {"process_entry_bytes": 28}}, "`$.driver.process_entry_bytes`"),
        ({"devices": {"x": {}}}, "'x' is no device index"),
        ({"devices": {"64": {}}}, "'64' is no device index"),
        ({"devices": {"1": {}}}, "MIG has `parent`"),
        ({"devices": {"0": {"parent": 0}}}, "MIG has `parent`"),
        ({"devices": {"1": {"parent": 1}}}, "parent 1 is no device"),
        ({"rates": {"measured": {"fp17": {"tera": 1, "source": "s"}}}}, "precision 'fp17'"),
        ({"rates": {"measured": {"fp16": {"tera": 0, "source": "s"}}}}, "float` > 0.0"),
        ({"rates": {"measured": {"fp16": {"tera": 5}}}}, "required field `source`"),
        ({"faults": [{"call": "nvmlDeviceGetTea"}]}, "exactly one of return, latency"),
        ({"faults": [{"call": "nvmlDeviceGetTea", "crash": True}]}, "no simulated call matches"),
        ({"faults": [{"call": "field:x", "crash": True}]}, "no simulated call matches"),
        ({"faults": [{"call": "nvmlInit*", "return": "Sorry"}]}, "unknown return code 'Sorry'"),
        ({"faults": [{"call": "nvmlInit*", "crash": True, "hang": True}]}, "faults.0: a fault"),
        ({"faults": [{"call": "nvmlInit*", "crash": True, "device": 64}]}, "`$.faults[0].device`"),
        ({"faults": [{"call": "nvmlInit*", "latency": -1}]}, "`$.faults[0].latency`"),
        ({"faults": [{"crash": True}]}, "required field `call`"),
    ],
)
def test_mistake(change: dict[str, Any], words: str) -> None:
    with pytest.raises(SimulationError) as caught:
        check({**GOOD, **change})
    assert words in str(caught.value)
    assert str(caught.value).startswith("scenario mine: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "Expecting value"),
        (b"[1]", "expected an object"),
        (b'{"title": "t"', "delimiter"),
        (b'{"title": NaN}', "NaN is not a number"),
        (b'{"title": "\xff"}', "utf-8"),
        (b"[" * 100_000, "recursion"),
        (b'{"extends": "nonesuch"}', "no scenario 'nonesuch'; there are: "),
        (b'{"extends": 3}', "extends must name a scenario"),
    ],
    ids=["empty", "list", "cut off", "NaN", "no UTF-8", "deep", "unknown base", "odd base"],
)
def test_broken_file(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "broken.json"
    path.write_bytes(content)
    with pytest.raises(SimulationError) as caught:
        load(str(path))
    assert words in str(caught.value)


def test_missing_file_and_unknown_name(tmp_path: Path) -> None:
    with pytest.raises(SimulationError, match=r"gone\.json does not exist"):
        load(str(tmp_path / "gone.json"))
    with pytest.raises(SimulationError, match="no scenario 'h100'; there are: a100, "):
        load("h100")


def test_a_circle_of_extends_ends(tmp_path: Path) -> None:
    path = tmp_path / "circle.json"
    path.write_text(json.dumps({"extends": str(path)}))
    with pytest.raises(SimulationError, match="not a circle"):
        load(str(path))


def test_extends_lays_fields_over_those_of_its_base(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(
        json.dumps(
            {
                "extends": "power-cap",
                "title": "mine",
                "driver": {"cuda": "12.9"},
                "device": {"serial": "S1", "energy_joules": None},
                "devices": {"3": {"pcie_width": 8}, "5": {"pcie_width": 4}},
                "rates": {"clock_mhz": 1800},
            }
        )
    )
    mine, base = load(str(path)), load("power-cap")
    assert (mine.name, mine.title, mine.description) == ("mine", "mine", base.description)
    assert (mine.driver.cuda, mine.driver.version) == ("12.9", base.driver.version)
    assert len(mine.devices) == 8
    assert {device.texts["serial"] for device in mine.devices} == {"S1"}
    assert mine.devices[3].numbers["power_limit_watts"] == ("350",)
    assert [device.numbers["pcie_width"][0] for device in mine.devices] == [
        "16", "16", "16", "8", "16", "4", "16", "16",
    ]  # fmt: skip
    # null takes a field away; GPU 3 has one of its own from the base
    assert "energy_joules" not in mine.devices[0].numbers
    assert "energy_joules" in mine.devices[3].numbers
    assert mine.rates.clock_mhz == 1800
    assert mine.rates.measured == base.rates.measured


def test_every_number_field_is_known_to_the_driver_and_back() -> None:
    """A field that nothing reads would be a scenario that shows nothing."""
    from topsmon.simulated.fields import NUMBER_FIELDS

    sources = "".join(path.read_text() for path in table.SOURCES.glob("*.c"))
    folder = Path(scenario.__file__).parent
    prober = "".join((folder / name).read_text() for name in ("prober.py", "lab.py"))
    for name in NUMBER_FIELDS:
        assert f'"{name}"' in sources or f'"{name}"' in prober, name


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)
plausible = st.fixed_dictionaries(
    {},
    optional={
        "count": st.integers(-1, 70),
        "driver": st.fixed_dictionaries(
            {}, optional={"cuda": st.text(max_size=5), "version": st.text(max_size=5)}
        ),
        "device": st.dictionaries(
            st.sampled_from(
                ["name", "uuid", "power_watts", "processes", "pci_device", "pci_subsystem",
                 "compute_capability", "parent", "x"]
            ),
            anything,
            max_size=3,
        ),
        "devices": st.dictionaries(st.sampled_from(["0", "1", "7", "-1", "٣"]), anything),
        "faults": st.lists(
            st.fixed_dictionaries(
                {"call": st.sampled_from(["nvmlInit*", "*", "field:82"]) | st.text(max_size=5)},
                optional={
                    "return": anything, "hang": anything, "device": anything, "start": anything,
                },
            ),
            max_size=2,
        ),
        "rates": anything,
    },
)  # fmt: skip


@given(plausible)
def test_any_content_gives_a_table_or_one_line(content: dict[str, Any]) -> None:
    refusal = ""
    lines = ["topsmon-simulated 1"]
    try:
        lines = check({**GOOD, **content})
    except SimulationError as error:
        refusal = str(error)
    assert "\n" not in refusal
    assert lines[0] == "topsmon-simulated 1"
    for line in lines:
        assert line.isascii()
        assert line.split(" ")[0] in {
            "topsmon-simulated", "device", "text", "number", "process", "fault",
        }  # fmt: skip
        assert len(line.splitlines()) == 1
        assert "  " not in line
