"""What git says of the submitted source, and a question that was begun early."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from hpctrain.launch.working_tree import TreeQuestion, ask_git, begin_to_ask


def git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=n", "-c", "user.email=e@example.org")
    command = ["git", "-C", str(folder), *identity, *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def answers(question: TreeQuestion) -> tuple[str, str, bool]:
    question.wait()
    return question.commit, question.status, "+new" in question.diff


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-q")
    (tmp_path / "a").write_text("old\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    return tmp_path


def test_commit_status_and_difference(tree: Path) -> None:
    commit = git(tree, "rev-parse", "HEAD")
    assert answers(ask_git(tree)) == (commit, "", False)
    (tree / "a").write_text("new\n")
    assert answers(ask_git(tree)) == (commit, "M a", True)


def test_a_question_that_was_begun_is_taken_once(tree: Path) -> None:
    commit = git(tree, "rev-parse", "HEAD")
    begin_to_ask(tree)
    begun = ask_git(tree)
    assert answers(begun) == (commit, "", False)
    (tree / "a").write_text("new\n")
    assert answers(begun) == (commit, "", False)
    assert answers(ask_git(tree)) == (commit, "M a", True)


def test_without_a_repository_or_without_git_there_is_nothing_to_say(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    below = tmp_path / "below"
    below.mkdir()
    assert answers(ask_git(below)) == ("", "", False)
    monkeypatch.setenv("PATH", str(below))
    assert answers(ask_git(tree)) == ("", "", False)
