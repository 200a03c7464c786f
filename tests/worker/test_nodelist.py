"""Compressed node lists (case 47)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpctrain.worker.end_reasons import RankEnvironmentError
from hpctrain.worker.nodelist import expand_nodelist, first_host

VALID = {
    "gpu7": ["gpu7"],
    "node[01-03,7],gpu-a1": ["node01", "node02", "node03", "node7", "gpu-a1"],
    "h[01,03-04]": ["h01", "h03", "h04"],
    "r[1-2]n[01-02]": ["r1n01", "r1n02", "r2n01", "r2n02"],
    "gpu[1-2]-ib0": ["gpu1-ib0", "gpu2-ib0"],
    "x[08-11]": ["x08", "x09", "x10", "x11"],
    "x[8-11]": ["x8", "x9", "x10", "x11"],
    "x[098-101]": ["x098", "x099", "x100", "x101"],
    "nodeA,nodeB[001,003],nodeC": ["nodeA", "nodeB001", "nodeB003", "nodeC"],
    "linux[1,2]": ["linux1", "linux2"],
    "a.b-c_d": ["a.b-c_d"],
}
INVALID = {
    "[a-b]": "no node name",
    "n[a-b]": "no node name",
    "n[1-": "no node name",
    "n[3-1]": "'3-1' runs backwards",
    "": "no node name",
    "n[1-2]]": "no node name",
    "[1-2]": "no node name",
    "a,,b": "no node name",
    "a b": "no node name",
    "n[]": "no node name",
    "n[1,]": "'' is no number and no range",
    "n[1-2-3]": "'1-2-3' is no number and no range",
    "n[1-999999999]": "more than 100000 nodes",
    "r[1-1000]n[1-1000]": "more than 100000 nodes",
}


@pytest.mark.parametrize("text", VALID)
def test_expansion(text: str) -> None:
    assert expand_nodelist(text) == VALID[text]


@pytest.mark.parametrize("text", INVALID)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(RankEnvironmentError) as error:
        expand_nodelist(text)
    assert str(error.value).startswith(f"node list {text!r}: ")
    assert INVALID[text] in str(error.value)


@pytest.mark.parametrize("text", VALID)
def test_first_host_by_the_parser(text: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert first_host(text) == VALID[text][0]


@pytest.mark.parametrize(
    ("script", "expected"),
    [("echo told-by-scontrol", "told-by-scontrol"), ("exit 1", "n1"), ("true", "n1")],
    ids=["answers", "fails", "says nothing"],
)
def test_scontrol_goes_first(script: str, expected: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = tmp_path / "scontrol"
    fake.write_text(f"#!/bin/sh\n{script}\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert first_host("n[1-2]") == expected
