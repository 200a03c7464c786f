"""The command line as a process: exit codes, what is printed, what is imported, what is left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("torch", "deepspeed", "pandas", "matplotlib", "submitit", "rich")


def hpctrain(
    *words: str, env: dict[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    source = str(Path(__file__).parents[2])
    variables = {**os.environ, "PYTHONPATH": source, **(env or {})}
    return subprocess.run(
        [sys.executable, "-m", "hpctrain", *words], capture_output=True, text=True, env=variables, cwd=cwd, check=False
    )


def test_plan_prints_all_of_it_and_exits_0() -> None:
    answer = hpctrain("plan", "model=530b", "nodes=128")
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.startswith("note: hardware not stated: ndm_a100_v4")
    for part in ("529,582,469,120", "#SBATCH --nodes=128", '"zero_optimization"', "Megatron FLOPs", "the choice among"):
        assert part in answer.stdout


def test_plan_as_json_is_the_same_plan() -> None:
    answer = hpctrain("plan", "model=530b", "nodes=128", "--json")
    assert json.loads(answer.stdout)["layout"]["world_size"] == 1024


def test_planning_imports_nothing_heavy() -> None:
    program = (
        "import sys; from hpctrain.cli import run; run(['plan', 'model=530b', 'nodes=128']);"
        f"sys.exit(' '.join(name for name in {HEAVY} if name in sys.modules) or 0)"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (answer.returncode, answer.stderr) == (0, "")


def test_what_every_submission_loads_is_what_it_needs() -> None:
    """Each of these costs a submission milliseconds: Slurm's run needs none of them, or only after a mistake."""
    modules = ("submit", "run_folder", "site.plans", "here", "preflight", "container_check", "submitting_shell")
    unneeded = (*HEAVY, "pydantic", "psutil", "difflib", "hpctrain.launch.sweep", "hpctrain.launch.status.rows")
    program = (
        f"import sys, hpctrain.cli, hpctrain.plan.run_plan, {', '.join(f'hpctrain.launch.{name}' for name in modules)};"
        f"sys.exit(' '.join(name for name in {unneeded} if name in sys.modules) or 0)"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (answer.returncode, answer.stderr) == (0, "")


def test_without_slurm_one_clear_error_and_nothing_left_behind(tmp_path: Path) -> None:
    answer = hpctrain("model=530b", "nodes=128", env={"PATH": str(tmp_path)}, cwd=tmp_path)
    assert answer.returncode == 4
    assert "no sbatch" in answer.stderr
    assert "cluster=local" in answer.stderr
    assert "plan" in answer.stderr
    assert "Traceback" not in answer.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [
        (["model=530B"], 2, "nearest: 530b"),
        (["model=tiny", "cluster=local", "nodes=two"], 2, "nodes='two'"),
        (["model=tiny", "cluster=local", "run.root=/proc/nowhere"], 2, "run.root=/proc/nowhere"),
        (["model=tiny", "cluster=local", "run.root=x%j"], 2, "sbatch expands %"),
        (["model=tiny", "cluster=local", "data=text", "data.path=/no/such/file"], 2, "data.path=/no/such/file"),
        (
            ["model=tiny", "cluster=local", "data=tokens", "data.path=/no/such"],
            2,
            "/no/such.bin: there is no such file",
        ),
        (["plan", "model=2t", "nodes=4"], 3, ""),
        (["plan", "model=530b", "--tokens", "-5"], 2, "--tokens=-5: must be above zero"),
        (["model=530b", "--tokens", "1B"], 2, "is no option of this verb"),
        (["model=2t", "nodes=4"], 3, "short by"),
        (["model=2t", "nodes=4"], 3, "configurations fits; this one is the nearest"),
        (
            ["model=1.3b", "parallelism.pipeline_parallel_size=4", "parallelism.zero_stage=3"],
            2,
            "goes with ZeRO stage 1",
        ),
        (["model=tiny", "cluster=local", "hardware=hgx_h200"], 4, "this machine shows 0"),
        (["stauts"], 2, "nearest: status"),
        (["model=tiny", "--foce"], 2, "--foce"),
        (["status", "/no/such/folder"], 2, "no such folder"),
        (["model=tiny", "--config-dir", "/no/such/folder"], 2, "--config-dir"),
    ],
    ids=[
        "model",
        "nodes",
        "root",
        "percent",
        "data",
        "token-files",
        "plan-does-not-fit",
        "tokens",
        "tokens-of-submit",
        "does-not-fit",
        "no-choice-fits",
        "contradiction",
        "no-gpus",
        "verb",
        "option",
        "status",
        "site",
    ],
)
def test_mistakes(words: list[str], code: int, expected: str, tmp_path: Path) -> None:
    answer = hpctrain(*words, cwd=tmp_path)
    assert answer.returncode == code, answer.stderr
    assert expected in answer.stderr
    assert "Traceback" not in answer.stderr
    assert list(tmp_path.iterdir()) == []


def test_help_names_verbs_and_choices() -> None:
    answer = hpctrain("--help")
    assert answer.returncode == 0
    for part in ("status", "530b", "zero3_offload", "ndm_a100_v4", "Exit codes"):
        assert part in answer.stdout


def test_cfg_job_shows_every_key() -> None:
    answer = hpctrain("--cfg", "job", "model=tiny", "training.micro_batch_size=3")
    assert "  micro_batch_size: 3\n" in answer.stdout
    assert "  weight_decay: 0.1\n" in answer.stdout
    # What would run: nothing is left open.
    assert "parallelism:\n  name: ddp\n  zero_stage: 0\n" in answer.stdout


def test_hydra_completes_names() -> None:
    answer = hpctrain("-sc", "query=bash", env={"COMP_LINE": "hpctrain model=53", "COMP_POINT": "17"})
    assert answer.stdout.split() == ["model=530b"]


def test_hydra_completes_behind_a_verb() -> None:
    answer = hpctrain("-sc", "query=bash", env={"COMP_LINE": "hpctrain plan model=53", "COMP_POINT": "22"})
    assert answer.stdout.split() == ["model=530b"]


def test_completion_without_a_subcommand_is_no_traceback() -> None:
    answer = hpctrain("--shell-completion")
    assert (answer.returncode, "Traceback" in answer.stderr) == (2, False)


def test_a_closed_pipe_is_no_error() -> None:
    command = f"{sys.executable} -m hpctrain plan model=530b nodes=128 | head -1; exit ${{PIPESTATUS[0]}}"
    answer = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (answer.returncode, answer.stderr) == (0, "")


def test_a_c_locale_prints_what_it_can() -> None:
    answer = hpctrain("plan", "model=tiny", "run.name=prüfung", env={"LC_ALL": "C", "PYTHONUTF8": "0"})
    assert answer.returncode == 0, answer.stderr


def test_status_in_a_fresh_folder(tmp_path: Path) -> None:
    answer = hpctrain("status", cwd=tmp_path)
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, "no runs\n", "")
    assert hpctrain("status", "--json", cwd=tmp_path).stdout == "[]\n"
    named = hpctrain("status", "runs", cwd=tmp_path)
    assert (named.returncode, named.stdout) == (2, "")


def test_version() -> None:
    assert hpctrain("--version").stdout.startswith("hpctrain ")


def test_a_full_device_is_one_message() -> None:
    with Path("/dev/full").open("w") as full:
        answer = subprocess.run(
            [sys.executable, "-m", "hpctrain", "plan", "model=tiny"],
            stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert (answer.returncode, answer.stderr) == (
        1,
        "hpctrain: the output cannot be written: No space left on device\n",
    )
