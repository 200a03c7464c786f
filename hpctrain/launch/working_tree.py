"""What git says of the source that is submitted: its commit, and how the working tree differs from it."""

from __future__ import annotations

import shutil
import subprocess
import threading
from pathlib import Path


class TreeQuestion:
    """git is being asked, in a thread, while the caller does other work; ``wait`` returns when all answers are there.

    The thread is a daemon: a caller that ends for another reason does not wait for it.
    """

    def __init__(self, folder: Path) -> None:
        """Begins to ask about the tree whose top is ``folder``."""
        self.commit = self.status = self.diff = ""
        self._folder = folder
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """All that there is to say is in the attributes then; they are empty where git says nothing."""
        self._thread.join()

    def _ask(self) -> None:
        # An installed package may lie inside another project's repository, whose commit says nothing about it.
        if not (self._folder / ".git").exists() or shutil.which("git") is None:
            return
        self.commit = self._git("rev-parse", "HEAD").strip()
        self.status = self._git("status", "--porcelain").strip()
        self.diff = self._git("diff", "HEAD") if self.status else ""

    def _git(self, *words: str) -> str:
        """git's answer; empty where it has none."""
        command = ["git", "-C", str(self._folder), *words]
        try:
            answer = subprocess.run(
                command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, errors="replace", check=False
            )
        except OSError:  # it cannot be started
            return ""
        return answer.stdout if answer.returncode == 0 else ""


_begun: dict[Path, TreeQuestion] = {}


def begin_to_ask(folder: Path) -> None:
    """Asks already, for the next ``ask_git`` about this folder: git needs about as long as the imports of a submission."""
    _begun[folder] = TreeQuestion(folder)


def ask_git(folder: Path) -> TreeQuestion:
    """The question that was begun, once; else a new one, since the tree may have changed meanwhile."""
    return _begun.pop(folder, None) or TreeQuestion(folder)
