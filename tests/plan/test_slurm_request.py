"""What is asked of Slurm: the request of each configuration, what is refused, and the text forms it rests on."""

from __future__ import annotations

import dataclasses

import pytest

from hpctrain.config.compose import compose_points
from hpctrain.config.schema import ClusterConfig
from hpctrain.errors import ConfigError
from hpctrain.plan.job.sbatch_options import EXTRA_OPTIONS, OWN_KEYS, extra_problems
from hpctrain.plan.job.slurm_request import SlurmRequest, slurm_safe_name
from hpctrain.plan.job.variables import variable_problems
from hpctrain.plan.render.plan import render_plan
from hpctrain.units import parse_slurm_time
from tests.plan.test_run_plan import plan_of


def request_of(*words: str) -> SlurmRequest:
    plan = plan_of("model=tiny", "nodes=2", *words)
    assert plan.problems == ()
    return plan.slurm


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ([], {"gpus-per-node": "8"}),
        (["cluster.gpu_request=gres"], {"gres": "gpu:8"}),
        (["cluster.gpu_request=gres", "cluster.gpu_type=a100"], {"gres": "gpu:a100:8"}),
        (["cluster.gpu_type=a100"], {"gpus-per-node": "a100:8"}),
        (["cluster.gpu_request=none"], {}),
        (["cluster.gpu_request=none", "cluster.extra.gpus_per_task=1"], {"gpus-per-task": "1"}),
        (["cluster.gpu_request=gres", "cluster.extra.gres='nvme:2'"], {"gres": "gpu:8,nvme:2"}),
        (["cluster.extra.gres='nvme:2'"], {"gpus-per-node": "8", "gres": "nvme:2"}),
        (["hardware=cpu"], {}),
        (["cluster.signal=null"], {"gpus-per-node": "8"}),
        (["cluster.extra.hold=true", "cluster.extra.nice=-5"], {"gpus-per-node": "8", "hold": "", "nice": "-5"}),
        (["cluster.extra.hold=false", "cluster.extra.tmp=null"], {"gpus-per-node": "8"}),
        (["cluster.exclusive=true", "cluster.extra.mem_per_gpu=4G"], None),
        (["cluster.memory_per_node=0"], {"gpus-per-node": "8", "mem": "0"}),
    ],
)
def test_options(words: list[str], options: dict[str, str] | None) -> None:
    found = dict(request_of(*words).options)
    signal = found.pop("signal", None)
    assert signal == (None if "cluster.signal=null" in words else "USR1@120")
    assert options is None or found == options


def test_every_optional_option_can_be_taken_out() -> None:
    keys = "time partition account qos constraint reservation nodelist exclude comment memory_per_node signal requeue".split()
    request = request_of("hardware=cpu", *(f"cluster.{key}=null" for key in keys))
    assert request.options == {}
    assert request.requeue is None


def test_cpus_are_asked_for_once() -> None:
    assert request_of().cpus_per_task == 12
    assert request_of("cluster.cpus_per_task=3").cpus_per_task == 3
    assert request_of("cluster.extra.cpus_per_gpu=4").cpus_per_task is None


