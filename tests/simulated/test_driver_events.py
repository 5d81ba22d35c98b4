"""Events that the driver reports, and the readings that it keeps itself."""

WAIT = """
import ctypes, pathlib
def place(handle): return ctypes.cast(handle, ctypes.c_void_p).value
def clock(t): pathlib.Path(folder, 'clock').write_text(str(t))
def wait(s, ms=0):
    try: e = n.nvmlEventSetWait_v2(s, ms)
    except n.NVMLError as error: return -error.value
    return [places.index(place(e.device)), e.eventType, e.eventData, e.gpuInstanceId]
def code(f, *a):
    try: f(*a); return 0
    except n.NVMLError as e: return e.value
n.nvmlInit()
hs = [n.nvmlDeviceGetHandleByIndex(i) for i in range(n.nvmlDeviceGetCount())]
places = [place(h) for h in hs]
def register(s, types=8): return [code(n.nvmlDeviceRegisterEvents, h, types, s) for h in hs]
"""
NONE = 0xFFFFFFFF
ONE = {"title": "t", "description": "d", "expected": "ok"}


def run(simulation, code: str):
    return simulation.result(f"folder = {str(simulation.folder)!r}\n{WAIT}{code}")


def test_xids_come_in_order_of_time_and_once_per_set(simulate) -> None:
    found = run(
        simulate("xid", seconds=5),
        "a, b = n.nvmlEventSetCreate(), n.nvmlEventSetCreate(); r = [register(a), register(b)]\n"
        "r.append(wait(a)); clock(7.5); r += [wait(a), wait(a), wait(a)]\n"
        "clock(8); r += [wait(a), wait(a), wait(b), wait(b), wait(b), wait(b)]\n"
        "n.nvmlEventSetFree(a); n.nvmlEventSetFree(b)",
    )
    lost = [1, 8, 79, NONE]
    assert found[:3] == [[0, 0, 0, 0], [0, 0, 0, 0], -10]
    assert found[3:6] == [lost, [2, 8, 94, NONE], -10]
    assert found[6:] == [[3, 8, 119, NONE], -10, lost, [2, 8, 94, NONE], [3, 8, 119, NONE], -10]


def test_what_was_before_the_registration_is_not_told(simulate) -> None:
    found = run(
        simulate({**ONE, "device": {"event_types_supported": 9, "xids": [
            {"time": 2, "xid": 13}, {"time": 4, "xid": 31, "gpu_instance": 2}]}}, seconds=3),
        "s = n.nvmlEventSetCreate(); register(s); clock(9); r = [wait(s), wait(s)]",
    )  # fmt: skip
    assert found == [[0, 8, 31, 2], -10]


def test_only_the_registered_types_are_told(simulate) -> None:
    content = {**ONE, "device": {"event_types_supported": 9, "xids": [
        {"time": 1, "type": 1}, {"time": 2, "xid": 48}]}}  # fmt: skip
    found = run(
        simulate(content),
        "a, b = n.nvmlEventSetCreate(), n.nvmlEventSetCreate()\n"
        "r = [register(a, 8), register(b, 9), register(b, 16)]; clock(3)\n"
        "r += [wait(a), wait(a), wait(b), wait(b), wait(b)]",
    )
    assert found == [[0], [0], [3], [0, 8, 48, NONE], -10, [0, 1, 0, NONE], [0, 8, 48, NONE], -10]


def test_where_events_are_not_supported_none_is_registered(simulate) -> None:
    assert run(simulate("vgpu"), "r = register(n.nvmlEventSetCreate())") == [3]


def test_a_wait_ends_when_the_event_comes_or_its_time_is_over(simulate) -> None:
    simulation = simulate("xid", seconds=5)
    found = run(
        simulation,
        "import threading, time\n"
        "s = n.nvmlEventSetCreate(); register(s); clock(6.5); wait(s)\n"
        "threading.Timer(0.05, clock, (7,)).start()\n"
        "t = time.monotonic(); r = [wait(s, 5000), time.monotonic() - t]\n"
        "t = time.monotonic(); r += [wait(s, 50), time.monotonic() - t]",
    )
    assert found[0] == [2, 8, 94, NONE]
    assert 0.05 <= found[1] < 5
    assert found[2] == -10
    assert found[3] >= 0.05


def test_samples_since_the_last_one_seen(simulate) -> None:
    """Six a second of a ramp of 1 W a second, the last 20 s of them."""
    content = {**ONE, "device": {"power_watts": {"ramp": [0, 1000, 0, 1000]}, "busy_percent": 41}}
    found = run(
        simulate(content, seconds=100),
        "kind, first = n.nvmlDeviceGetSamples(hs[0], 0, 0); last = first[-1].timeStamp\n"
        "r = [kind, len(first), first[-1].sampleValue.uiVal, last - first[0].timeStamp]\n"
        "r.append(code(n.nvmlDeviceGetSamples, hs[0], 0, last)); clock(101)\n"
        "r.append([s.sampleValue.uiVal for s in n.nvmlDeviceGetSamples(hs[0], 0, last)[1]])\n"
        "r.append({s.sampleValue.uiVal for s in n.nvmlDeviceGetSamples(hs[0], 1, 0)[1]} == {41})\n"
        "r.append(code(n.nvmlDeviceGetSamples, hs[0], 5, 0))",
    )
    kind, count, last, span, none, later, busy, unsupported = found
    assert (kind, count, last) == (1, 120, 100_000)
    assert abs(span - 119e6 / 6) <= 1
    assert (none, busy, unsupported) == (6, True, 3)
    assert later == [round(100_000 + i * 1000 / 6) for i in range(1, 7)]
