"""What ``read-log`` prints of a file whose name a terminal would obey."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpctrain.analysis.logs.log_text import render_log
from hpctrain.analysis.logs.reading import read_log


@pytest.mark.parametrize(
    ("name", "told"),
    [
        pytest.param("a\x1b[2J.log", r"a\x1b[2J.log", id="escape"),
        pytest.param("a\nb.log", r"a\nb.log", id="new line"),
        pytest.param(os.fsdecode(b"caf\xe9.log"), r"caf\xe9.log", id="no UTF-8"),
    ],
)
def test_a_file_name_commands_no_terminal_and_breaks_no_table(tmp_path: Path, name: str, told: str) -> None:
    (tmp_path / name).write_text("iter 0: loss 10.0000, time 500.00ms, mfu 30.00%\n")
    text = render_log(read_log(tmp_path / name))
    assert text.encode("utf-8").count(b"\x1b") == 0
    lines = text.splitlines()
    assert lines[0].startswith(f"file        {tmp_path}/{told}: 1 lines")
    header = next(place for place, line in enumerate(lines) if line.startswith("RUN"))
    assert lines[header + 1].startswith(f"{told} ! ")
    assert lines[header + 4].startswith(f"  {told}: ")
