"""Find, load and initialise the NVML library; say what is wrong and what to do about it.

The remedies follow what users of the errors found out; the codes are those of nvml.h.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from topsmon.devices import nvml
from topsmon.devices.text import valid_text

LIBRARY = "libnvidia-ml.so.1"
NO_LIBRARY = "no-library"
_ESSENTIAL = ("_nvmlGetFunctionPointer", "NVMLError", "nvmlInit", "nvmlDeviceGetHandleByIndex")
"""Names that every nvidia-ml-py has; other packages called pynvml lack one of them."""
_VERSION = re.compile(r"\b(\d{3,4}(?:\.\d+){1,3})\b")


@dataclass(frozen=True)
class Trouble:
    """Why there is no working driver: a short `code`, what is wrong, what to do."""

    code: str
    message: str
    remedy: str


def load_binding() -> Any | Trouble:
    """Import nvidia-ml-py if there is a driver library to use it on."""
    if not _library_loads():
        return trouble(nvml.LIBRARY_NOT_FOUND, container=False)
    with warnings.catch_warnings():
        # The redirecting package `pynvml` prints a FutureWarning, which would paint over a screen.
        warnings.simplefilter("ignore")
        try:
            import pynvml
        except ImportError as error:
            return Trouble(
                "binding",
                f"The Python binding of NVML cannot be imported: {error}.",
                "Install it: pip install nvidia-ml-py",
            )
        except Exception as error:  # noqa: BLE001 - other packages of that name fail in any way
            return impostor(f"it fails with {type(error).__name__}: {error}")
    missing = [name for name in _ESSENTIAL if not hasattr(pynvml, name)]
    if missing:
        place = getattr(pynvml, "__file__", None) or "an unknown place"
        return impostor(f"the one in {place} has no {missing[0]}")
    return pynvml


def impostor(evidence: str) -> Trouble:
    """The words for a module `pynvml` that is not NVIDIA's."""
    return Trouble(
        "binding",
        f"The Python module pynvml is not that of nvidia-ml-py: {valid_text(evidence, 300)}.",
        "Replace it: pip uninstall -y pynvml nvidia-ml-py; pip install nvidia-ml-py",
    )


def _library_loads() -> bool:
    """True if the NVML library can be loaded: cheaper to ask than to import the binding."""
    if sys.platform == "win32":
        return True
    try:
        ctypes.CDLL(LIBRARY)
    except OSError:
        return False
    return True


def initialise(
    driver: nvml.Driver, watch: nvml.Watch, *, container: bool, proc: Path = Path("/proc")
) -> Trouble | None:
    """Initialise NVML once. May hang: run it in a thread of its own, watched through `watch`."""
    answer = driver.call(watch, "nvmlInit")
    if not isinstance(answer, nvml.Unavailable):
        return None
    code = nvml.UNKNOWN if answer.code is None else answer.code
    library = library_version(driver, watch, proc)
    return trouble(code, container=container, library=library, module=module_version(proc))


def trouble(
    code: int,
    *,
    container: bool,
    library: str | None = None,
    module: str | None = None,
) -> Trouble:
    """Return the words for an error of nvmlInit. `library`, `module`: versions, None if unknown."""
    known = {
        nvml.LIBRARY_NOT_FOUND: Trouble(
            NO_LIBRARY,
            f"No NVIDIA driver library ({LIBRARY}).",
            "Install the driver, or start the container with GPU access.",
        ),
        nvml.DRIVER_NOT_LOADED: Trouble(
            "not-loaded",
            "The driver library is present but the kernel module is not loaded.",
            "Load the module (modprobe nvidia) or reboot.",
        ),
        nvml.LIB_RM_VERSION_MISMATCH: Trouble(
            "mismatch",
            f"Driver/library version mismatch: kernel module {module or 'unknown'}, "
            f"library {library or 'unknown'}.",
            "Reboot, or reload the module (modprobe -r nvidia_uvm nvidia_drm nvidia_modeset "
            "nvidia; modprobe nvidia).",
        ),
        nvml.NO_PERMISSION: Trouble(
            "permission",
            "No permission on /dev/nvidia*.",
            "Ask for access to the device nodes (group video or render, or the job's GPU request).",
        ),
        nvml.FUNCTION_NOT_FOUND: Trouble(
            "not-nvml",
            f"The file found is not a usable NVML library: {library_path() or LIBRARY}.",
            "Reinstall the driver, or remove this file from the library path.",
        ),
    }
    if container:
        known[nvml.UNKNOWN] = Trouble(
            "container-lost",
            "GPU access of this container was lost (NVML Unknown, 999).",
            "Recreate the container; systemctl daemon-reload on the host takes its GPUs away.",
        )
    other = Trouble(
        f"nvml-{code}",
        f"NVML cannot start: {nvml.explain(code, 'nvmlInit').reason}, code {code}, "
        f"driver {module or library or 'version unknown'}.",
        "See the kernel log (dmesg | grep -iE 'nvrm|xid').",
    )
    return known.get(code, other)


