"""The program of one rank: meet the others, measure alone, measure together, tell, end.

The ranks meet in a group of gloo, which needs nothing but a network, and measure their devices
before the group under test (NCCL on GPUs) exists: a broken ring still leaves the slow rank named.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import datetime as dt
import gc
import inspect
import json
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from . import environment, faults
from .bus import algorithm_bandwidth, bus_bandwidth
from .diary import GATHER_SECONDS, Diary, write_whole

SCHEMA = "topsmon.ranks/1"
EXIT_OK = 0
EXIT_UNKNOWN = 3
"""Not everything could be measured."""
EXIT_USAGE = 64
EXIT_NO_TORCH = 69
PR_SET_PDEATHSIG = 1
WATCH_SECONDS = 0.1
SLACK_SECONDS = 1.0
"""A group's own time-out comes first; the watch is for what does not return at all."""
CODE_SECONDS = 20.0
"""How long ranks wait to be told the exit code that all of them end with."""


class RankError(Exception):
    """This run cannot go on; the message says why and what to do."""


class _Ended(Exception):  # noqa: N818  no error: the launcher asked
    """SIGTERM."""


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line; wrong usage ends the process with 64."""
    parser = argparse.ArgumentParser(
        prog="topsmon rank", description="Measure several devices together.", allow_abbrev=False
    )
    parser.error = _refuse  # type: ignore[method-assign]
    parser.add_argument("--out", type=Path, required=True, help="rank 0 writes the JSON here")
    parser.add_argument("--folder", type=Path, help="where each rank of this machine leaves notes")
    parser.add_argument("--device", choices=("auto", "cpu"), default="auto")
    parser.add_argument("--backend", choices=("auto", "nccl", "gloo"), default="auto")
    parser.add_argument("--limit", type=float, default=30.0, help="seconds of a stage, at most")
    parser.add_argument("--meet-limit", type=float, default=60.0, help="seconds to find each other")
    parser.add_argument("--largest", type=int, help="bytes of the largest operation")
    parser.add_argument("--rendezvous", default="", help="HOST:PORT of rank 0")
    parser.add_argument("--until-stdin-closes", action="store_true")
    parser.add_argument("--agree", action="store_true", help="wait for FOLDER/code, end with it")
    return parser.parse_args(arguments)


def _refuse(message: str) -> NoReturn:
    print(f"topsmon rank: {message}", file=sys.stderr)
    sys.exit(EXIT_USAGE)


def main(arguments: Sequence[str]) -> NoReturn:
    """Measure and end the process, without a wait for threads that may hang in a driver."""
    options = parse(arguments)
    try:
        place = environment.detect(os.environ, os.getppid(), options.rendezvous)
        if place is None:
            _refuse("no launcher with two ranks or more: start this with torchrun, srun or mpirun")
        fault = faults.fault_of(place.rank, os.environ)
    except (environment.PlacementError, ValueError) as error:
        _refuse(str(error))
    _end_with_the_parent(options.until_stdin_closes)
    os.environ.update(place.variables())
    warnings.simplefilter("ignore")
    gc.disable()  # it would look through all that torch loads, again and again
    try:
        import torch.distributed as dist
    except Exception as error:  # noqa: BLE001  an installation can be broken in any way
        print(f"topsmon rank: {sys.executable} cannot load torch: {error}", file=sys.stderr)
        sys.exit(EXIT_NO_TORCH)
    finally:
        gc.freeze()
        gc.enable()
    if not dist.is_available():
        print("topsmon rank: this torch is built without torch.distributed", file=sys.stderr)
        sys.exit(EXIT_NO_TORCH)
    _Rank(options, place, fault).run()


def _end_with_the_parent(watch_stdin: bool) -> None:
    parent = os.getppid()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(EXIT_UNKNOWN)
    if watch_stdin:
        threading.Thread(target=_read_to_the_end, daemon=True).start()


def _read_to_the_end() -> None:
    with contextlib.suppress(OSError):
        while os.read(0, 4096):
            pass
    os._exit(EXIT_UNKNOWN)


class _Rank:
    def __init__(
        self, options: argparse.Namespace, place: environment.Placement, fault: faults.Fault
    ) -> None:
        self._options = options
        self._place = place
        self._fault = fault
        self._started = time.time()
        self._facts: dict[str, Any] = {}
        self._told = threading.Lock()
        self._diary = Diary(place.rank, None, options.folder, options.meet_limit)
        self._diary.report.update(
            local_rank=place.local_rank,
            local_world_size=place.local_world_size,
            launcher=place.launcher,
        )

    def run(self) -> NoReturn:
        """Measure, tell, end."""
        signal.signal(signal.SIGTERM, _raise_ended)
        threading.Thread(target=self._watch, daemon=True).start()
        failure = ""
        try:
            self._measure()
        except _Ended:
            failure = "told to end (SIGTERM)"
        except RankError as error:
            failure = str(error)
        except Exception as error:  # noqa: BLE001  whatever it is, the others must hear of it
            failure = _in_one_line(error)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self._end(failure)

    def _watch(self) -> None:
        """End a stage that takes too long, also where the main thread hangs in a library."""
        while not self._diary.overdue:
            time.sleep(WATCH_SECONDS)
        self._end("time-out")

    def _end(self, failure: str) -> NoReturn:
        """Tell the others and the parent; end with the exit code that all ranks share."""
        with self._told:  # the other thread waits here until the process ends
            diary, place = self._diary, self._place
            diary.end(failure)
            code = EXIT_UNKNOWN if failure else EXIT_OK
            if place.rank == 0:
                # A rank that measured to the end waits for slower ones as long as a stage may take.
                patience = GATHER_SECONDS if failure else self._options.limit
                reports = diary.gather(place.world_size, patience)
                write_whole(self._options.out, json.dumps(self._document(reports, failure)))
                code = self._hand_on(code)
            elif not failure and self._options.agree:
                code = self._hear()
            sys.stderr.flush()
            os._exit(code)

    def _hand_on(self, code: int) -> int:
        """Take the exit code from the parent, who has judged by now, to the other ranks."""
        if not self._options.agree:
            return code
        file = self._options.folder / "code"
        until = time.monotonic() + CODE_SECONDS
        while not file.exists() and time.monotonic() < until:
            time.sleep(WATCH_SECONDS / 5)
        if file.exists():
            code = int(file.read_text(encoding="utf-8"))
        store, others = self._diary.store, self._place.world_size - 1
        if store is None:
            return code
        with contextlib.suppress(RuntimeError):  # the others are gone
            store.set("code", str(code))
            until = time.monotonic() + GATHER_SECONDS
            while store.add("heard", 0) < others and time.monotonic() < until:
                time.sleep(WATCH_SECONDS / 5)
        return code

    def _hear(self) -> int:
        """The exit code that rank 0 hands on, UNKNOWN where none comes."""
        told = self._diary.wait("code", CODE_SECONDS + self._options.limit)
        if told is None:
            return EXIT_UNKNOWN
        with contextlib.suppress(RuntimeError):
            self._diary.store.add("heard", 1)
        if self._options.folder is not None:
            write_whole(self._options.folder / "agreed", told)
        return int(told)

    # Measuring ------------------------------------------------------------------------------------

    def _measure(self) -> None:
        import torch
        import torch.distributed as dist

        from . import collectives, compute, links

        options, place, diary = self._options, self._place, self._diary
        diary.stage("meeting", limit_seconds=options.meet_limit + SLACK_SECONDS)
        self._meet(dist)
        control = dist.group.WORLD
        gpu = options.device == "auto" and torch.cuda.is_available()
        diary.stage("opening the device")
        device: Any
        if gpu:
            device = compute.open_gpu(place.local_rank % torch.cuda.device_count())
        else:
            device = compute.open_cpu(place.local_world_size)
        told = compute.describe(device, place.local_world_size)
        diary.report["device"] = told
        own = self._devices(told)
        backend = self._backend(own, dist)
        self._facts.update(
            backend=backend,
            nodes=len({host for host, _ in own}),
            torch_version=str(torch.__version__),
            nccl_version=_nccl_version(torch) if backend == "nccl" else None,
        )

        diary.stage("gemm")
        dist.barrier(group=control)
        self._fault.strike("gemm")
        diary.report["gemm"] = compute.measure(device, self._fault, lambda: None)
        diary.stage("waiting for all after gemm")
        dist.barrier(group=control)

        group = collectives.Group(place.rank, place.world_size, control, control, device.place)
        if gpu:
            diary.report["transfer"] = links.measure(
                group, place.local_rank, place.local_world_size, diary
            )
        diary.stage(f"starting {backend}")
        if backend == "nccl":
            group = group._replace(data=self._nccl(dist, device.place))
        sizes = collectives.sizes_up_to(options.largest, gpu=gpu)
        collectives.measure(group, sizes, diary, self._fault)
        diary.stage("done")

    def _meet(self, dist: Any) -> None:
        """Find the others: a store for the diaries and a group of gloo."""
        place, options = self._place, self._options
        seconds = dt.timedelta(seconds=options.meet_limit)
        try:
            store, _, _ = next(
                dist.rendezvous(
                    "env://", rank=place.rank, world_size=place.world_size, timeout=seconds
                )
            )
            # A client of its own: one that waits in a library keeps its store to itself.
            words = dist.TCPStore(place.address, place.port, is_master=False, timeout=seconds)
            self._diary.store = dist.PrefixStore("topsmon", words)
            self._diary.stage("meeting", limit_seconds=options.meet_limit + SLACK_SECONDS)
            self._fault.strike("meeting")
            dist.init_process_group(
                "gloo",
                store=dist.PrefixStore("control", store),
                rank=place.rank,
                world_size=place.world_size,
                timeout=seconds,
            )
        except (RuntimeError, ValueError, OSError) as error:
            raise RankError(
                f"the ranks did not meet at {place.address}:{place.port}: {_in_one_line(error)}; "
                "check that all ranks run, that this address can be reached from all machines, "
                "and GLOO_SOCKET_IFNAME"
            ) from error
        _set_time_out(dist, options.limit)

    def _devices(self, told: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
        """Host and device of every rank. By the store: all_gather_object would need numpy."""
        place, diary = self._place, self._diary
        diary.store.set(f"device/{place.rank}", json.dumps((os.uname().nodename, told)))
        found = []
        for rank in range(place.world_size):
            text = diary.wait(f"device/{rank}", self._options.limit)
            if text is None:
                raise RankError(f"rank {rank} does not say which device it has")
            host, device = json.loads(text)
            found.append((host, device))
        return found

    def _backend(self, own: Sequence[tuple[str, dict[str, Any]]], dist: Any) -> str:
        """What moves the data. Raises RankError where the ranks' devices do not go together."""
        kinds = {told["kind"] for _, told in own}
        if len(kinds) > 1:
            raise RankError("some ranks have a GPU and others a processor alone")
        if kinds == {"cpu"}:
            return "gloo"
        asked = str(self._options.backend)
        backend = asked if asked != "auto" else "nccl" if dist.is_nccl_available() else "gloo"
        places = [(host, told.get("uuid") or told["index"]) for host, told in own]
        twice = next((one for one in places if places.count(one) > 1), None)
        if backend == "nccl" and twice is not None:
            ranks = ", ".join(str(rank) for rank, one in enumerate(places) if one == twice)
            raise RankError(
                f"ranks {ranks} share GPU {twice[1]} of {twice[0]}: NCCL wants one rank a GPU; "
                "start as many ranks as there are GPUs"
            )
        return backend

    def _nccl(self, dist: Any, device: Any) -> Any:
        keywords: dict[str, Any] = {"backend": "nccl"}
        # torch 2.4 and 2.5 do not take it here, and connect with the first operation instead.
        if "device_id" in inspect.signature(dist.new_group).parameters:
            keywords["device_id"] = device
        limit = self._options.limit + SLACK_SECONDS
        return dist.new_group(timeout=dt.timedelta(seconds=limit), **keywords)

    def _document(self, reports: Sequence[dict[str, Any]], failure: str) -> dict[str, Any]:
        from ..probes.wire import version

        place = self._place
        return {
            "schema": SCHEMA,
            "version": version(),
            "started_unix_seconds": self._started,
            "duration_seconds": time.time() - self._started,
            "launcher": place.launcher,
            "world_size": place.world_size,
            "limit_seconds": self._options.limit,
            "problem": failure,
            **self._facts,
            "measurements": together(reports, place.world_size),
            "ranks": list(reports),
        }