REFUSED = {
    "unknown": (["cluster.extra.gress=x"], "cluster.extra.gress=x: is no long option of sbatch; nearest: gres"),
    "nonsense": (["cluster.extra.qqqqqq=x"], "is no long option of sbatch; see sbatch(1)"),
    "upper": (["cluster.extra.LICENSES=a"], "write cluster.extra.licenses=VALUE"),
    "short": (["cluster.extra.C=x"], "cluster.extra.C=x: is a short option; write its long name, constraint"),
    "own": (["cluster.extra.job_name=x"], "--job-name is set by hpctrain itself; use run.name"),
    "array": (["cluster.extra.array='0-9%0'"], "--array is set by hpctrain itself; use -m"),
    "flag_value": (["cluster.extra.contiguous=3"], "cluster.extra.contiguous=3: takes no value; write true"),
    "no_value": (["cluster.extra.licenses=true"], "cluster.extra.licenses=true: needs a value"),
    "false_value": (["cluster.extra.licenses=false"], "cluster.extra.licenses=false: needs a value"),
    "empty_value": (["cluster.extra.licenses=''"], "cluster.extra.licenses='': needs a value"),
    "newline": (['cluster.extra.licenses="a\nb"'], "cluster.extra.licenses='a\\nb': must be printable and on one line"),
    "tab": (['cluster.extra.licenses="a\tb"'], "must be printable and on one line"),
    "option_as_value": (["cluster.extra.licenses='--licenses=a'"], "must be the value alone; write a"),
    "own_option_as_value": (
        ["cluster.partition='--partition=gpu'"],
        "cluster.partition=--partition=gpu: must be the value",
    ),
    "own_newline": (['cluster.account="a\nb"'], "cluster.account='a\\nb': must be printable and on one line"),
    "memory_form": (
        ["cluster.memory_per_node='1.5G'"],
        "cluster.memory_per_node=1.5G: is no size in Slurm's form; write",
    ),
    "memory_word": (["cluster.extra.mem_per_cpu=lots"], "cluster.extra.mem_per_cpu=lots: is no size in Slurm's form"),
    "gpu_type": (["cluster.gpu_type='a100:8'"], "cluster.gpu_type=a100:8: must be the name alone"),
    "two_gpu_forms": (["cluster.extra.gpus_per_task=1"], "--gpus-per-node=8, or set cluster.gpu_request=none"),
    "gres_gpu": (["cluster.extra.gres='gpu:8'"], "contradicts --gpus-per-node=8"),
    "gres_gpu_typed": (["cluster.gpu_request=gres", "cluster.extra.gres='gpu:a100:8'"], "contradicts --gres=gpu:8"),
    "tres_gpu": (["cluster.extra.tres_per_task='gres/gpu:1'"], "contradicts --gpus-per-node=8"),
    "gres_and_gpus_per_task": (
        ["cluster.gpu_request=none", "cluster.extra.gres='gpu:8'", "cluster.extra.gpus_per_task=1"],
        "contradicts",
    ),
    "ntasks_per_gpu": (["cluster.extra.ntasks_per_gpu=1"], "one task a GPU is what is asked for"),
    "memory": (["cluster.memory_per_node=0", "cluster.extra.mem_per_cpu=1G"], "contradicts cluster.memory_per_node=0"),
    "two_memories": (["cluster.extra.mem_per_cpu=1G", "cluster.extra.mem_per_gpu=1G"], "contradicts --mem-per-cpu"),
    "memory_by_no_gpu": (["hardware=cpu", "cluster.extra.mem_per_gpu=1G"], "counts by GPU, and none is asked for"),
    "cpus_twice": (["cluster.cpus_per_task=4", "cluster.extra.cpus_per_gpu=4"], "contradicts cluster.cpus_per_task=4"),
    "shared": (["cluster.exclusive=true", "cluster.extra.oversubscribe=true"], "contradicts --exclusive"),
    "time_min": (["cluster.time=1:00:00", "cluster.extra.time_min=2:00:00"], "is longer than cluster.time=1:00:00"),
    "time_min_form": (["cluster.extra.time_min=soon"], "'soon' is none of Slurm's time forms"),
    "mail": (["cluster.extra.mail_type=FINISH"], "'FINISH' is no mail type; known: ALL, ARRAY_TASKS, BEGIN"),
    "chain": (
        ["launch.chain=requeue", "cluster.requeue=false"],
        "cluster.requeue=false: launch.chain=requeue starts the same",
    ),
    "chain_dependency": (
        ["launch.chain=dependency", "cluster.extra.dependency='afterok:1'"],
        "contradicts launch.chain=dependency",
    ),
    "srun_word": (
        ["cluster.srun_args=[hostname]"],
        "cluster.srun_args=hostname: srun would take this word for the program",
    ),
    "srun_output": (
        ["cluster.srun_args=['--output=x']"],
        "cluster.srun_args=--output=x: is set by the batch script itself",
    ),
    "srun_short": (["cluster.srun_args=['-n4']"], "is set by the batch script itself"),
    "env_slurm": (["env.SLURM_JOB_ID=1"], "env.SLURM_JOB_ID=1: is Slurm's own variable"),
    "env_own": (["env.HPCTRAIN_ATTEMPT=5"], "env.HPCTRAIN_ATTEMPT=5: is set by hpctrain itself"),
    "env_rank": (["env.RANK=1"], "env.RANK=1: every rank has its own value"),
    "shell_name": (["env_from_shell=['A-B']"], "env_from_shell=A-B: is no name of an environment variable"),
    "shell_rank": (["env_from_shell=[RANK]"], "env_from_shell=RANK: every rank has its own value"),
    "shell_twice": (["env_from_shell=[A]", "env.A=1"], "env_from_shell=A: env.A says it, too"),
    "secret_setup": (
        ["cluster.setup=['export HF_TOKEN=abcd']"],
        "cluster.setup=export HF_TOKEN=<redacted>: holds a secret",
    ),
    "secret_comment": (["cluster.comment='wandb_key=abcd'"], "cluster.comment=wandb_key=<redacted>: holds a secret"),
    "secret_url": (
        ["data=text", "data.path='https://me:hunter2@h/x'"],
        "data.path=https://me:<redacted>@h/x: holds a secret",
    ),
    "secret_extra": (
        ["cluster.extra.comment='x'", "cluster.extra.licenses=hf_a1B2a1B2a1B2a1B2"],
        "--comment is set by",
    ),
    "secret_name": (["run.name=hf_a1B2a1B2a1B2a1B2"], "run.name=<redacted>: holds a secret"),
    "secret_srun": (["cluster.srun_args=['--comment=hf_a1B2a1B2a1B2a1B2']"], "--comment=<redacted>: holds a secret"),
    "no_runtime": (["cluster.container.image=/a.sif"], "cluster.container.image=/a.sif: needs a runtime"),
    "no_image": (["cluster.container.runtime=pyxis"], "cluster.container.runtime=pyxis: needs an image"),
    "local_container": (
        ["cluster=local", "nodes=1", "cluster.container.runtime=pyxis", "cluster.container.image=/a.sqsh"],
        "cluster.container.runtime=pyxis: is started by srun, and cluster=local has none",
    ),
}
PYXIS = ["cluster.container.runtime=pyxis", "cluster.container.image=/a.sqsh"]
CONTAINER_REFUSED = {
    "relative_mount": (
        ["cluster.container.mounts=['data:/data']"],
        "cluster.container.mounts=data:/data: must be SOURCE:TARGET",
    ),
    "four_parts": (["cluster.container.mounts=['/a:/b:ro:x']"], "must be SOURCE:TARGET"),
    "comma": (["cluster.container.mounts=['/a:/b,/c:/d']"], "a comma parts two mounts"),
    "flag": (["cluster.container.mounts=['/a:/b:readonly']"], "pyxis has no flag 'readonly'; known: bind, nodev"),
    "empty_target": (["cluster.container.mounts=['/a:']"], "must be SOURCE:TARGET"),
    "python": (
        ["cluster.container.python=python3"],
        "cluster.container.python=python3: must be an absolute path inside",
    ),
    "args": (["cluster.container.args=[ubuntu]"], "cluster.container.args=ubuntu: would be taken for the image"),
    "image": (["cluster.container.image='a b'"], "is neither a file nor an image of a registry"),
    "secret_image": (
        ["cluster.container.image='docker://me:hunter2@h/i'"],
        "docker://me:<redacted>@h/i: holds a secret",
    ),
}


