"""Which devices to show: what the user named, and what CUDA_VISIBLE_DEVICES lets CUDA see."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

CPU = "cpu"
_UUID_PREFIXES = ("GPU-", "MIG-")


@dataclass(frozen=True)
class Found:
    """A device that is here. `uuid` is None while the driver has not told it."""

    index: int
    uuid: str | None
    name: str | None = None
    mig: bool = False


@dataclass(frozen=True)
class Selection:
    """`only` is empty for all devices, `visible` None where nothing is hidden."""

    only: tuple[str, ...] = ()
    visible: tuple[str, ...] | None = None

    def wants(self, device: Found) -> bool:
        """True if this GPU is selected."""
        if self.only and not any(_names(entry, device) for entry in self.only):
            return False
        return self.visible is None or any(_shows(entry, device) for entry in self.visible)

    def may_want(self, device: Found) -> bool:
        """As `wants`, but a GPU that has not told its UUID may be one that was named by it."""
        entries = (*self.only, *(self.visible or ()))
        named = any(entry.upper().startswith(_UUID_PREFIXES) for entry in entries)
        return self.wants(device) or (device.uuid is None and named)

    def wants_cpu(self) -> bool:
        """True if the CPU is selected; it is never hidden by CUDA_VISIBLE_DEVICES."""
        return not self.only or any(entry.lower() == CPU for entry in self.only)

    def wants_gpus(self) -> bool:
        """True unless the selection leaves no GPU at all, so that no driver need be asked."""
        return self.visible != () and (
            not self.only or any(entry.lower() != CPU for entry in self.only)
        )

    def asks_for_gpus(self) -> bool:
        """True if some GPU was named, by the user or by CUDA_VISIBLE_DEVICES."""
        return bool(self.visible) or any(entry.lower() != CPU for entry in self.only)

    def within(self, count: int) -> Selection:
        """As CUDA does it: an index that does not exist hides itself and all that follow."""
        if self.visible is None:
            return self
        kept = []
        for entry in self.visible:
            if _is_index(entry) and int(entry) >= count:
                break
            kept.append(entry)
        return Selection(self.only, tuple(kept))

    def unknown(self, devices: Iterable[Found]) -> list[str]:
        """Entries of `only` that name no device, for certain."""
        known = list(devices)
        nameless = any(device.uuid is None for device in known)
        return [
            entry
            for entry in self.only
            if entry.lower() != CPU
            and not any(_names(entry, device) for device in known)
            and not (nameless and entry.upper().startswith(_UUID_PREFIXES))
        ]

    def visible_by_index(self) -> bool:
        """True if CUDA_VISIBLE_DEVICES uses indexes, whose order is CUDA's and not NVML's."""
        return any(_is_index(entry) for entry in self.visible or ())


def select(only: tuple[str, ...], only_visible: bool, environment: Mapping[str, str]) -> Selection:
    """Return the selection that the options and the environment ask for."""
    entries = tuple(entry.strip() for entry in only if entry.strip())
    return Selection(entries, parse_visible(environment) if only_visible else None)


def parse_visible(environment: Mapping[str, str]) -> tuple[str, ...] | None:
    """Return the entries of CUDA_VISIBLE_DEVICES, None where it is not set.

    An invalid entry, such as -1, ends the list (CUDA Programming Guide, environment variables).
    """
    value = environment.get("CUDA_VISIBLE_DEVICES")
    if value is None:
        return None
    entries: list[str] = []
    for word in value.split(","):
        entry = word.strip()
        if not (_is_index(entry) or entry.upper().startswith(_UUID_PREFIXES)):
            break
        entries.append(entry)
    return tuple(entries)


def check(selection: Selection, devices: Sequence[Found], cause: str | None = None) -> None:
    """Raise ValueError if `only` names a device that is not here; `cause`: why GPUs are missing."""
    unknown = selection.unknown(devices)
    if not unknown:
        return
    listed = [
        f"{device.index} ({', '.join(filter(None, (device.name, device.uuid)))})"
        if device.name or device.uuid
        else str(device.index)
        for device in sorted(devices, key=lambda device: device.index)
    ]
    because = f" ({cause.rstrip('.')})" if cause and not devices else ""
    raise ValueError(
        f"--only: no device {', '.join(map(repr, unknown))}; "
        f"this machine has: {', '.join([*listed, CPU])}{because}"
    )


def _is_index(entry: str) -> bool:
    return entry.isascii() and entry.isdigit()


def _names(entry: str, device: Found) -> bool:
    if _is_index(entry):
        return int(entry) == device.index
    return _is_prefix(entry, device.uuid)


def _shows(entry: str, device: Found) -> bool:
    if _is_index(entry):
        return int(entry) == device.index
    upper = entry.upper()
    if upper.startswith("MIG-GPU-"):  # MIG-GPU-<uuid>/<gpu instance>/<compute instance>
        return _is_prefix(entry[4:].partition("/")[0], device.uuid)
    if upper.startswith("MIG-"):
        # The UUID of an instance does not tell its GPU: any GPU in MIG mode may hold it.
        return device.mig
    return _is_prefix(entry, device.uuid)


def _is_prefix(entry: str, uuid: str | None) -> bool:
    if uuid is None or not entry.upper().startswith(_UUID_PREFIXES):
        return False
    return uuid.upper().startswith(entry.upper())
