"""A rank's output on a device that is full, gone or not UTF-8 (cases 44, 70, 85)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2]
PROTECT = "import sys; from hpctrain.worker.rank_output import protect_output; protect_output()\n"


def python(text: str, **arguments: object) -> subprocess.CompletedProcess[bytes]:
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(SOURCE), "LC_ALL": "C", "PYTHONUTF8": "0"}
    command = [sys.executable, "-c", PROTECT + text]
    return subprocess.run(command, env=env, check=False, **({"capture_output": True} | arguments))  # type: ignore[call-overload,no-any-return]


def test_text_is_utf_8_in_any_locale() -> None:
    answer = python("print('pr\\xfcfung', chr(0xD800)); print('\\xe9' * 3, file=sys.stderr)")
    assert (answer.returncode, answer.stdout) == (0, "prüfung \\ud800\n".encode())
    assert answer.stderr == "ééé\n".encode()


@pytest.mark.parametrize("device", ["full", "closed pipe", "closed"])
def test_a_print_that_fails_stops_nothing(device: str, tmp_path: Path) -> None:
    done = tmp_path / "done"
    text = f"""
print('a\\nb'); print('c', flush=True); sys.stdout.flush()
open({str(done)!r}, 'w').write(str(sys.stdout.buffer.lost_lines))"""
    if device == "full":
        with open("/dev/full", "wb") as stream:
            answer = python(text, stdout=stream, capture_output=False)
    elif device == "closed pipe":
        read_end, write_end = os.pipe()
        os.close(read_end)
        answer = python(text, stdout=write_end, capture_output=False)
        os.close(write_end)
    else:
        answer = python("import os; os.close(1)\n" + text)
    assert answer.returncode == 0
    assert int(done.read_text()) >= 3


def test_lost_lines_are_told_when_there_is_room_again(tmp_path: Path) -> None:
    log = tmp_path / "log"
    text = """
import os
good = os.dup(1)
os.dup2(os.open("/dev/full", os.O_WRONLY), 1)
for number in range(5): sys.stdout.write(f"lost {number}\\n")
os.dup2(good, 1)
print("again")
"""
    with log.open("wb") as stream:
        assert python(text, stdout=stream, capture_output=False).returncode == 0
    assert log.read_text() == "\nhpctrain: 5 lines of this log were lost (No space left on device)\nagain\n"


def test_bytes_go_through_untouched() -> None:
    answer = python("sys.stdout.buffer.write(b'\\xe9' * 3); sys.stdout.write('\\xe9' * 100000)")
    assert answer.stdout == b"\xe9" * 3 + "é".encode() * 100000


def test_a_closed_output_does_not_become_the_next_file(tmp_path: Path) -> None:
    """Its number would be that of the first file that is opened, and what is printed would go there."""
    path = tmp_path / "steps"
    script = 'exec "$0" -c "$1" >&- 2>&- <&-'
    text = f"f = open({str(path)!r}, 'w'); f.write('a'); print('no'); print('no', file=sys.stderr); f.close()"
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(SOURCE)}
    subprocess.run(["sh", "-c", script, sys.executable, PROTECT + text], env=env, check=True)
    assert path.read_text() == "a"
