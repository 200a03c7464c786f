"""How jobs end and what befalls them: Slurm's, the kernel's, torchrun's and Python's lines, whatever the trainer."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hpctrain.analysis.logs.events import Event, FactEvent, Line
from hpctrain.errors import ConfigError
from hpctrain.plan.devices import find_device
from hpctrain.units import parse_slurm_time

_SLURM_END = re.compile(r"\*\*\* (?:JOB|STEP) (\d+)(?:_\d+)?(\.\w+)? ([^*]*)\*\*\*")
_SLURM_TIME = re.compile(r"\bAT (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)")
_SLURM_CAUSE = re.compile(r"\bDUE (?:TO )?([A-Z][A-Z ]*[A-Z])")
_SLURM_CAUSES = (
    ("TIME LIMIT", "TIMEOUT"),
    ("NODE FAIL", "NODE_FAIL"),
    ("OUT OF MEMORY", "OOM"),
)
"""Part of Slurm's cause, our reason. Preemption and requeue are no ends; anything else is CANCELLED."""

_OTHER_ENDS: tuple[tuple[str, str, re.Pattern[str]], ...] = (
    ("host memory", "OOM", re.compile(r"Detected \d+ oom[-_]kill event", re.IGNORECASE)),
    ("host memory", "OOM", re.compile(r"^srun: error: .*\btasks? [\d,\-\[\]]+: Out Of Memory")),
    ("host memory", "OOM", re.compile(r"\b(?:Out of memory|Memory cgroup out of memory): Kill(?:ed)? process")),
    ("host memory", "OOM", re.compile(r"\boom-kill:constraint=|\bOOMKilled\b")),
    ("host memory", "OOM", re.compile(r"(?:Exceeded|exceeded) (?:job|step) memory limit|\bTERM_MEMLIMIT\b")),
    (
        "host memory",
        "OOM",
        re.compile(r"^(?:\w+\.)*MemoryError\b|DefaultCPUAllocator: (?:can't allocate|not enough) memory"),
    ),
    ("device memory", "OOM", re.compile(r"\b(?:CUDA|HIP|XPU|NPU|HPU) out of memory|CUDA error: out of memory")),
    (
        "device memory",
        "OOM",
        re.compile(r"\b(?:torch|cuda|RuntimeError)[\w.]*: ?\S*OutOfMemoryError|\bOutOfMemoryError:"),
    ),
    ("device memory", "OOM", re.compile(r"RESOURCE_EXHAUSTED: .*(?:[Oo]ut of memory|HBM)")),
    ("node failure", "NODE_FAIL", re.compile(r"^srun: error: Node failure on ")),
    ("time limit", "TIMEOUT", re.compile(r"PBS: job killed: walltime \d+ exceeded limit|\bTERM_RUNLIMIT\b")),
    ("collective time-out", "CRASH", re.compile(r"Watchdog caught collective operation timeout")),
    (
        "launcher",
        "CRASH",
        re.compile(r"\bChildFailedError\b|^torchrun .*\bfailed\b|failed \(exitcode: -?\d+\) local_rank:"),
    ),
    ("launcher", "CRASH", re.compile(r"exits with return code = -?[1-9]\d*")),
    ("exception", "CRASH", re.compile(r"Traceback \(most recent call last\):")),
    ("exception", "CRASH", re.compile(r"\bUncaught \w*(?:Error|[Ee]xception)\b")),
    ("signal", "CRASH", re.compile(r"(?:^|: |\] )(?:Segmentation fault|Bus error|Aborted|Floating point exception)\b")),
    ("signal", "CRASH", re.compile(r"\bFatal Python error: |\bterminate called after throwing an instance\b")),
    (
        "exit code",
        "CRASH",
        re.compile(r"^srun: error: .*\btasks? [\d,\-\[\]]+: (?:Exited with exit code [1-9]|Killed)"),
    ),
    ("launcher", "COMPLETED", re.compile(r"\bProcess \d+ exits successfully\.")),
)
"""Cause, reason, the wording. Source: slurmstepd and srun of Slurm 17 to 24, Linux mm/oom_kill.c, torch,
deepspeed/launcher."""

_WATCHDOG = re.compile(
    r"\[(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)\] PULSE: (?P<job>\S+) is (?P<state>running|waiting)"
    r"(?: for (?P<elapsed>[\d:-]+))?[^(]*\((?P<id>\d+)"
)
_NODE_LIST = re.compile(r"[A-Za-z][\w.-]*(?:\[[\d,-]+\][\w.-]*)+(?:,[A-Za-z][\w.-]*(?:\[[\d,-]+\][\w.-]*)*)*")
_NODE_VARIABLE = re.compile(
    r"\bSLURM_(?:JOB_NUM_NODES|NNODES)=\"?(\d+)\b|\bSLURM_(?:JOB_NODELIST|NODELIST)=\"?(\S+?)\"?\s*$"
)
_GPU = re.compile(
    r"\b(?:NVIDIA |Tesla )?((?:[AHV][12]00|GH200)(?:[- ](?:SXM\d?|PCIe|PCIE|NVL|\d+ ?GB))+)\b"
    r"|GPU capacity: NVIDIA ([^(]+?) \(\d+\) with ([\d.]+)GiB"
)
"""Names with a form or a memory, as nvidia-smi and torch print them; «H100» alone stands in any prose."""
_GPU_MEMORY_GB = (16, 32, 40, 80, 94, 96, 141, 180)
"""As sold; what a process sees, in GiB, is nearest to its own of them."""
_REQUEUE = re.compile(r"\bRequeued job \d+|\bscontrol requeue \d+|\bJob \d+ has been requeued\b")


