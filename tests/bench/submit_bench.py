"""Submission beside the usual way, on the Slurm that SLURM_CONF names (such as the sandbox); all jobs are held and cancelled.

``python tests/bench/submit_bench.py [ROUNDS]`` prints two comparisons; the form is stated, since the minimal script
searches for none:

- one run: ``python -m hpctrain`` as a whole process, beside a script that imports Hydra, composes the same configuration and
  calls submitit; the aim is at most 1.2 times as long;
- a sweep of 1,000 points of equal shape, beside the same points by hydra-submitit-launcher (installed by pip into a temporary
  folder; left out where that does not work; once, since it takes minutes) until squeue has the array; the aim is at most 10 s
  and 3 calls of sbatch.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2]
CONF = SOURCE / "conf"
NUM_POINTS = 1000
LONGEST_S = 1200
WORDS = ("model=tiny", "parallelism=zero3", "cluster=sandbox", "data=synthetic")
HELD = "cluster.extra.hold=true"
MINIMAL = f"""
import submitit
from hydra import compose, initialize_config_dir
with initialize_config_dir(config_dir={str(CONF)!r}, version_base="1.3"):
    config = compose("config", overrides={list(WORDS)!r})
executor = submitit.SlurmExecutor(folder="submitit")
executor.update_parameters(nodes=config.nodes, ntasks_per_node=2, time=10, additional_parameters={{"hold": True}})
print(executor.submit(print, "hello").job_id)
"""
LAUNCHER_APP = f"""
import hydra
@hydra.main(version_base="1.3", config_path={str(CONF)!r}, config_name="config")
def app(config):
    print(config.training.seed)
app()
"""
LAUNCHER_WORDS = (
    *("-m", "hydra/launcher=submitit_slurm", "+hydra.launcher.additional_parameters={hold:true}"),
    *("hydra.launcher.tasks_per_node=2", "hydra.launcher.nodes=1", *WORDS, f"+training.seed=range(0,{NUM_POINTS})"),
)


def main() -> None:
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # users' Python compiles a module once
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 9
    if "SLURM_CONF" not in os.environ:
        sys.exit('no SLURM_CONF: eval "$(python3 slurm/sandbox/sandbox.py up)" first')
    with tempfile.TemporaryDirectory(prefix="submit-bench-") as folder:
        here = Path(folder)
        one_run(here, rounds)
        sweep(here, min(rounds, 3))


def one_run(here: Path, rounds: int) -> None:
    commands = {
        "minimal script": [sys.executable, "-c", MINIMAL],
        "hpctrain": [sys.executable, "-m", "hpctrain", *WORDS, HELD],
    }
    seconds = in_turns({name: functools.partial(timed, command, here) for name, command in commands.items()}, rounds)
    print(f"one run: ratio {seconds['hpctrain'] / seconds['minimal script']:.2f}, aim at most 1.2")


def sweep(here: Path, rounds: int) -> None:
    calls = count_sbatch(here)
    command = [sys.executable, "-m", "hpctrain", "-m", *WORDS, HELD, f"training.seed=range(0,{NUM_POINTS})"]
    ours = in_turns({f"hpctrain, {NUM_POINTS} points": functools.partial(timed, command, here)}, rounds)
    (seconds,) = ours.values()
    num_calls = len(calls.read_text(encoding="utf-8").splitlines()) / rounds
    print(f"sweep: {seconds:.2f} s, aim at most 10; {num_calls:.1f} calls of sbatch, aim at most 3", flush=True)
    launcher = launcher_packages(here)
    if launcher is None:
        print("hydra-submitit-launcher could not be installed")
        return
    app = here / "app.py"
    app.write_text(LAUNCHER_APP, encoding="utf-8")
    path = os.pathsep.join((str(launcher), os.environ.get("PYTHONPATH", "")))
    command = [sys.executable, str(app), *LAUNCHER_WORDS]
    theirs = in_turns({"hydra-submitit-launcher": lambda: until_in_queue(command, here, {"PYTHONPATH": path})}, 1)
    print(f"sweep: ratio {seconds / theirs['hydra-submitit-launcher']:.3f}")


def count_sbatch(here: Path) -> Path:
    """An sbatch first in PATH that counts the calls of hpctrain (by its --parsable) and hands them on."""
    calls, programs = here / "calls", here / "bin"
    programs.mkdir()
    calls.touch()
    real = shutil.which("sbatch")
    script = f'#!/bin/sh\ncase $1 in --parsable) echo x >> {calls} ;; esac\nexec {real} "$@"\n'
    (programs / "sbatch").write_text(script, encoding="utf-8")
    (programs / "sbatch").chmod(0o755)
    os.environ["PATH"] = f"{programs}:{os.environ['PATH']}"
    return calls


def launcher_packages(here: Path) -> Path | None:
    folder = here / "launcher"
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder)]
    installed = subprocess.run([*command, "hydra-submitit-launcher"], capture_output=True, text=True, check=False)
    return folder if installed.returncode == 0 else None


def in_turns(sides: dict[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """Medians in seconds."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, measure in sides.items():
            seconds[name].append(measure())
            subprocess.run(["scancel", "-u", str(os.getuid())], check=True)
    for name, values in seconds.items():
        print(f"{name:<24} {statistics.median(values):7.2f} s  (median of {rounds}, least {min(values):.2f} s)")
    return {name: statistics.median(values) for name, values in seconds.items()}


def timed(command: list[str], here: Path) -> float:
    started = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, cwd=here)
    return time.perf_counter() - started


def until_in_queue(command: list[str], here: Path, variables: dict[str, str]) -> float:
    """A launcher that waits for its jobs is ended when squeue has them."""
    started = time.perf_counter()
    process = subprocess.Popen(
        command,
        cwd=here,
        env=os.environ | variables,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        while not subprocess.run(["squeue", "-h", "-o", "%i"], capture_output=True, check=True).stdout.strip():
            if time.perf_counter() - started > LONGEST_S:
                sys.exit(f"the launcher submitted nothing in {LONGEST_S} s")
            if process.poll() is not None and process.stderr is not None:
                sys.exit(f"the launcher ended: {process.stderr.read().decode()[-2000:]}")
            time.sleep(0.02)
        return time.perf_counter() - started
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


if __name__ == "__main__":
    main()