@pytest.mark.parametrize("name", [*REFUSED, *CONTAINER_REFUSED])
def test_requests_that_are_refused(name: str) -> None:
    words, expected = (
        REFUSED[name] if name in REFUSED else (PYXIS + CONTAINER_REFUSED[name][0], CONTAINER_REFUSED[name][1])
    )
    problems = plan_of("model=tiny", *(["nodes=2"] if "nodes=1" not in words else []), *words).problems
    assert expected in str(ConfigError(problems))
    assert "hunter2" not in str(problems)


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ({"--licenses": "a"}, "cluster.extra.--licenses=a: must be the option's name alone"),
        ({"licenses=a": "b"}, "cluster.extra.licenses=a=b: must be the option's name alone"),
        ({" licenses": "b"}, "write cluster.extra.licenses=VALUE"),
        ({"--nodes": 2}, "write nodes"),
        ({"gpu_bind": "none", "gpu-bind": "none"}, "cluster.extra.gpu-bind=none: is cluster.extra.gpu_bind again"),
        ({"": "x"}, "is no long option of sbatch"),
    ],
)
def test_names_of_options(extra: dict[str, str | int | bool | None], expected: str) -> None:
    cluster = ClusterConfig("slurm", "slurm", extra=extra)
    assert expected in str(ConfigError(extra_problems(cluster, {}, "none")))