class SchedulerFormat:
    """Ends, preemptions, requeues, signs of life and node lists; never a record.

    Whether an end is the end of the run is not decided here: records may follow it (see ``conditions``).
    """

    system = "scheduler"
    markers = (
        "*** JOB ",
        "*** STEP ",
        "oom_kill event",
        "oom-kill",
        "srun: error: ",
        "ut of memory",
        "OutOfMemoryError",
        "OOMKilled",
        "memory limit",
        "MemoryError",
        "DefaultCPUAllocator",
        "RESOURCE_EXHAUSTED",
        "TERM_RUNLIMIT",
        "TERM_MEMLIMIT",
        "PBS: job killed",
        "Watchdog caught",
        "ChildFailedError",
        "failed (exitcode",
        "exits with return code",
        "exits successfully",
        "Traceback (most recent call last)",
        "Uncaught ",
        "egmentation fault",
        "Bus error",
        "Aborted",
        "Floating point exception",
        "Fatal Python error",
        "terminate called",
        "PULSE: ",
        "SLURM_",
        "A100",
        "H100",
        "H200",
        "V100",
        "Requeued job",
        "scontrol requeue",
        "has been requeued",
    )
    tflops_convention = "unknown"
    wants_next = False

    def read(self, line: Line) -> Iterator[Event]:
        """The facts of one line."""
        text = line.text
        if "*** JOB " in text or "*** STEP " in text:
            yield from _slurm_end(line)
        elif "PULSE: " in text:
            yield from _watchdog(line)
        elif match := _NODE_VARIABLE.search(text):
            nodes = int(match[1]) if match[1] else num_nodes(match[2])
            if line.whole and nodes:
                yield FactEvent(line.number, "setting", {"nodes": nodes})
        elif _REQUEUE.search(text):
            yield FactEvent(line.number, "requeue", {})
        else:
            for cause, reason, pattern in _OTHER_ENDS:
                if pattern.search(text):
                    yield FactEvent(line.number, "end", {"reason": reason, "cause": cause, "text": text.strip()[:200]})
                    return
            yield from _gpu(line)

    def end(self) -> Iterator[Event]:
        """Nothing is ever open: every fact is in one line."""
        return iter(())


def num_nodes(node_list: str) -> int:
    """Nodes in a list as Slurm writes it: names with commas, numbers in brackets. Source: scontrol(1), «show hostnames».

    >>> num_nodes("node[01-34,36-49]"), num_nodes("a1,b[1-2]c[3-5]"), num_nodes("login")
    (48, 7, 1)
    """
    total = 0
    for part in re.split(r",(?![^\[]*\])", node_list):
        count = 1 if part else 0
        for inside in re.findall(r"\[([^\]]*)\]", part):
            count *= sum(_range_length(piece) for piece in inside.split(","))
        total += count
    return total


def _range_length(piece: str) -> int:
    first, _, last = piece.partition("-")
    if not first.isdigit() or (last and not last.isdigit()):
        return 0
    return int(last) - int(first) + 1 if last else 1


def _gpu(line: Line) -> Iterator[Event]:
    """The GPU that the log names, as the device table calls it; one that the table lacks is no fact."""
    match = _GPU.search(line.text)
    if match is None or not line.whole:
        return
    usable_gib = float(match[3]) if match[3] else None
    nominal_gb = None if usable_gib is None else min(_GPU_MEMORY_GB, key=lambda size: abs(size - usable_gib))
    try:
        device = find_device(match[1] or match[2], nominal_gb)
    except ConfigError:
        return
    yield FactEvent(line.number, "setting", {"gpu": device.name})


def _slurm_end(line: Line) -> Iterator[Event]:
    """Slurm's own word on a job or a step; preemption and requeue are kept apart from ends."""
    match = _SLURM_END.search(line.text)
    if match is None:
        return
    job, step, rest = match.groups()
    time, cause_match = _SLURM_TIME.search(rest), _SLURM_CAUSE.search(rest)
    cause = cause_match[1] if cause_match else ""
    fields: dict[str, object] = {"slurm_job_id": int(job), "end_time": time[1] if time else None}
    if step:
        fields["slurm_step"] = job + step
    if "PREEMPT" in cause:
        yield FactEvent(line.number, "preemption", fields)
    elif "REQUEUE" in cause:
        yield FactEvent(line.number, "requeue", fields)
    else:
        reason = next((reason for part, reason in _SLURM_CAUSES if part in cause), "CANCELLED")
        if " FAILED " in rest and reason == "CANCELLED":
            reason = "CRASH"
        yield FactEvent(line.number, "end", {"reason": reason, "cause": cause.lower() or "cancelled", **fields})


def _watchdog(line: Line) -> Iterator[Event]:
    """A sign of life of a job that a cron job watches. Source: bigscience train/tr11-176B-ml, its Slurm watchdog."""
    match = _WATCHDOG.search(line.text)
    if match is None:
        return
    fields: dict[str, object] = {
        "time": match["time"],
        "state": match["state"],
        "job_name": match["job"],
        "slurm_job_id": int(match["id"]),
    }
    if match["elapsed"]:
        fields["elapsed_s"] = parse_slurm_time(match["elapsed"])
    node_list = _NODE_LIST.search(line.text, match.end())
    if node_list and match["state"] == "running":
        fields["nodes_in_list"] = num_nodes(node_list[0])
    yield FactEvent(line.number, "watchdog", fields)
