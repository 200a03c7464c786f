"""A site's own files: what would silently be something else."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpctrain.config.compose import config_dir
from hpctrain.config.site_files import check_site_files
from hpctrain.errors import ConfigError


def written(folder: Path, text: str) -> Path:
    (folder / "hardware").mkdir()
    (folder / "hardware" / "mine.yaml").write_text(text)
    return folder


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            "hardware:\n  gpus_per_node: 8\n", "hardware: its keys stand below hardware by the", id="a level deeper"
        ),
        pytest.param("- 1\n", "mine.yaml: is a list; write one key: value a line", id="list"),
        pytest.param(
            "gpus_per_node: 010\n", "mine.yaml:1: gpus_per_node: 010: YAML reads it as another number", id="octal"
        ),
        pytest.param("gpus_per_node: 8\ngpus_per_node: 4\n", "found duplicate key gpus_per_node", id="twice"),
        pytest.param("a:\n\tb: 1\n", "mine.yaml: cannot be read as YAML", id="tab"),
    ],
)
def test_a_file_that_is_something_else_is_refused(text: str, expected: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        check_site_files(written(tmp_path, text), config_dir())
    assert expected in str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("gpus_per_node: 8\n", id="plain"),
        pytest.param("", id="empty"),
        pytest.param("# @package _global_\nhardware:\n  gpus_per_node: 8\n", id="its own package"),
    ],
)
def test_what_is_right_passes(text: str, tmp_path: Path) -> None:
    check_site_files(written(tmp_path, text), config_dir())
