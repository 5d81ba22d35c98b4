"""NVLink, topology, fans, codecs, pages and other calls with arguments of their own."""

START = """
def ask(f, *a):
    try: v = getattr(n, 'nvmlDeviceGet' + f)(*a)
    except n.NVMLError as e: return -e.value
    return v.decode() if isinstance(v, bytes) else v
n.nvmlInit()
hs = [n.nvmlDeviceGetHandleByIndex(i) for i in range(n.nvmlDeviceGetCount())]
h = hs[0]
"""


def ask(simulation, code: str):
    return simulation.result(START + code)


def test_links_go_down_in_mid_run(simulate) -> None:
    simulation = simulate("nvlink-down", seconds=5.9)
    code = "r = [[i for i in range(18) if not ask('NvLinkState', h, i)] for h in hs]"
    assert ask(simulation, code) == [[], [], [], []]
    simulation.clock(6)
    assert ask(simulation, code) == [[], [5, 11], [], []]
    assert ask(simulation, "r = ask('NvLinkState', h, 18)") == -2


def test_errors_of_a_link_by_kind(simulate) -> None:
    simulation = simulate("nvlink-errors", seconds=10)
    code = "r = [[ask('NvLinkErrorCounter', hs[2], i, kind) for kind in range(5)] for i in (2, 3)]"
    assert ask(simulation, code) == [[0, 0, 0, 0, -3], [42, 3, 430, 71, -3]]


def test_capabilities_and_version(simulate) -> None:
    code = "r = [ask('NvLinkCapability', h, 0, i) for i in range(7)] + [ask('NvLinkVersion', h, 0)]"
    assert ask(simulate("h100-8"), code) == [1, 0, 1, 0, 0, 1, -3, 6]


def test_a_board_without_nvlink_supports_none_of_its_calls(simulate) -> None:
    code = "r = [ask('NvLinkState', h, 0), ask('NvLinkErrorCounter', h, 0, 0)]"
    assert ask(simulate("rtx4090"), code) == [-3, -3]


def test_topology_by_switch_and_node(simulate) -> None:
    """Eight GPUs on two nodes; a switch for each pair."""
    code = "r = [ask('TopologyCommonAncestor', hs[0], x) for x in hs]"
    assert ask(simulate("h100-8"), code) == [-3, 40, 40, 40, 50, 50, 50, 50]
    content = {
        "title": "t", "description": "d", "expected": "ok", "extends": "h100-8",
        "device": {"pcie_switch": {"each": [0, 0.5]}},
    }  # fmt: skip
    assert ask(simulate(content), code) == [-3, 10, 40, 40, 50, 50, 50, 50]


def test_peer_access_by_kind(simulate) -> None:
    code = "r = [ask('P2PStatus', hs[0], hs[1], kind) for kind in range(6)]"
    assert ask(simulate("h100-8"), code) == [0, 0, 0, 0, 5, -3]
    content = {
        "title": "t", "description": "d", "expected": "ok", "count": 3,
        "device": {"p2p_read_status": 0, "peers": {"2": {"p2p_read_status": 2}}},
    }  # fmt: skip
    assert ask(simulate(content), "r = [ask('P2PStatus', h, x, 0) for x in hs[1:]]") == [0, 2]


def test_fans_and_codecs(simulate) -> None:
    code = (
        "r = [ask('NumFans', h), ask('FanSpeed', h), *(ask('FanSpeed_v2', h, i) for i in range(3)),"
        " ask('EncoderUtilization', h), ask('DecoderUtilization', h)]"
    )
    assert ask(simulate("every-signal"), code) == [2, 38, 38, 39, -2, [17, 10**6], [19, 10**6]]
    assert ask(simulate("h100-8"), code)[:4] == [-3, -3, -3, -3]


def test_driver_470_has_fans_and_cannot_count_them(simulate) -> None:
    content = {
        "title": "t", "description": "d", "expected": "ok", "driver": {"symbols": 470},
        "device": {"fan_count": 1, "fan_percent": 33},
    }  # fmt: skip
    code = "r = [ask('NumFans', h), ask('FanSpeed', h), ask('FanSpeed_v2', h, 0)]"
    assert ask(simulate(content), code) == [-13, 33, 33]


def test_retired_pages_by_cause(simulate) -> None:
    code = (
        "r = [[len(ask('RetiredPages', x, cause)) for cause in (0, 1)]"
        " + [ask('RetiredPagesPendingStatus', x)] for x in hs]\n"
        "r.append(len({a for cause in (0, 1) for a in ask('RetiredPages', hs[1], cause)}))"
    )
    assert ask(simulate("pages-retired"), code) == [[0, 0, 0], [3, 14, 1], 17]
    assert ask(simulate("h100-8"), "r = ask('RetiredPages', h, 0)") == -3


def test_errors_of_on_chip_memory(simulate) -> None:
    code = (
        "s = n.c_nvmlEccSramErrorStatus_v1_t(); n.nvmlDeviceGetSramEccErrorStatus(h, n.byref(s))\n"
        "r = [s.volatileCor, s.aggregateCor, s.volatileUncParity, s.aggregateUncParity,"
        " s.volatileUncSecDed, s.aggregateUncSecDed, s.bThresholdExceeded]"
    )
    assert ask(simulate("every-signal"), code) == [31, 311, 33, 331, 35, 351, 0]


def test_single_numbers_and_texts(simulate) -> None:
    code = (
        "r = [ask(f, h) for f in ('AddressingMode', 'GspFirmwareVersion', 'PcieReplayCounter',"
        " 'SupportedEventTypes', 'PowerManagementDefaultLimit', 'ComputeMode', 'MarginTemperature',"
        " 'PersistenceMode')]"
    )
    assert ask(simulate("every-signal"), code) == [0, "580.95.05", 61, 159, 700_000, 3, 34, 1]
    assert ask(simulate("gb10"), "r = ask('AddressingMode', h)") == 2


def test_the_slow_call_takes_its_window_and_is_logged(simulate) -> None:
    simulation = simulate("h100-8")
    code = (
        "import time; t = time.monotonic()\n"
        "r = [ask('PcieThroughput', hs[3], i) for i in (0, 1)] + [time.monotonic() - t]"
    )
    sent, received, seconds = ask(simulation, code)
    assert 228_000 <= sent <= 234_000
    assert 358_000 <= received <= 364_000
    assert seconds >= 0.04
    assert [row[1:] for row in simulation.log()][-2:] == [["nvmlDeviceGetPcieThroughput", "3"]] * 2
