"""sbatch and squeue as small scripts that keep jobs in a file, for answers that a real Slurm gives only in rare moments."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.launch.test_slurm_states import fake

_SBATCH = r"""
n=$(($(cat {here}/calls 2>/dev/null || echo 0) + 1)); echo $n > {here}/calls.new; mv {here}/calls.new {here}/calls
for script; do :; done
action=$(sed -n "${{n}}p" {here}/actions); [ -n "$action" ] || action=$(tail -n 1 {here}/actions)
id=$((101 + $(cat {here}/jobs 2>/dev/null | grep -c .)))
accept() {{
    printf '%s\037%s\037%s\n' $id "$(sed -n 's/^#SBATCH --comment=//p' "$script")" "$script" >> {here}/jobs
}}
failed="sbatch: error: Batch job submission failed:"
case $action in
ok) accept; echo $id ;;
slow) sleep 1; accept; echo $id ;;
held) for _ in $(seq 600); do [ -e {here}/go ] && break; sleep 0.1; done; accept; echo $id ;;
fill) accept; dd if=/dev/zero of={here}/../runs/filler bs=64k 2> /dev/null; echo $id ;;
taken-then-lost) accept; echo "$failed Socket timed out on send/recv operation" >&2; exit 1 ;;
late) (sleep 1.5; accept) > /dev/null 2>&1 & echo "$failed Socket timed out on send/recv operation" >&2; exit 1 ;;
away) echo "$failed Unable to contact slurm controller (connect failure)" >&2; exit 1 ;;
limit) echo 'sbatch: error: QOSMaxSubmitJobPerUserLimit' >&2
    echo "$failed Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)" >&2; exit 1 ;;
refused) echo "$failed Requested node configuration is not available" >&2; exit 1 ;;
silent) accept ;;
none) echo 'queued, good luck' ;;
esac
"""


class FakeSlurm:
    """Programs first in PATH.

    Attributes:
        root: Folder for runs.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._here = folder / "slurm"
        self._bin = folder / "bin"
        self.root = folder / "runs"
        for made in (self._here, self._bin):
            made.mkdir()
        monkeypatch.setenv("PATH", f"{self._bin}:{os.environ['PATH']}")
        monkeypatch.delenv("SLURM_CONF", raising=False)
        for name in ("srun", "scancel"):
            fake(self._bin, name, "exit 0")
        for name in ("sinfo", "scontrol", "sacct", "sacctmgr"):
            fake(self._bin, name, "exit 1")
        fake(self._bin, "squeue", f"cat {self._here}/jobs 2>/dev/null; exit 0")
        fake(self._bin, "scancel", f'echo "$1" >> {self._here}/cancelled')
        fake(self._bin, "sbatch", _SBATCH.format(here=self._here))
        self.act("ok")

    def act(self, *actions: str) -> None:
        """What sbatch does in its next calls; the last one from then on."""
        (self._here / "calls").unlink(missing_ok=True)
        (self._here / "actions").write_text("\n".join(actions) + "\n", encoding="utf-8")

    def let_go(self) -> None:
        """``held`` answers."""
        (self._here / "go").touch()

    def program(self, name: str, script: str) -> None:
        fake(self._bin, name, script)

    @property
    def num_calls(self) -> int:
        path = self._here / "calls"
        return int(path.read_text(encoding="utf-8") or 0) if path.exists() else 0

    @property
    def scripts(self) -> list[str]:
        """The scripts of all jobs, in the order of submission."""
        path = self._here / "jobs"
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        return [line.split("\x1f")[2] for line in lines]

    @property
    def cancelled(self) -> list[str]:
        path = self._here / "cancelled"
        return path.read_text(encoding="utf-8").split() if path.exists() else []


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    return FakeSlurm(tmp_path, monkeypatch)
