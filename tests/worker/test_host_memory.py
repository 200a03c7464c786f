"""Host memory under the limits of control groups, read from made-up files as Slurm and containers leave them."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from hpctrain.worker.host_memory import HostMemory, MemoryGroup, host_memory, memory_groups, narrowed

GIB = 2**30
NODE = HostMemory(used_bytes=100 * GIB, total_bytes=512 * GIB)
NO_LIMIT_V1 = 9223372036854771712


def make_proc(folder: Path, cgroup: str, mountinfo: str) -> Path:
    folder.mkdir()
    (folder / "cgroup").write_text(cgroup)
    (folder / "mountinfo").write_text(mountinfo)
    return folder


def make_group_v1(folder: Path, limit: int, usage: int, file_pages: int = 0) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.limit_in_bytes").write_text(f"{limit}\n")
    (folder / "memory.usage_in_bytes").write_text(f"{usage}\n")
    (folder / "memory.stat").write_text(
        f"cache 1\nactive_file 1\ntotal_active_file {file_pages}\ntotal_inactive_file {2 * file_pages}\n"
    )


def make_group_v2(folder: Path, limit: str, usage: int, active_file: int = 0, inactive_file: int = 0) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{usage}\n")
    (folder / "memory.stat").write_text(f"anon 5\nactive_file {active_file}\ninactive_file {inactive_file}\n")


def test_slurm_with_the_first_version(tmp_path: Path) -> None:
    top = tmp_path / "memory of v1"
    task = "/slurm/uid_1000/job_7/step_0/task_1"
    proc = make_proc(
        tmp_path / "proc",
        f"11:cpuset:{task}\n4:memory:{task}\n1:name=systemd:/\n0::/\n",
        f"30 1 0:2 / {tmp_path}/cpuset rw - cgroup cgroup rw,cpuset\n"
        f"35 1 0:3 / {str(top).replace(' ', chr(92) + '040')} rw,relatime shared:9 - cgroup cgroup rw,memory\n",
    )
    make_group_v1(top, NO_LIMIT_V1, 90 * GIB)
    make_group_v1(top / "slurm/uid_1000/job_7", 64 * GIB, 40 * GIB, file_pages=2 * GIB)
    make_group_v1(top / "slurm/uid_1000/job_7/step_0", 64 * GIB, 39 * GIB, file_pages=2 * GIB)
    make_group_v1(top / f"{task[1:]}", NO_LIMIT_V1, 20 * GIB)
    groups = memory_groups(proc)
    assert [group.version for group in groups] == [1] * 6
    assert [str(group.folder.relative_to(top)) for group in groups] == [
        "slurm/uid_1000/job_7/step_0/task_1",
        "slurm/uid_1000/job_7/step_0",
        "slurm/uid_1000/job_7",
        "slurm/uid_1000",
        "slurm",
        ".",
    ]
    # The job leaves 64 - 40 + (2 + 4) = 30 GiB, the step 31, the node 412.
    assert narrowed(NODE, groups) == HostMemory(used_bytes=34 * GIB, total_bytes=64 * GIB)


def test_slurm_with_the_second_version(tmp_path: Path) -> None:
    top = tmp_path / "cgroup"
    proc = make_proc(
        tmp_path / "proc",
        "0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0\n",
        f"31 1 0:2 / {top} rw,nosuid - cgroup2 cgroup2 rw\n",
    )
    scope = top / "system.slice/slurmstepd.scope"
    make_group_v2(scope / "job_7", str(200 * GIB), 150 * GIB, active_file=GIB, inactive_file=3 * GIB)
    make_group_v2(scope / "job_7/step_0", "max", 150 * GIB)
    make_group_v2(scope / "job_7/step_0/user/task_0", "max", 20 * GIB)
    groups = memory_groups(proc)
    assert {group.version for group in groups} == {2}
    assert groups[-1].folder == top
    assert narrowed(NODE, groups) == HostMemory(used_bytes=146 * GIB, total_bytes=200 * GIB)


def test_others_on_the_node_leave_less_than_the_limit(tmp_path: Path) -> None:
    make_group_v2(tmp_path / "job", str(200 * GIB), 10 * GIB)
    full = HostMemory(used_bytes=482 * GIB, total_bytes=512 * GIB)
    found = narrowed(full, (MemoryGroup(tmp_path / "job", 2),))
    assert found == HostMemory(used_bytes=170 * GIB, total_bytes=200 * GIB)


def test_a_group_above_its_limit_leaves_nothing(tmp_path: Path) -> None:
    make_group_v2(tmp_path / "job", str(10 * GIB), 11 * GIB)
    found = narrowed(NODE, (MemoryGroup(tmp_path / "job", 2),))
    assert found == HostMemory(used_bytes=10 * GIB, total_bytes=10 * GIB)


@pytest.mark.parametrize(
    ("cgroup", "mount_root", "expected"),
    [
        ("0::/", "/", ["."]),
        ("0::/docker/ab/app", "/docker/ab", ["app", "."]),
        ("0::/docker/ab", "/docker/ab", ["."]),
        ("0::/../../job_7", "/", ["."]),
        ("0::/elsewhere", "/docker/ab", ["."]),
    ],
    ids=["own namespace", "bind mount", "bind mount of itself", "above the namespace", "outside"],
)
def test_containers_see_the_lower_part(cgroup: str, mount_root: str, expected: list[str], tmp_path: Path) -> None:
    proc = make_proc(
        tmp_path / "proc", f"{cgroup}\n", f"31 1 0:2 {mount_root} {tmp_path}/fs ro - cgroup2 cgroup rw,nsdelegate\n"
    )
    assert [str(group.folder.relative_to(tmp_path / "fs")) for group in memory_groups(proc)] == expected


@pytest.mark.parametrize(
    ("cgroup", "mountinfo"),
    [
        ("", "31 1 0:2 / /x rw - cgroup2 cgroup2 rw\n"),
        ("3:cpu:/a\n", "31 1 0:2 / /x rw - cgroup cgroup rw,cpu\n"),
        ("4:memory:/a\n", "31 1 0:2 / /x rw - cgroup cgroup rw,cpu\n31 1 0:2 / / rw - ext4 /dev/sda rw\n"),
    ],
    ids=["no groups", "no memory controller", "not mounted"],
)
def test_without_groups_the_node_counts(cgroup: str, mountinfo: str, tmp_path: Path) -> None:
    groups = memory_groups(make_proc(tmp_path / "proc", cgroup, mountinfo))
    assert groups == ()
    assert narrowed(NODE, groups) == NODE


def test_a_damaged_limit_is_no_silent_one(tmp_path: Path) -> None:
    make_group_v2(tmp_path / "job", "12 bananas", 0)
    with pytest.raises(ValueError, match="12 bananas"):
        narrowed(NODE, (MemoryGroup(tmp_path / "job", 2),))


def test_this_machine() -> None:
    found = host_memory(memory_groups())
    assert 0 < found.used_bytes < found.total_bytes <= psutil.virtual_memory().total
