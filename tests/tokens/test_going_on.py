"""``prepare`` stopped: being killed anywhere costs only time, and what was begun otherwise or damaged is not gone on with."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from hpctrain.errors import ConfigError, HpctrainError
from hpctrain.tokens import conduct, partial
from hpctrain.tokens.conduct import prepare
from hpctrain.tokens.manifest import manifest_path
from hpctrain.tokens.worker import _Work
from hpctrain.tokens.workers import PrepareError
from tests.tokens.making import OUTPUTS, SOURCE, command, contents, documents_of, make, request, write_corpus

# Kills itself, as the kernel would, before or after the N-th file gets its name; tells its children first.
KILLED = """
import os, sys, json, signal
from pathlib import Path
from hpctrain.tokens.conduct import Request, prepare
number, when, words = int(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
words["out"] = Path(words["out"])
replace, count = os.replace, 0
def counting(source, target):
    global count
    count += 1
    def end():
        for task in os.listdir("/proc/self/task"):
            print(open(f"/proc/self/task/{task}/children").read(), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    if count == number and when == "before":
        end()
    replace(source, target)
    if count == number:
        end()
os.replace = counting
prepare(Request(**words), lambda *told: None)
print("done", count)
"""


@pytest.fixture
def corpus(tmp_path: Path) -> list[Path]:
    return write_corpus(tmp_path)


def killed(words: dict[str, Any], number: int, when: str) -> str:
    """Runs it, killed at a point; returns what it said: its children, or how many files got their names."""
    command = [sys.executable, "-c", KILLED, str(number), when, json.dumps(words)]
    answer = subprocess.run(command, cwd=SOURCE, capture_output=True, text=True, check=False)
    assert answer.returncode in (0, -signal.SIGKILL), answer.stderr
    return answer.stdout


def test_killed_again_and_again_it_gets_there_and_nothing_differs(corpus: list[Path], tmp_path: Path) -> None:
    words = dataclasses.asdict(request(corpus, Path("out"), unit_bytes=3000, tokenizer=None, train_bpe=300, workers=2))
    whole = words | {"out": str(tmp_path / "whole" / "out")}
    (tmp_path / "whole").mkdir()
    said = killed(whole, 0, "never")
    num_names = int(said.removeprefix("done "))
    assert num_names > 12
    (tmp_path / "cut").mkdir()
    cut = words | {"out": str(tmp_path / "cut" / "out")}
    for start in range(num_names):
        if (said := killed(cut, 4, "after" if start % 2 else "before")).startswith("done"):
            break
        assert (
            not manifest_path(tmp_path / "cut" / "out").exists()
            or not (tmp_path / "cut" / "out.partial" / "tokens").exists()
        )
    else:
        pytest.fail("it never got there")
    assert start >= num_names // 4 - 2
    endings = (*OUTPUTS, ".tokenizer.json")
    assert contents(tmp_path / "cut" / "out", endings) == contents(tmp_path / "whole" / "out", endings)
    assert sorted(path.name for path in (tmp_path / "cut").iterdir()) == [f"out{ending}" for ending in sorted(endings)]


@pytest.mark.parametrize("left", [1, 2, 3], ids=["at the manifest's name", "at the index's", "at the tokens'"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_among_the_last_steps(tmp_path: Path, left: int, when: str) -> None:
    (tmp_path / "a.txt").write_text("some text")
    words = dataclasses.asdict(request([tmp_path / "a.txt"], Path("out")))
    # Without a kill: units, job, state, the manifest in its folder, tokens, index, manifest.
    killed(words | {"out": str(tmp_path / "out")}, 8 - left, when)
    there = [ending for ending in OUTPUTS if Path(f"{tmp_path / 'out'}{ending}").exists()]
    assert there == list(OUTPUTS[: 3 - left + (when == "after")])
    if there == list(OUTPUTS):
        with pytest.raises(ConfigError, match=r"out.bin, out.idx, out.json are there already"):
            make([tmp_path / "a.txt"], tmp_path / "out")
    make([tmp_path / "a.txt"], tmp_path / "out", force=there == list(OUTPUTS))
    assert documents_of(tmp_path / "out") == [[*b"some text", 256]]
    assert not (tmp_path / "out.partial").exists()


def test_workers_end_with_a_killed_parent(corpus: list[Path], tmp_path: Path) -> None:
    words = dataclasses.asdict(request(corpus, Path("out"), unit_bytes=1000, workers=2)) | {
        "out": str(tmp_path / "out")
    }
    children = killed(words, 4, "after").split()
    assert len(children) == 2
    deadline = time.monotonic() + 20
    while [child for child in children if Path(f"/proc/{child}").exists()]:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_work_that_was_begun_otherwise_is_not_mixed(corpus: list[Path], tmp_path: Path) -> None:
    words = dataclasses.asdict(request(corpus, Path("out"), unit_bytes=1000)) | {"out": str(tmp_path / "out")}
    killed(words, 5, "after")
    with pytest.raises(ConfigError) as caught:
        make(corpus, tmp_path / "out", unit_bytes=1000, split_at="\n", tokenizer=None, train_bpe=300)
    for expected in (
        "holds work that was begun with tokenizer name 'bytes', it is 'out.tokenizer.json' now; the command of then goes on",
        "train bpe None, it is 300 now",
        r"split at None, it is '\n' now",
        "--force begins anew",
    ):
        assert expected in str(caught.value)
    with pytest.raises(ConfigError, match=r"begun with .*0.txt where .*1.txt is now"):
        make(corpus[1:], tmp_path / "out", unit_bytes=1000)
    with pytest.raises(ConfigError, match="begun with 5 files, 4 are named now"):
        make(corpus[:-1], tmp_path / "out", unit_bytes=1000)
    corpus[0].write_text("changed")
    with pytest.raises(
        ConfigError, match=r"begun with another .*0.txt \(3 bytes, 7 now; or its time differs\); --force"
    ):
        make(corpus, tmp_path / "out", unit_bytes=1000)
    make(corpus, tmp_path / "out", unit_bytes=1000, force=True)
    assert documents_of(tmp_path / "out")[0] == [*b"changed", 256]


@pytest.mark.parametrize("damage", ["tokens short", "tokens changed", "unit changed", "unit short", "state", "job"])
def test_damaged_work_is_named(corpus: list[Path], tmp_path: Path, damage: str) -> None:
    words = dataclasses.asdict(request(corpus, Path("out"), unit_bytes=1000)) | {"out": str(tmp_path / "out")}
    killed(words, 8, "after")
    folder = tmp_path / "out.partial"
    state = json.loads((folder / "state.json").read_text())
    assert state["next_unit"] > 0
    unit = folder / f"unit-{state['next_unit']:08d}"
    tokens = (folder / "tokens").read_bytes()
    if damage == "tokens short":
        (folder / "tokens").write_bytes(tokens[: state["token_bytes"] - 1])
    elif damage == "tokens changed":
        (folder / "tokens").write_bytes(b"x" + tokens[1:])
    elif damage == "state":
        (folder / "state.json").write_text("{")
    elif damage == "job":
        (folder / "job.json").write_text('{"schema_version": 0}')
    else:
        _Work(folder, lambda answer: None).do("unit", state["next_unit"])
        content = unit.read_bytes()
        unit.write_bytes(content[:-1] if damage == "unit short" else b"x" + content[1:])
    expected = {
        "tokens short": "tokens: is damaged: ends 1 bytes too early",
        "tokens changed": "tokens: is damaged: its SHA-256 is",
        "unit changed": "unit-.*: is damaged: its CRC-32 is",
        "unit short": "unit-.*: is damaged: ",
        "state": "state.json: is damaged: Expecting",
        "job": "job.json: schema_version=0, this hpctrain reads 1; --force begins anew",
    }[damage]
    with pytest.raises(HpctrainError, match=expected) as caught:
        make(corpus, tmp_path / "out", unit_bytes=1000)
    assert caught.value.exit_code == 2
    assert not (tmp_path / "out.bin").exists()


def test_two_at_once(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "out.partial").mkdir()
    with (
        partial.locked(tmp_path / "out.partial"),
        pytest.raises(PrepareError, match="another prepare is at work on it right now"),
    ):
        make([tmp_path / "a.txt"], tmp_path / "out")


def test_a_lock_of_a_folder_that_was_removed_keeps_nobody_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "out.partial"
    folder.mkdir()
    flock = fcntl.flock

    def other_ends_first(stream: Any, how: int) -> None:
        partial.remove_work(folder)
        folder.mkdir()
        flock(stream, how)

    monkeypatch.setattr(fcntl, "flock", other_ends_first)
    with pytest.raises(PrepareError, match="another prepare is at work"), partial.locked(folder):
        pass
    folder.rmdir()
    with pytest.raises(PrepareError, match="another prepare is at work"), partial.locked(folder):
        pass


def test_a_corpus_that_another_call_made_meanwhile_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text("a")
    first_of = conduct._job

    def other_is_faster(*words: Any) -> Any:
        monkeypatch.setattr(conduct, "_job", first_of)
        make([tmp_path / "a.txt"], tmp_path / "out")
        return first_of(*words)

    monkeypatch.setattr(conduct, "_job", other_is_faster)
    with pytest.raises(ConfigError, match=r"out.bin, out.idx, out.json are there already"):
        make([tmp_path / "a.txt"], tmp_path / "out")
    assert not (tmp_path / "out.partial").exists()


def test_a_checksum_that_was_cut_off_is_made_again(corpus: list[Path], tmp_path: Path) -> None:
    """As a full disk or a power cut leaves it."""
    folder = tmp_path / "out.partial"
    folder.mkdir()
    partial.add_digest(folder, 0, "0" * 64)
    whole = (folder / partial.DIGESTS).read_bytes()
    for length in range(len(whole)):
        (folder / partial.DIGESTS).write_bytes(whole[:length])
        partial.add_digest(folder, 1, "1" * 64)
        assert partial.read_digests(folder).pop(1) == "1" * 64
    words = dataclasses.asdict(request(corpus, Path("out"), unit_bytes=1000)) | {"out": str(tmp_path / "cut")}
    killed(words, 5, "after")
    (tmp_path / "cut.partial" / partial.DIGESTS).write_bytes(b'[0, "ab')
    made = [make(corpus, tmp_path / name, unit_bytes=1000) for name in ("cut", "whole")]
    assert made[0].inputs == made[1].inputs


def test_killed_while_its_folder_was_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text("a")

    def half(folder: Path) -> None:
        (folder / "units.json").unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(shutil, "rmtree", half)
        make([tmp_path / "a.txt"], tmp_path / "out")
    make([tmp_path / "a.txt"], tmp_path / "out", force=True)
    assert documents_of(tmp_path / "out") == [[97, 256]]
    assert not (tmp_path / "out.partial").exists()


def test_a_worker_that_is_killed_is_told(corpus: list[Path], tmp_path: Path) -> None:
    def kill(stage: str, num_bytes: int, total: int) -> None:
        del stage, total
        if num_bytes:
            (task,) = Path(f"/proc/{os.getpid()}/task").glob(str(os.getpid()))
            for child in (task / "children").read_text().split():
                if b"hpctrain.tokens.worker" in Path(f"/proc/{child}/cmdline").read_bytes():
                    os.kill(int(child), signal.SIGKILL)

    with pytest.raises(PrepareError, match=r"a worker \(process \d+\) while .* was killed by signal 9") as caught:
        prepare(request(corpus, tmp_path / "out", unit_bytes=1000), kill)
    assert caught.value.exit_code == 1
    make(corpus, tmp_path / "out", unit_bytes=1000)
    assert len(documents_of(tmp_path / "out")) == 4


@pytest.mark.parametrize("limit_bytes", [20_000, 90_000], ids=["a worker's", "the joined tokens'"])
def test_a_full_disk_is_told_and_work_goes_on(tmp_path: Path, limit_bytes: int) -> None:
    # A limit on the size of files takes a part and then refuses the rest, as a full device does.
    paths = [tmp_path / f"{number}.txt" for number in range(3)]
    for path in paths:
        path.write_text("0123456789\n" * 1500)
    words = [*paths, "--out", tmp_path / "out", "--tokenizer", "bytes"]
    answer = command(*words, limit_bytes=limit_bytes)
    assert answer.returncode == 1
    assert re.search(
        r"out.partial cannot be written: File too large; make room, and the same command goes on", answer.stderr
    )
    assert not (tmp_path / "out.bin").exists()
    answer = command(*words)
    assert answer.returncode == 0, answer.stderr
    assert documents_of(tmp_path / "out") == [[*b"0123456789\n" * 1500, 256]] * 3


def test_sigterm_ends_it_with_a_word(corpus: list[Path], tmp_path: Path) -> None:
    words = [*corpus, "--out", tmp_path / "out", "--train-bpe", "5000", "--workers", "1"]
    line = [sys.executable, "-m", "hpctrain", "prepare", *map(str, words)]
    with subprocess.Popen(line, cwd=SOURCE, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 60
        while not (tmp_path / "out.partial" / "worker-0.err").exists():
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.01)
        process.terminate()
        _, said = process.communicate(timeout=60)
    assert process.returncode == 143
    assert "ended by SIGTERM; the same command goes on where it was" in said
    assert command(*words).returncode == 0
