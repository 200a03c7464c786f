"""The batch script, whole: of one run, of an array of runs, of a link in a chain. Pure text, tested without Slurm."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import NamedTuple

from hpctrain.plan.job.container import export_lines, rank_command, srun_container_words
from hpctrain.plan.job.slurm_request import SlurmRequest

_OF_AN_OUTER_JOB = (
    "HPCTRAIN_BATCH_SIGNAL HPCTRAIN_FIRST_ATTEMPT SLURM_EXPORT_ENV SRUN_CPUS_PER_TASK SLURM_TRES_PER_TASK"
    " SLURM_MEM_PER_CPU SLURM_MEM_PER_GPU SLURM_MEM_PER_NODE"
)
"""Two forms of memory stop srun; with none of them a step has all of its job's."""
_OPEN = (
    'attempt=$("$python" -m hpctrain.record.open_attempt "$run_dir") || exit',
    '[ -n "$attempt" ] || exit 0',
)
_CONTINUE = '"$python" -m hpctrain.launch.chain "$run_dir"'
_OPEN_IN_CHAIN = (
    'attempt=$("$python" -m hpctrain.record.open_attempt "$run_dir")',
    "opened=$?",
    f'[ -n "$attempt" ] || {{ {_CONTINUE}; exit "$opened"; }}',
)
_FINISH = (
    "doing=",
    "finish() {",
    "    code=$?",
    "    trap '' TERM",
    '    "$python" -m hpctrain.record.close_attempt "$run_dir" "$code" "$doing"',
    '    rm -rf -- {"${TMPDIR:-/tmp}",/tmp,/var/tmp}/"hpctrain-${USER:-user}-$job-$HPCTRAIN_ATTEMPT"',
    '    exit "$code"',
    "}",
    "trap finish EXIT",
)
"""However the script ends, an ``exit`` or ``set -e`` of cluster.setup included: the end marker, and no cache of killed ranks on
this node (``rank_env.cache_dir``). Slurm's TERM may come after srun has ended, and must not end that work."""

_LOOK = (
    'n=0; until [ -e "$0" ]; do n=$((n + 1)); [ "$n" -lt 60 ] || { echo "$SLURMD_NODENAME"; exit; };'
    ' ls "${0%/*}" >/dev/null 2>&1; sleep 1; done'
)
_VIEW_CHECK = (
    f"look='{_LOOK}'",
    'unseen=$(srun --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 sh -c "$look" "$run_dir/token" | sort | tr "\\n" " ")',
    'doing="run.root: $run_dir is not on a file system that these nodes see: $unseen"',
    '[ -z "$unseen" ] || exit 11',
)
"""Names the nodes that do not see the submission's token within a minute (NFS may show it late).

Without it srun says «could not connect IO» of them, since it cannot open their logs there, and the ranks of the other nodes wait
for all of training.start_timeout_min. A site whose srun refuses the step is not stopped by it.
"""


class TaskArray(NamedTuple):
    """Points of a sweep with the same request, as the tasks of one array."""

    sweep_dir: str
    """Absolute path of the sweep folder, without ``%``."""
    group: int
    spec: str
    """Value of --array: ``0-15``, ``0-15%4``, ``2,5``."""

    def run_dir(self, index: int) -> str:
        """The run folder of one task.

        >>> TaskArray("/sweep", 2, "0-15").run_dir(7)
        '/sweep/run-2-0007'
        """
        return f"{self.sweep_dir}/run-{self.group}-{index:04d}"


@dataclass(frozen=True)
class ScriptTarget:
    """Which run (or runs) a script starts, and with what."""

    runs: str | TaskArray
    """The absolute path of a run folder, without ``%`` (sbatch expands it in output paths), or an array of them."""
    python: str
    """Absolute path of the interpreter on the nodes."""
    snapshot: str = ""
    """Folder that holds the package as it was at submission; empty: the interpreter has it."""
    key: str = ""
    """Comment by which the job is found again, unless the request has its own."""
    after: str = ""
    """Job id that must have ended before this one starts: the link before it in a chain."""
    first_attempt: int = 1
    """Number of the first start that this submission makes; above 1 for a resumed run."""


def sbatch_script(request: SlurmRequest, target: ScriptTarget) -> str:
    """The batch script.

    ``--export=ALL`` is safe since ``hpctrain.launch.environment`` defines what sbatch is called with. Variables of an outer
    job that would contradict the request are removed once more, for a script that is submitted by hand.

    Its life: ``open_attempt`` numbers this start of the run, or says that none is needed (no number) or allowed (its exit code
    is the script's); ``cluster.setup``; the ranks; ``close_attempt`` writes the end marker where the ranks could not (killed,
    out of memory, srun refused). On SIGTERM (scancel, preemption, time limit) bash waits for srun, whose ranks get the signal
    too, and still writes the marker; ``close_attempt`` finds ``HPCTRAIN_BATCH_SIGNAL=TERM`` then. The warning signal is for the
    ranks: where it comes to the script alone, it must not end it.
    """
    lines = [
        "#!/bin/bash",
        *(f"#SBATCH {_directive(option)}" for option in _directives(request, target)),
        "",
        f"unset {_OF_AN_OUTER_JOB}",
        "trap 'export HPCTRAIN_BATCH_SIGNAL=TERM' TERM",
        "trap : USR1",
        *_export_lines(request, target),
        *_identity_lines(target.runs),
        f"python={shlex.quote(target.python)}",
        "",
        *([f"export HPCTRAIN_FIRST_ATTEMPT={target.first_attempt}"] if target.first_attempt > 1 else []),
        *(_OPEN_IN_CHAIN if request.is_chain else _OPEN),
        'export HPCTRAIN_ATTEMPT="$attempt"',
        *_finish_lines(request.is_chain),
        *_secret_lines(request.secret_names),
        *_setup_lines(request.setup, target.snapshot),
        "",
        *(_VIEW_CHECK if request.num_nodes > 1 else ()),
        "doing=",
        *_container_lines(request, target),
        f"{_srun_words(request, target)} \\",
        f"    {rank_command(request.container, target.snapshot, request.has_gpus)}",
        "",
    ]
    return "\n".join(lines)