def no_device() -> Trouble:
    """The words for a machine that needs no driver."""
    return Trouble(
        "no-device",
        f"No NVIDIA GPU in this machine, and no driver library ({LIBRARY}).",
        "If there is one: see lspci -d 10de:, install the driver or give the container access.",
    )


def no_gpu() -> Trouble:
    """The words for a driver that works and has no device to show."""
    return Trouble(
        "no-gpu",
        "Driver works, no GPU visible.",
        "Check that the job or container was given a GPU, and the kernel log for a lost one.",
    )


def order() -> Trouble:
    """The words for indexes in CUDA_VISIBLE_DEVICES on a machine with different boards."""
    return Trouble(
        "order",
        "CUDA_VISIBLE_DEVICES has indexes, which CUDA counts from the fastest board and NVML along "
        "the PCI bus: with different boards the two may differ.",
        "Set CUDA_DEVICE_ORDER=PCI_BUS_ID, or name the devices by UUID.",
    )


def not_answering(function: str, seconds: float) -> Trouble:
    """The words for an initialisation that hangs."""
    return Trouble(
        "stalled",
        f"The NVIDIA driver does not answer: {function} has been running for {seconds:.0f} s.",
        "See the kernel log (dmesg | grep -iE 'nvrm|xid'); a reboot may be needed.",
    )


def crashed(how: str, cost: str) -> Trouble:
    """The words for a library that crashes: by what signal, in what function, at what cost."""
    return Trouble(
        "crashed",
        f"The NVIDIA driver library crashed ({how}): {cost}.",
        "See the kernel log (dmesg | grep -iE 'nvrm|xid') and topsmon doctor; if it stays, "
        "reinstall the NVIDIA driver.",
    )


def ended(how: str, cost: str) -> Trouble:
    """The words for a process that reads the GPUs and ends early, by itself or from outside."""
    return Trouble(
        "ended",
        f"The process that reads the GPUs ended early ({how}): {cost}.",
        "Try again; SIGKILL is mostly the kernel, out of memory: see dmesg.",
    )


def not_started(reason: str) -> Trouble:
    """The words for a system that gives no process to read the GPUs in."""
    return Trouble(
        "no-process",
        f"No process can be started to read the GPUs: {reason}.",
        "Raise the limit on processes (ulimit -u, the container's pids limit), or end some.",
    )


def module_version(proc: Path = Path("/proc")) -> str | None:
    """Return the version of the loaded kernel module, None if there is none to be seen."""
    for path in (proc / "driver/nvidia/version", Path("/sys/module/nvidia/version")):
        try:
            text = path.read_text(errors="replace")
        except OSError:
            continue
        found = _VERSION.search(text)
        if found is not None:
            return found.group(1)
    return None


def library_version(
    driver: nvml.Driver, watch: nvml.Watch, proc: Path = Path("/proc")
) -> str | None:
    """Return the version of the library: its own word ("12.535.261.03") or its file's name."""
    answer = driver.call(watch, "nvmlSystemGetNVMLVersion")
    if isinstance(answer, str) and answer.count(".") >= 2:
        return answer.split(".", 1)[1]
    found = _VERSION.search((library_path(proc) or "").rpartition(".so.")[2])
    return None if found is None else found.group(1)


def library_path(proc: Path = Path("/proc")) -> str | None:
    """Return the file that was loaded as the NVML library, from this process's memory map."""
    try:
        lines = (proc / "self/maps").read_text(errors="replace").splitlines()
    except OSError:
        return None
    for line in lines:
        path = line.split(maxsplit=5)[-1]
        if "libnvidia-ml" in os.path.basename(path):  # noqa: PTH119 - a mapped path, not ours to open
            return path
    return None


def driver_versions(driver: nvml.Driver, watch: nvml.Watch) -> tuple[str | None, str | None]:
    """Return the driver's version and the highest CUDA version that it serves ("12.4")."""
    version = driver.call(watch, "nvmlSystemGetDriverVersion")
    for name in ("nvmlSystemGetCudaDriverVersion_v2", "nvmlSystemGetCudaDriverVersion"):
        cuda = driver.call(watch, name)
        if isinstance(cuda, int) and 1000 <= cuda < 1_000_000:
            return valid_text(version), f"{cuda // 1000}.{cuda % 1000 // 10}"
    return valid_text(version), None
