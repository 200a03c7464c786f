"""``status --watch``: the table, kept up to date from the files every two seconds and from Slurm at most every 30 s."""

from __future__ import annotations

import contextlib
import os
import re
import select
import shutil
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.text import Text

from hpctrain.launch.run_names import runs_in
from hpctrain.launch.status.rows import RunStatus, StatusBoard
from hpctrain.launch.status.table import status_table
from hpctrain.text_table import printable

_REFRESH_S = 2.0
_SEARCH_S = 15.0
"""Between two looks for new runs in the folders."""
_MOMENTS = re.compile(r"(expected to start|last step|submitted) [^;]*")
"""What passes by itself and is no change."""
_QUIT_KEYS = "qQ\x03\x04"

Choice = Callable[[Sequence[RunStatus]], list[RunStatus]]


def watch(folders: Sequence[Path], choose: Choice) -> int:
    """Shows the runs till all of them are over, or a key or Ctrl-C ends it; returns the exit code.

    Args:
        folders: run folders, or folders that hold some.
        choose: which rows are shown.
    """
    board = StatusBoard(runs_in(folders))
    looks = _looks(board, folders, choose)
    rows: list[RunStatus] = []
    if sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb":
        with contextlib.suppress(KeyboardInterrupt), _keys() as key_pressed:
            rows = _show_live(board, looks, key_pressed)
        print(status_table(rows, shutil.get_terminal_size().columns, totals=board.sweep_sizes))
    else:
        with contextlib.suppress(KeyboardInterrupt):
            _print_changes(looks)
    return 0


def _looks(board: StatusBoard, folders: Sequence[Path], choose: Choice) -> Iterator[list[RunStatus]]:
    """The chosen rows, again and again; the last ones are those after which nothing changes."""
    searched_at = time.monotonic()
    while True:
        if time.monotonic() - searched_at >= _SEARCH_S:
            searched_at = time.monotonic()
            board.add(runs_in(folders))
        rows = board.look(time.time())
        yield choose(rows)
        if all(row.is_over for row in rows):
            return


def _show_live(
    board: StatusBoard, looks: Iterator[list[RunStatus]], key_pressed: Callable[[float], bool]
) -> list[RunStatus]:
    rows: list[RunStatus] = []
    with Live(console=Console(), screen=True, auto_refresh=False) as live:
        for rows in looks:
            live.update(Text(_screen(rows, board), no_wrap=True), refresh=True)
            if key_pressed(_REFRESH_S):
                break
    return rows


def _screen(rows: Sequence[RunStatus], board: StatusBoard) -> str:
    """As many runs as the terminal has lines: those that are not over first, then the newest."""
    width, height = shutil.get_terminal_size()
    shown = list(rows)
    room = max(1, height - 4 - len({row.sweep for row in rows if row.sweep}))
    if len(shown) > room:
        by_use = sorted(enumerate(shown), key=lambda item: (item[1].is_over, -item[0]))[:room]
        shown = [row for _, row in sorted(by_use)]
    hidden = f"; {len(rows) - len(shown)} more" if len(shown) < len(rows) else ""
    wait_s = max(0, round(board.next_question_s - time.time()))
    slurm = f"; Slurm is asked again in {wait_s} s" if board.next_question_s else ""
    head = f"{time.strftime('%H:%M:%S')}  {len(rows)} runs{hidden}{slurm}; q leaves"
    return f"{head[:width]}\n\n{status_table(shown, width, totals=board.sweep_sizes)}"


@contextlib.contextmanager
def _keys() -> Iterator[Callable[[float], bool]]:
    """Gives a function that waits so many seconds for a key that leaves; the terminal is as before at the end."""

    def wait(seconds: float) -> bool:
        time.sleep(seconds)
        return False

    if not sys.stdin.isatty():
        yield wait
        return
    descriptor = sys.stdin.fileno()

    def wait_for_key(seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while (rest := deadline - time.monotonic()) > 0:
            if not select.select([descriptor], [], [], rest)[0]:
                return False
            pressed = os.read(descriptor, 64).decode("utf-8", "replace")
            if not pressed or any(key in _QUIT_KEYS for key in pressed):
                return True
        return False

    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)
    try:
        yield wait_for_key
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _print_changes(looks: Iterator[list[RunStatus]]) -> None:
    """A line for each run at first, and one whenever its state, attempt or reason changes."""
    told: dict[str, tuple[object, ...]] = {}
    for rows in looks:
        for row in rows:
            now = (row.state, row.attempt, row.stale_since_s is not None, _MOMENTS.sub("", row.detail))
            if told.get(row.path) != now:
                told[row.path] = now
                print(_change_line(row), flush=True)
        if not all(row.is_over for row in rows) or not rows:
            time.sleep(_REFRESH_S)


def _change_line(row: RunStatus) -> str:
    parts = [time.strftime("%Y-%m-%d %H:%M:%S"), row.run, row.state]
    parts += [f"attempt {row.attempt}"] if row.attempt else []
    parts += [f"step {row.step}/{row.num_steps}"] if row.step else []
    return printable("  ".join([*parts, row.detail]).rstrip(), kept="")