def together(reports: Sequence[dict[str, Any]], world_size: int) -> list[dict[str, Any]]:
    """One entry an operation and size that all ranks have measured: the slowest rank's time."""
    times: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for report in reports:
        for one in report.get("collectives", ()):
            times.setdefault((one["operation"], one["bytes"]), []).append(one)
    found = []
    for (operation, size), all_ranks in times.items():
        if len(all_ranks) < world_size:
            continue
        seconds = max(one["seconds"] for one in all_ranks)
        found.append(
            {
                "operation": operation,
                "bytes": size,
                "seconds": seconds,
                "algbw_bytes_per_second": algorithm_bandwidth(size, seconds),
                "busbw_bytes_per_second": bus_bandwidth(operation, world_size, size, seconds),
                "calls": min(one["calls"] for one in all_ranks),
                "correct": all(one["correct"] for one in all_ranks),
            }
        )
    return found


def _set_time_out(dist: Any, seconds: float) -> None:
    """From meeting on, the control group waits no longer than a stage may take."""
    group = dist.group.WORLD
    backend = group._get_backend(_cpu_device())  # noqa: SLF001  no public way to a group's limit
    if hasattr(backend, "_set_default_timeout"):
        backend._set_default_timeout(dt.timedelta(seconds=seconds))  # noqa: SLF001  as above


def _cpu_device() -> Any:
    import torch

    return torch.device("cpu")


def _nccl_version(torch: Any) -> str | None:
    try:
        return ".".join(str(part) for part in torch.cuda.nccl.version())
    except (AttributeError, RuntimeError):
        return None


def _in_one_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__)[:300]


def _raise_ended(_number: int, _frame: Any) -> NoReturn:
    raise _Ended