def _directives(request: SlurmRequest, target: ScriptTarget) -> list[str]:
    options = request.options
    if target.key and "comment" not in options:
        options = {**options, "comment": target.key}
    if isinstance(target.runs, TaskArray):
        array = target.runs
        own = [f"--array={array.spec}", f"--output={array.sweep_dir}/run-{array.group}-%4a/logs/batch.log"]
    else:
        own = [f"--output={target.runs}/logs/batch.log"]
    requeue = {None: [], True: ["--requeue"], False: ["--no-requeue"]}[request.requeue]
    return [
        f"--job-name={request.job_name}",
        f"--nodes={request.num_nodes}",
        f"--ntasks-per-node={request.tasks_per_node}",
        *([f"--cpus-per-task={request.cpus_per_task}"] if request.cpus_per_task else []),
        *(f"--{name}={value}" if value else f"--{name}" for name, value in options.items()),
        *requeue,
        *([f"--dependency=afterany:{target.after}"] if target.after else []),
        "--open-mode=append",
        *own,
        "--export=ALL",
    ]


def _export_lines(request: SlurmRequest, target: ScriptTarget) -> list[str]:
    """Where the package comes from, then the user's variables; a PYTHONPATH of the user's comes after ours."""
    variables = dict(request.environment)
    fixed = "export PYTHONUTF8=1 PYTHONUNBUFFERED=1"
    lines = [fixed]
    if target.snapshot:
        path = ":".join(filter(None, (target.snapshot, variables.pop("PYTHONPATH", ""))))
        rest = "${PYTHONPATH:+:$PYTHONPATH}" if request.inherit_env else ""
        lines = [f"{fixed} PYTHONSAFEPATH=1 PYTHONPATH={shlex.quote(path)}{rest}"]
    return lines + [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]


def _passed_names(request: SlurmRequest, target: ScriptTarget) -> list[str]:
    """Variables that a container's image must not change."""
    source = ["PYTHONSAFEPATH", "PYTHONPATH"] if target.snapshot else []
    fixed = ["PYTHONUTF8", "PYTHONUNBUFFERED", *source, "TMPDIR", "HPCTRAIN_ATTEMPT"]
    return list(dict.fromkeys((*fixed, *request.environment, *request.secret_names)))


def _container_lines(request: SlurmRequest, target: ScriptTarget) -> list[str]:
    """The node's TMPDIR is not in the image, /tmp is."""
    if request.container.runtime == "none":
        return []
    temporary = [] if "TMPDIR" in request.environment else ["export TMPDIR=/tmp"]
    return [*temporary, *export_lines(request.container, _passed_names(request, target))]


def _secret_lines(names: tuple[str, ...]) -> list[str]:
    """The end of a job whose secrets are not in its environment: the script was submitted from another shell."""
    if not names:
        return []
    return [
        f"for name in {' '.join(map(shlex.quote, names))}; do",
        '    doing="env.$name: secret, so no file has it; export it before sbatch"',
        '    [ -n "${!name+set}" ] || exit 1',
        "done",
    ]


def _identity_lines(runs: str | TaskArray) -> list[str]:
    """Which run this is, and the job's id as Slurm's commands take it."""
    if isinstance(runs, TaskArray):
        prefix = shlex.quote(f"{runs.sweep_dir}/run-{runs.group}-")
        return [
            f"printf -v run_dir '%s%04d' {prefix} \"$SLURM_ARRAY_TASK_ID\"",
            "job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID",
        ]
    return [f"run_dir={shlex.quote(runs)}", "job=$SLURM_JOB_ID"]


def _finish_lines(is_chain: bool) -> tuple[str, ...]:
    if not is_chain:
        return _FINISH
    # After all else, since a requeue ends the script.
    place = _FINISH.index('    exit "$code"')
    return (*_FINISH[:place], f"    {_CONTINUE}", *_FINISH[place:])


def _setup_lines(setup: tuple[str, ...], snapshot: str) -> list[str]:
    """Each line of the user's, and the end of the job where it fails: ranks must not start without their modules.

    A module may set PYTHONPATH; the package's copy comes first again.
    """
    if not setup:
        return []
    again = [f"export PYTHONPATH={shlex.quote(snapshot)}${{PYTHONPATH:+:$PYTHONPATH}}"] if snapshot else []
    lines = [
        text for line in setup for text in (f"doing={shlex.quote(f'cluster.setup: {line}')}", f"{{ {line}", "} || exit")
    ]
    return lines + again


def _srun_words(request: SlurmRequest, target: ScriptTarget) -> str:
    words = [
        "srun",
        "--export=ALL",
        "--kill-on-bad-exit=1",
        "--wait=60",
        "--unbuffered",
        "--open-mode=append",
        '--output="$run_dir/logs/rank-%t.log"',
        *([f"--cpus-per-task={request.cpus_per_task}"] if request.cpus_per_task else []),
        *map(shlex.quote, request.srun_args),
        *srun_container_words(request.container, target.snapshot, _passed_names(request, target)),
    ]
    return " ".join(words)


def _directive(option: str) -> str:
    """sbatch splits directives at blanks and honours quotes."""
    return option if re.fullmatch(r"[\w@%+=:,./\[\]-]*", option) else shlex.quote(option)
