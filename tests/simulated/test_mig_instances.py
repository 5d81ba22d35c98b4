"""MIG: instances with ids, attributes, memory and processes of their own, and their end."""

START = """
def ask(f, *a):
    try: return f(*a)
    except n.NVMLError as e: return -e.value
n.nvmlInit(); h = n.nvmlDeviceGetHandleByIndex(0)
def instance(i): return ask(n.nvmlDeviceGetMigDeviceHandleByIndex, h, i)
def told(m):
    if isinstance(m, int): return m
    return [ask(n.nvmlDeviceGetGpuInstanceId, m), ask(n.nvmlDeviceGetComputeInstanceId, m),
            n.nvmlDeviceGetMemoryInfo(m).used >> 20,
            [p.pid for p in n.nvmlDeviceGetComputeRunningProcesses(m)]]
"""


def ask(simulation, code: str):
    return simulation.result(START + code)


def test_instances_have_ids_and_processes_of_their_own(simulate) -> None:
    code = (
        "r = [told(instance(i)) for i in range(4)]\n"
        "r.append(sorted(p.pid for p in n.nvmlDeviceGetComputeRunningProcesses(h)))\n"
        "r.append(ask(n.nvmlDeviceGetGpuInstanceId, h))"
    )
    assert ask(simulate("mig"), code) == [
        [1, 0, 20214, [4193201]], [2, 0, 11480, [4193202]], [9, 0, 176, []], -6,
        [4193201, 4193202], -3,
    ]  # fmt: skip


def test_memory_of_the_whole_may_be_denied_in_a_container(simulate) -> None:
    code = "r = [told(instance(i)) for i in range(8)] + [ask(n.nvmlDeviceGetMemoryInfo, h)]"
    found = ask(simulate("mig-7"), code)
    assert [row[0] for row in found[:7]] == [7, 8, 9, 10, 11, 12, 13]
    assert [row[2] for row in found[:7]] == [1630, 2360, 3090, 3820, 4550, 5280, 6010]
    assert found[7:] == [-6, -4]


def test_an_instance_that_is_removed_leaves_a_gap_and_a_void_handle(simulate) -> None:
    simulation = simulate("mig-removed", seconds=7.9)
    code = (
        "import pathlib; held = instance(1)\n"
        f"pathlib.Path({str(simulation.folder)!r}, 'clock').write_text('8')\n"
        "r = [told(instance(i)) for i in range(3)] + [ask(n.nvmlDeviceGetMemoryInfo, held)]\n"
        "r.append([p.pid for p in n.nvmlDeviceGetComputeRunningProcesses(h)])\n"
        "r.append(ask(n.nvmlGpmMigSampleGet, h, 2, n.nvmlGpmSampleAlloc()))"
    )
    assert ask(simulation, code) == [
        [1, 0, 20214, [4193201]], -6, [9, 0, 176, []], -6, [4193201], -6,
    ]  # fmt: skip


def test_a_gpu_that_is_pulled_out_is_not_counted(simulate) -> None:
    simulation = simulate("gpu-unplugged", seconds=6.9)
    code = (
        "import pathlib; held = n.nvmlDeviceGetHandleByIndex(3)\n"
        "uuid = n.nvmlDeviceGetUUID(held); r = [n.nvmlDeviceGetCount()]\n"
        f"pathlib.Path({str(simulation.folder)!r}, 'clock').write_text('7')\n"
        "r += [n.nvmlDeviceGetCount(), ask(n.nvmlDeviceGetHandleByIndex, 3),"
        " ask(n.nvmlDeviceGetHandleByUUID, uuid), ask(n.nvmlDeviceGetPowerUsage, held)]"
    )
    assert ask(simulation, code) == [4, 3, -2, -6, -15]
