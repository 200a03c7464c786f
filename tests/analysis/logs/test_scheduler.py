"""Ends, preemptions, signs of life and node lists in the words of Slurm, the kernel, torchrun and Python."""

from __future__ import annotations

from typing import Any

import pytest

from hpctrain.analysis.logs.events import END_REASONS, Line
from hpctrain.analysis.logs.scheduler import SchedulerFormat, num_nodes


def read(text: str, whole: bool = True) -> list[Any]:
    assert any(marker in text for marker in SchedulerFormat.markers), "no marker: the line is never shown to the format"
    return list(SchedulerFormat().read(Line(3, text, whole=whole)))


@pytest.mark.parametrize(
    ("text", "kind", "fields"),
    [
        pytest.param(
            "slurmstepd: error: *** STEP 123.0 ON n CANCELLED AT 2021-05-24T09:50:34 DUE TO TIME LIMIT ***",
            "end",
            {"reason": "TIMEOUT", "slurm_job_id": 123, "slurm_step": "123.0", "end_time": "2021-05-24T09:50:34"},
            id="step-time-limit",
        ),
        pytest.param(
            "slurmstepd: error: *** JOB 123 ON n CANCELLED AT 2021-05-24T09:50:34 DUE TO TIME LIMIT ***",
            "end",
            {"reason": "TIMEOUT", "slurm_job_id": 123, "end_time": "2021-05-24T09:50:34"},
            id="job-time-limit",
        ),
        pytest.param(
            "slurmstepd: error: *** JOB 5 ON n CANCELLED AT 2020-12-14T09:44:56 DUE TO NODE FAILURE, SEE SLURMCTLD LOG ***",
            "end",
            {"reason": "NODE_FAIL", "slurm_job_id": 5},
            id="node-failure",
        ),
        pytest.param(
            "slurmstepd-n1: error: *** STEP 7.0 ON n1 CANCELLED AT 2021-10-27T19:35:36 ***",
            "end",
            {"reason": "CANCELLED", "cause": "cancelled", "slurm_step": "7.0"},
            id="cancelled",
        ),
        pytest.param(
            "slurmstepd: error: *** STEP 7.0 STEPD TERMINATED ON n AT 2020-12-14T09:44:56 DUE TO JOB NOT ENDING WITH"
            " SIGNALS ***",
            "end",
            {"reason": "CANCELLED", "cause": "job not ending with signals"},
            id="not-ending",
        ),
        pytest.param(
            "slurmstepd: error: *** JOB 7 ON n FAILED (non-zero exit code or other failure mode) ***",
            "end",
            {"reason": "CRASH", "end_time": None},
            id="failed",
        ),
        pytest.param(
            "slurmstepd: error: *** STEP 7.0 ON n CANCELLED AT 2024-05-01T10:00:07 DUE TO PREEMPTION ***",
            "preemption",
            {"slurm_job_id": 7, "end_time": "2024-05-01T10:00:07"},
            id="preemption",
        ),
        pytest.param(
            "slurmstepd: error: *** JOB 7 ON n CANCELLED AT 2024-05-01T10:00:07 DUE TO JOB REQUEUE ***",
            "requeue",
            {"slurm_job_id": 7},
            id="requeue",
        ),
        pytest.param("submitit INFO - Requeued job 4711 (2 remaining timeouts)", "requeue", {}, id="submitit-requeue"),
        pytest.param("SLURM_JOB_NODELIST=node[01-34,36-49]", "setting", {"nodes": 48}, id="node-list"),
        pytest.param('declare -x SLURM_NNODES="16"', "setting", {"nodes": 16}, id="number-of-nodes"),
        pytest.param(
            "[2022-05-01 05:56:18] PULSE: tr11 is running for 1-09:27:40 since 2022-04-29T20:28:38 (2000763 on 'gpu_p5'"
            " partition (node[01-34,36-49])",
            "watchdog",
            {
                "time": "2022-05-01 05:56:18",
                "state": "running",
                "elapsed_s": 120460,
                "slurm_job_id": 2000763,
                "nodes_in_list": 48,
            },
            id="watchdog-running",
        ),
        pytest.param(
            "[2022-05-01 05:56:18] PULSE: tr11 is waiting to be scheduled (2000874_[1-3%1] on 'gpu_p5' partition)",
            "watchdog",
            {"state": "waiting", "slurm_job_id": 2000874},
            id="watchdog-waiting-array",
        ),
    ],
)
def test_the_schedulers_own_lines(text: str, kind: str, fields: dict[str, Any]) -> None:
    (event,) = read(text)
    assert event.kind == kind
    assert event.line_number == 3
    assert {name: event.fields[name] for name in fields} == fields


