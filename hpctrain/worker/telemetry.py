"""Telemetry: one rank of each node looks at the node's memory and GPUs from a thread, and appends to ``nodes/<name>.jsonl``."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import psutil
import torch
import torch.distributed as dist

from hpctrain.record.paths import RunPaths
from hpctrain.record.schema import SCHEMA_VERSION, NodeSample
from hpctrain.record.writer import SampleWriter
from hpctrain.worker.gpu_samples import NodeGpus, gpu_names
from hpctrain.worker.host_memory import host_memory, memory_groups
from hpctrain.worker.rank_env import RankEnv
from hpctrain.worker.step_log import StepLog

_STOP_TIMEOUT_S = 5.0
"""How long the end of a run waits for a driver or a file system that hangs."""


@dataclass(frozen=True)
class RankProcess:
    """One rank as the telemetry of its node must know it."""

    node_name: str
    local_rank: int
    pid: int
    pid_namespace: str
    """In another one (a container of its own) the same pid is another process."""
    gpu_names: tuple[str, ...]
    """See ``gpu_samples.gpu_names``; empty on CPU."""


def own_process(env: RankEnv, device: torch.device) -> RankProcess:
    """This rank."""
    names: tuple[str, ...] = ()
    if device.type == "cuda":
        index = torch.cuda.current_device()
        names = gpu_names(str(torch.cuda.get_device_properties(index).uuid), index, os.environ)
    return RankProcess(env.node_name, env.local_rank, os.getpid(), os.readlink("/proc/self/ns/pid"), names)


def processes_of_node(own: RankProcess) -> tuple[RankProcess, ...]:
    """The ranks on this rank's node by local rank; a collective of all ranks."""
    found: list[RankProcess | None] = [None] * dist.get_world_size()
    dist.all_gather_object(found, own)
    here = [process for process in found if process is not None and process.node_name == own.node_name]
    return tuple(sorted(here, key=lambda process: process.local_rank))


@contextmanager
def node_telemetry(
    paths: RunPaths, env: RankEnv, device: torch.device, interval_s: float | None
) -> Iterator[Telemetry | None]:
    """Telemetry of this node while the block runs; a collective of all ranks.

    Args:
        paths: the run.
        env: this rank; None comes back where its local rank is not 0.
        device: the rank's device.
        interval_s: ``training.telemetry_interval_s``, the same on all ranks; None: no telemetry.
    """
    if interval_s is None:
        yield None
        return
    own = own_process(env, device)
    processes = processes_of_node(own)
    if env.local_rank != 0:
        yield None
        return
    writer = SampleWriter(paths.node_samples(env.node_name))
    telemetry = Telemetry(writer, env.attempt, own, processes, interval_s)
    telemetry.start()
    try:
        yield telemetry
    finally:
        telemetry.stop()


class Telemetry:
    """A thread that writes a sample at the start, after each interval and at the end.

    An error ends the telemetry with one line in the rank's log, and never the run.
    """

    def __init__(
        self,
        writer: SampleWriter,
        attempt: int,
        own: RankProcess,
        processes: Sequence[RankProcess],
        interval_s: float,
    ) -> None:
        self._writer = writer
        self._attempt = attempt
        self._own = own
        self._processes = tuple(processes)
        self._interval_s = interval_s
        self._log: StepLog | None = None
        self._stopping = threading.Event()
        # A daemon: a driver that hangs must not keep the process.
        self._thread = threading.Thread(target=self._run, name="hpctrain-telemetry", daemon=True)

    def follow(self, log: StepLog) -> None:
        """From now on samples carry the last step of ``log``; before they carry 0."""
        self._log = log

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Returns when the last sample is written, or after 5 s with a line in the log."""
        self._stopping.set()
        self._thread.join(_STOP_TIMEOUT_S)
        if self._thread.is_alive():
            self._tell(f"has not stopped within {_STOP_TIMEOUT_S:g} s, the last sample may be missing")

    def _run(self) -> None:
        try:
            self._sample_until_stopped()
        # Whatever it is, of NVML, the file system or psutil: training goes on.
        except Exception as error:
            self._tell(f"has ended: {type(error).__name__}: {error}; training goes on")

    def _sample_until_stopped(self) -> None:
        processes = self._visible_processes()
        groups = memory_groups()
        names = [process.gpu_names for process in self._processes]
        gpus = NodeGpus(names) if any(names) else None
        if gpus is not None and gpus.unseen:
            self._tell(f"is without the GPUs of local ranks {_listed(gpus.unseen)}: the driver does not show them here")
        self._writer.open()
        is_last = False
        while True:
            memory = host_memory(groups)
            self._writer.append(
                NodeSample(
                    schema_version=SCHEMA_VERSION,
                    attempt=self._attempt,
                    time_s=time.time(),
                    step=0 if self._log is None else self._log.last_step,
                    host_used_bytes=memory.used_bytes,
                    host_total_bytes=memory.total_bytes,
                    ranks_rss_bytes=sum(_resident_bytes(process) for process in processes),
                    gpus=() if gpus is None else gpus.samples(),
                )
            )
            if is_last:
                return
            is_last = self._stopping.wait(self._interval_s)

    def _visible_processes(self) -> list[psutil.Process]:
        own_namespace = self._own.pid_namespace
        hidden = [process.local_rank for process in self._processes if process.pid_namespace != own_namespace]
        if hidden:
            self._tell(f"counts no resident size of local ranks {_listed(hidden)}: they run in other pid namespaces")
        found = []
        for process in self._processes:
            if process.pid_namespace == own_namespace:
                with suppress(psutil.NoSuchProcess):  # ended already
                    found.append(psutil.Process(process.pid))
        return found

    def _tell(self, what: str) -> None:
        print(f"hpctrain: telemetry of node {self._own.node_name} {what}", flush=True)


def _resident_bytes(process: psutil.Process) -> int:
    """Resident size of a process, 0 when it has ended, also when its pid has come back."""
    try:
        return int(process.memory_info().rss) if process.is_running() else 0
    except psutil.NoSuchProcess:
        return 0


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))