@pytest.mark.parametrize("name", ["A B", "1A", "A-B", "A=B", ""])
def test_names_of_variables(name: str) -> None:
    (point,) = compose_points(["model=tiny"], multirun=False)
    (problem,) = variable_problems(dataclasses.replace(point.config, env={name: "1"}))
    assert str(problem).startswith(f"env.{name}=1: is no name of an environment variable")


@pytest.mark.parametrize(
    "image",
    ["docker://nvcr.io/nvidia/pytorch:25.01-py3", "nvcr.io#nvidia/pytorch:25.01-py3", "ubuntu:24.04", "/a b.sqsh"],
)
def test_images_of_pyxis(image: str) -> None:
    plan = plan_of("model=tiny", "nodes=2", PYXIS[0], f'cluster.container.image="{image}"')
    assert plan.problems == ()
    assert bool(plan.warnings) == (not image.startswith("/"))


@pytest.mark.parametrize("name", [name for name in (*REFUSED, *CONTAINER_REFUSED) if name.startswith("secret_")])
def test_a_plan_that_is_refused_for_its_secrets_does_not_show_them(name: str) -> None:
    words = REFUSED[name][0] if name in REFUSED else PYXIS + CONTAINER_REFUSED[name][0]
    plan = plan_of("model=tiny", "nodes=2", *words)
    shown = render_plan(plan, "/bin/python") + plan.to_json()
    assert not [secret for secret in ("abcd", "hunter2", "a1B2") if secret in shown]


def test_a_gpu_type_without_gpus_is_told() -> None:
    plan = plan_of("model=tiny", "nodes=2", "hardware=cpu", "cluster.gpu_type=a100")
    assert "cluster.gpu_type=a100 is not used: no GPU is asked for (cluster.gpu_request)" in plan.warnings


def test_no_option_is_known_and_ours() -> None:
    assert not EXTRA_OPTIONS & OWN_KEYS.keys()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 5400),
        (90, 5400),
        ("4:00", 240),
        ("0:240:0", 14400),
        ("4:00:00", 14400),
        ("2-12", 216000),
        ("3-0:00", 259200),
        ("1-24:00:00", 172800),
        ("INFINITE", None),
        ("UNLIMITED", None),
    ],
)
def test_time_forms(text: str | int, seconds: int | None) -> None:
    assert parse_slurm_time(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "-5", "0", "0:00", "1:2:3:4", "1-", "x", "1-2:3:4:5", "1.5", " 10", "\uff11", "99999999999"]
)
def test_times_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match=r"none of Slurm's time forms|zero|more than Slurm can count"):
        parse_slurm_time(text)


@pytest.mark.parametrize(
    ("name", "safe"), [("a b", "a-b"), ("((", "hpctrain"), ("tiny-2n", "tiny-2n"), ("x/y:z", "x-y-z"), ("../.x", "x")]
)
def test_safe_names(name: str, safe: str) -> None:
    assert slurm_safe_name(name) == safe