@pytest.mark.parametrize(
    ("text", "reason", "cause"),
    [
        ("slurmstepd: error: Detected 1 oom-kill event(s) in step 3495064.0 cgroup.", "OOM", "host memory"),
        ("slurmstepd: error: Detected 2 oom_kill events in StepId=113.0. Some of the tasks", "OOM", "host memory"),
        ("srun: error: node07: task 12: Out Of Memory", "OOM", "host memory"),
        ("[123.4] Memory cgroup out of memory: Killed process 4711 (python)", "OOM", "host memory"),
        ("Out of memory: Kill process 4711 (python) score 9", "OOM", "host memory"),
        ("slurmstepd: error: Exceeded job memory limit at some point.", "OOM", "host memory"),
        ("MemoryError", "OOM", "host memory"),
        ("RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB", "OOM", "device memory"),
        ("torch.OutOfMemoryError: HIP out of memory. Tried to allocate 64.00 MiB", "OOM", "device memory"),
        ("RuntimeError: CUDA error: out of memory", "OOM", "device memory"),
        ("jaxlib.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate", "OOM", "device memory"),
        ("srun: error: Node failure on node11", "NODE_FAIL", "node failure"),
        ("=>> PBS: job killed: walltime 3610 exceeded limit 3600", "TIMEOUT", "time limit"),
        ("[Rank 5] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=26)", "CRASH", "collective time-out"),
        ("torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ", "CRASH", "launcher"),
        ("ERROR: failed (exitcode: -9) local_rank: 3 (pid: 4711) of binary: python", "CRASH", "launcher"),
        ("[ERROR] [launch.py:321:sigkill_handler] ['python'] exits with return code = -9", "CRASH", "launcher"),
        ("Traceback (most recent call last):", "CRASH", "exception"),
        ("[2024-04-18 19:10:41] CRITICAL Uncaught OLMoThreadError: generator thread failed", "CRASH", "exception"),
        ("Segmentation fault (core dumped)", "CRASH", "signal"),
        ("srun: error: node07: tasks 0-3: Exited with exit code 1", "CRASH", "exit code"),
        ("[INFO] [launch.py:347:main] Process 4711 exits successfully.", "COMPLETED", "launcher"),
    ],
    ids=lambda value: value[:40] if " " in value else value,
)
def test_other_ends(text: str, reason: str, cause: str) -> None:
    (event,) = read(text)
    assert (event.kind, event.fields["reason"], event.fields["cause"]) == ("end", reason, cause)
    assert event.fields["reason"] in END_REASONS


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("srun: error: node07: task 12: Terminated", id="terminated-follows-from-another-end"),
        pytest.param("[launch.py:253] Killing subprocess 13751, exits with return code = 0", id="return-code-zero"),
        pytest.param("*** JOB of the day ***", id="no-number"),
        pytest.param("PULSE: the heart beats", id="no-watchdog"),
        pytest.param("SLURM_NNODES=many", id="no-nodes"),
        pytest.param("the memory limit is 64 GB", id="prose"),
    ],
)
def test_other_lines_give_nothing(text: str) -> None:
    assert read(text) == []


@pytest.mark.parametrize(
    ("text", "gpu"),
    [
        ("|   0  NVIDIA A100-SXM4-80GB          On  | 00000000:07:00.0 Off |", "A100-SXM-80GB"),
        ("GPU 0: Tesla V100-SXM2-32GB (UUID: GPU-1)", "V100-SXM-32GB"),
        ("NVIDIA H100 80GB HBM3", "H100-SXM-80GB"),
        ("[titan] root - INFO - GPU capacity: NVIDIA A100-SXM4-40GB (0) with 39.39GiB memory", "A100-SXM-40GB"),
        ("[titan] root - INFO - GPU capacity: NVIDIA H100 (0) with 79.11GiB memory", "H100-SXM-80GB"),
    ],
    ids=["nvidia-smi", "list", "torch", "torchtitan", "torchtitan-without-form"],
)
def test_the_gpu_that_a_log_names(text: str, gpu: str) -> None:
    (event,) = read(text)
    assert (event.kind, event.fields) == ("setting", {"gpu": gpu})


@pytest.mark.parametrize(
    "text",
    ["we had H100 nodes", "H100-SXM-7GB", "[titan] GPU capacity: NVIDIA H100 (0) with 300.0GiB memory"],
    ids=["prose", "no-such-memory", "far-too-large"],
)
def test_other_gpus_are_no_fact(text: str) -> None:
    assert read(text) == []


def test_a_node_list_at_the_cut_end_of_a_file_is_not_counted() -> None:
    assert read("SLURM_JOB_NUM_NODES=12", whole=False) == []


@pytest.mark.parametrize(
    ("node_list", "count"),
    [
        ("node[01-34,36-49]", 48),
        ("login", 1),
        ("a1,a2,b[1-3]", 5),
        ("rack[1-2]node[01-10]", 20),
        ("x[7]", 1),
        ("", 0),
        ("n[a-b]", 0),
    ],
    ids=["missing-index", "one", "list", "two-brackets", "single", "empty", "no-numbers"],
)
def test_nodes_of_a_list(node_list: str, count: int) -> None:
    assert num_nodes(node_list) == count
