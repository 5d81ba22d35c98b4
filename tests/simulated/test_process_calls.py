"""Processes as drivers tell them: lists, names, shares of time, and what is odd about them."""

MIB = 1 << 20
START = """
def ask(f, *a):
    try: return f(*a)
    except n.NVMLError as e: return -e.value
def shares(f, h, since=0):
    found = ask(f, h, since)
    return found if isinstance(found, int) else [
        [s.pid, s.smUtil, s.memUtil, s.encUtil, s.decUtil] for s in found]
old, new = n.nvmlDeviceGetProcessUtilization, n.nvmlDeviceGetProcessesUtilizationInfo
n.nvmlInit()
hs = [n.nvmlDeviceGetHandleByIndex(i) for i in range(n.nvmlDeviceGetCount())]
"""


def ask(simulation, code: str):
    return simulation.result(START + code)


def test_shares_by_both_calls(simulate) -> None:
    rows = [[4193951, 57, 23, 8, 6], [4193952, 4, 3, 0, 0]]
    code = "r = [shares(f, hs[0]) for f in (old, new)]"
    assert ask(simulate("every-signal"), code) == [rows, rows]


def test_nonsense_and_nothing(simulate) -> None:
    """Above 100 %; NotFound; and the success of a size query, which the wrapper raises as 0."""
    code = "r = [[shares(f, h) for h in hs] for f in (old, new)]"
    told = [[[4193301, 250, 4294967295, 0, 0], [4193302, 61, 34, 0, 0]], -6, 0]
    assert ask(simulate("utilisation-nonsense"), code) == [told, told]


def test_only_newer_samples_are_told(simulate) -> None:
    simulation = simulate("host-pids", seconds=3)
    stamp = ask(simulation, "r = old(hs[0], 0)[0].timeStamp")
    assert ask(simulation, f"r = shares(old, hs[0], {stamp})") == -6
    simulation.clock(4)
    assert len(ask(simulation, f"r = shares(old, hs[0], {stamp})")) == 2


def test_before_580_the_newer_call_does_not_exist(simulate) -> None:
    assert ask(simulate("early-535"), "r = [shares(f, hs[0]) for f in (old, new)]") == [-6, -13]


def test_names_of_processes(simulate) -> None:
    code = "r = [ask(n.nvmlSystemGetProcessName, pid) for pid in (4194001, 4194002, 4194003)]"
    names = ["/usr/bin/python3", "/opt/server/tritonserver", -6]
    assert ask(simulate("host-pids"), code) == names


def test_the_first_drivers_of_535_fill_another_structure(simulate) -> None:
    """Read 24 bytes a row, rows of 32 are garbage but for the first.

    The second then begins in the first's new field (0) and has the next PID as its memory; the
    third begins in the second's GPU instance (none).
    """
    code = (
        "v3 = n.nvmlDeviceGetComputeRunningProcesses_v3(hs[0])\n"
        "v2 = n.nvmlDeviceGetComputeRunningProcesses_v2(hs[0])\n"
        "r = [[[p.pid, p.usedGpuMemory] for p in rows] for rows in (v3, v2)]"
    )
    garbled, sane = ask(simulate("early-535"), code)
    assert sane == [[4193601, 20480 * MIB], [4193602, 10240 * MIB], [4193603, 5120 * MIB]]
    assert garbled[0] == sane[0]
    assert garbled[1:] == [[0, 4193602], [0xFFFFFFFF, 0]]


def test_the_list_outgrows_its_buffer_now_and_then(simulate) -> None:
    """The size and the fill are two calls; a retry at once is answered."""
    simulation = simulate("process-table-grows", seconds=5)
    code = (
        "f = n.nvmlDeviceGetComputeRunningProcesses_v3\n"
        "def count():\n"
        "    found = ask(f, hs[0])\n"
        "    return found if isinstance(found, int) else len(found)\n"
        "r = [count() for _ in range(5)]"
    )
    assert ask(simulation, code) == [-7, 2, -7, 2, -7]
    simulation.clock(8)
    assert ask(simulation, code) == [-7, 3, -7, 3, -7]


def test_clients_of_mps_and_their_server(simulate) -> None:
    code = (
        "lists = n.nvmlDeviceGetComputeRunningProcesses, n.nvmlDeviceGetMPSComputeRunningProcesses,"
        " n.nvmlDeviceGetGraphicsRunningProcesses\n"
        "r = [[p.pid for p in f(hs[0])] for f in lists]"
    )
    assert ask(simulate("mps"), code) == [[4193901], [4193902, 4193903], []]
