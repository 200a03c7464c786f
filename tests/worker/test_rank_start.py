"""The folder for compiled code of a job (case 58)."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from hpctrain.worker.end_reasons import RankEnvironmentError
from hpctrain.worker.rank_start import _make_cache_dir


def test_the_cache_is_this_users_alone(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    for _ in range(2):
        _make_cache_dir(str(folder))
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_link_in_its_place_is_refused(tmp_path: Path) -> None:
    """Libraries are loaded from there."""
    (tmp_path / "theirs").mkdir()
    (tmp_path / "cache").symlink_to(tmp_path / "theirs")
    with pytest.raises(RankEnvironmentError, match=r"belongs to user .*, or is a link"):
        _make_cache_dir(str(tmp_path / "cache"))


@pytest.mark.skipif(os.getuid() != 0, reason="gives a folder to another user")
def test_another_users_folder_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    folder.mkdir()
    os.chown(folder, 65534, 65534)
    with pytest.raises(RankEnvironmentError, match="belongs to user 65534"):
        _make_cache_dir(str(folder))
