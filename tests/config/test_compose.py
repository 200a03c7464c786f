"""User mistakes as a table, and what composes."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpctrain.config.compose import compose_points, config_dir, group_choices
from hpctrain.errors import ConfigError
from hpctrain.plan.run_plan import build_run_plan

MISTAKES = [
    pytest.param(["model=530B"], ["model=530B", "nearest: 530b"], id="unknown-model"),
    pytest.param(["modle=530b"], ["modle=530b", "nearest: model"], id="mistyped-group"),
    pytest.param(
        ["model=tiny", "parallelism=tp8pp35x"],
        ["parallelism=tp8pp35x", "known: auto, ddp, megatron_3d"],
        id="unknown-parallelism",
    ),
    pytest.param(["model=tiny", "slurm=foo"], ["slurm=foo", "nearest: cluster"], id="group-that-is-none"),
    pytest.param(
        ["model=tiny", "model.num_layerz=3"], ["model.num_layerz=3", "nearest: num_layers"], id="mistyped-key"
    ),
    pytest.param(["model=tiny", "+model.typo=1"], ["model.typo=1", "is no key"], id="added-key"),
    pytest.param(["model=tiny", "++training.stepz=1"], ["training.stepz=1", "is no key"], id="forced-key"),
    pytest.param(["model=tiny", "model.name.x=1"], ["model.name.x=1", "no keys below"], id="key-below-a-value"),
    pytest.param(
        ["model=tiny", "cluster=3"], ["cluster=3", "known: azureml, local, sandbox, slurm"], id="group-as-number"
    ),
    pytest.param(["model=tiny", "~cluster"], ["cluster", "a choice is needed"], id="group-removed"),
    pytest.param(["model=tiny", "training=[1]"], ["training=[1]", "no such training"], id="group-as-list"),
    pytest.param(["nodes=1"], ["model: must be given", "530b"], id="no-model"),
    pytest.param(["model=tiny", "nodes=1,2"], ["nodes=1,2", "-m"], id="sweep-without-m"),
    pytest.param(
        ["model=tiny", "hydra/launcher=submitit_slurm"], ["hydra/launcher", "submits by itself"], id="launcher"
    ),
    pytest.param(["model=tiny", "hydra.run.dir=x"], ["hydra.run.dir=x", "run.root"], id="hydra-folder"),
    pytest.param(["model=tiny", "data.path=/d/a=b"], ["data.path", "'data.path=\"/d/a=b\"'"], id="equals-sign"),
    pytest.param(["model=tiny", "run.name=a(b"], ["run.name", "'run.name=\"a(b\"'"], id="open-bracket"),
    pytest.param(["model=tiny", "nodes"], ["nodes", "key=value"], id="no-value"),
    pytest.param(
        ["model=tiny", "cluster.kind=ssh"], ["cluster.kind=ssh", "'slurm', 'local' or 'azureml'"], id="literal"
    ),
    pytest.param(["model=tiny", "cluster.exclusive=maybe"], ["cluster.exclusive='maybe'", "true or false"], id="bool"),
    pytest.param(["model=tiny", "training.beta1=1.5"], ["training.beta1=1.5", "less than 1"], id="fraction"),
    pytest.param(["model=tiny", "run.name=''"], ["run.name=''", "must not be empty"], id="empty-text"),
    pytest.param(["model=tiny", "env.A=null"], ["env.A"], id="variable-without-a-value"),
    pytest.param(
        ["model=tiny", "model.hidden_size=1000000000000000003"], ["model.hidden_size", "less than"], id="huge"
    ),
    pytest.param(
        ["model=tiny", "cluster.setup=['cd ${SCRATCH}']"],
        ["cluster.setup[0]: ", "SCRATCH", r"write a variable of the shell as $NAME or \${NAME}"],
        id="shell-variable",
    ),
    pytest.param(["model=tiny", "run.note=${nosuch}"], ["run.note: ", "nosuch"], id="interpolation"),
    pytest.param(["model=tiny", "run.name=???"], ["run.name=???: must be given"], id="mandatory"),
    pytest.param(["model=tiny", "env.A=[1]"], ["env.A=[1]: must be text"], id="variable-as-list"),
    pytest.param(
        ["model=tiny", "cluster.extra.x={a:1}"], ['cluster.extra.x={"a": 1}: must be'], id="option-as-mapping"
    ),
    pytest.param(["model=tiny", "launch=null"], ["launch=null: must stay a mapping"], id="section-as-null"),
    pytest.param(["model=tiny", "é=1"], ["é: is not how a key is written"], id="key-beyond-ascii"),
    pytest.param(["model=tiny", 'env."A B"=1'], ["is not how a key is written"], id="quoted-key"),
]

NOT_COUNTS = ["0128", "1e2", "1_28", "0", "-1", "2.0", "null", "two", "''"]


@pytest.mark.parametrize(("words", "expected"), MISTAKES)
def test_mistakes_are_told_in_short(words: list[str], expected: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        compose_points(words, multirun=False)
    message = str(caught.value)
    assert all(text in message for text in expected), message
    assert len(message.splitlines()) <= 5
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("value", NOT_COUNTS)
def test_a_count_is_a_whole_number_written_plainly(value: str) -> None:
    with pytest.raises(ConfigError, match=r"^nodes=") as caught:
        compose_points(["model=tiny", f"nodes={value}"], multirun=False)
    assert len(str(caught.value).splitlines()) == 1


def test_all_wrong_values_are_named_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        compose_points(["model=tiny", "nodes=0", "training.num_steps=x", "model.vocab_size=-2"], multirun=False)
    keys = {problem.key for problem in caught.value.problems}
    assert keys == {"nodes", "training.num_steps", "model.vocab_size"}


ODD_VALUES = ["a#b", "a%b", "a@b", "é", "a(b)", "a[1]", "a\\", "$HOME", "a:b", "/d/step=100", "a b'c", 'say "x"']


@pytest.mark.parametrize("value", ODD_VALUES)
@pytest.mark.parametrize("key", ["data.path", "run.name", "env.PROBE"])
def test_odd_values_arrive_unchanged_or_are_refused_with_a_form_that_works(key: str, value: str) -> None:
    try:
        (point,) = compose_points(["model=tiny", f"{key}={value}"], multirun=False)
    except ConfigError as error:
        message = str(error)
        assert message.startswith(f"{key}:")
        # What is between the outer quotes is what the shell hands over.
        advised = message[message.index("type '") + len("type '") : -1].replace("'\\''", "'")
        (point,) = compose_points(["model=tiny", advised], multirun=False)
    section, name = key.split(".")
    values = getattr(point.config, section)
    assert (values[name] if section == "env" else getattr(values, name)) == value


def test_a_sweep_is_the_product_with_the_last_key_fastest() -> None:
    words = ["model=tiny,125m", "nodes=1,2", "training.micro_batch_size=range(1,3)"]
    points = compose_points(words, multirun=True)
    found = [(p.config.model.name, p.config.nodes, p.config.training.micro_batch_size) for p in points]
    assert found == [(m, n, b) for m in ("tiny", "125m") for n in (1, 2) for b in (1, 2)]


def test_all_wrong_values_of_a_sweep_are_named() -> None:
    with pytest.raises(ConfigError) as caught:
        compose_points(["model=tiny", "nodes=one,2,0", "training.num_steps=5,x"], multirun=True)
    assert sorted(str(problem) for problem in caught.value.problems) == [
        "nodes='one': must be a whole number; write it in plain digits, for example 1",
        "nodes=0: must be greater than 0; nearest: 1",
        "training.num_steps='x': must be a whole number; write it in plain digits, for example 1",
    ]


def test_glob_picks_from_the_group() -> None:
    points = compose_points(["model=glob(llama3_*)"], multirun=True)
    assert [point.config.model.name for point in points] == ["llama3_405b", "llama3_70b", "llama3_8b"]


@pytest.mark.parametrize(
    "words", [["model=tiny", "nodes=interval(1,2)"], ["model=glob(zz*)"]], ids=["interval", "no-match"]
)
def test_sweeps_without_points_are_refused(words: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"no points|matches no"):
        compose_points(words, multirun=True)


def test_hardware_is_assumed_only_where_nothing_says_it() -> None:
    def assumptions(*words: str) -> tuple[str, ...]:
        return compose_points(["model=tiny", *words], multirun=False)[0].assumptions

    assert "ndm_a100_v4" in assumptions()[0]
    assert "hardware" not in " ".join(assumptions("hardware=ndm_a100_v4"))
    assert "hardware" not in " ".join(assumptions("cluster=local"))
    assert assumptions("cluster=local", "data=synthetic") == ("not stated: parallelism=auto, training=pretrain",)


def test_local_and_sandbox_train_on_the_cpu_unless_told_otherwise() -> None:
    for cluster in ("local", "sandbox"):
        (point,) = compose_points(["model=tiny", f"cluster={cluster}"], multirun=False)
        assert point.config.hardware.name == "cpu"
    (point,) = compose_points(["model=tiny", "cluster=local", "hardware=hgx_h200"], multirun=False)
    assert point.config.hardware.name == "hgx_h200"


@pytest.mark.parametrize(
    ("word", "section", "key", "value"),
    [
        ("cluster.account=012", "cluster", "account", "012"),
        ("run.name=2024_11_29", "run", "name", "2024_11_29"),
        ("cluster.time=90", "cluster", "time", "90"),
        ("cluster.time=4:00:00", "cluster", "time", "4:00:00"),
        ("cluster.memory_per_node=0", "cluster", "memory_per_node", "0"),
        ("run.name=prüfung", "run", "name", "prüfung"),
        ("env.X=2024_01", "env", "X", "2024_01"),
        ("env.X=1", "env", "X", "1"),
    ],
)
def test_text_that_looks_like_something_else_stays_text(word: str, section: str, key: str, value: str) -> None:
    (point,) = compose_points(["model=tiny", word], multirun=False)
    found = getattr(point.config, section)
    assert (found[key] if section == "env" else getattr(found, key)) == value


def test_numbers_of_text_keys_stay_text_in_a_sweep() -> None:
    points = compose_points(["model=tiny", "cluster.account=012,3_4,ours", "env.X=017,a,1e3"], multirun=True)
    assert {(point.config.cluster.account, point.config.env["X"]) for point in points} == {
        (account, value) for account in ("012", "3_4", "ours") for value in ("017", "a", "1e3")
    }


@pytest.mark.parametrize(
    "text", [b"name: [", b"\tname: x", b"name: \xff", b"name: x\nname: y"], ids=["open", "tab", "bytes", "twice"]
)
def test_a_sites_file_that_is_no_yaml_is_named(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "cluster").mkdir()
    (tmp_path / "cluster" / "ours.yaml").write_bytes(text)
    with pytest.raises(ConfigError, match=r"ours.yaml"):
        compose_points(["model=tiny", "cluster=ours"], multirun=False, extra_dirs=[tmp_path])


@pytest.mark.parametrize("line", ["time: 4:00:00", "nodes: 017", "signal_lead_s: 1_20", "account: 012 # ours"])
def test_numbers_that_yaml_would_change_are_refused_in_a_sites_files(tmp_path: Path, line: str) -> None:
    (tmp_path / "cluster").mkdir()
    (tmp_path / "cluster" / "ours.yaml").write_text(f"name: ours\nkind: slurm\n{line}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"ours.yaml:3: .* YAML reads it as another number"):
        compose_points(["model=tiny", "cluster=ours"], multirun=False, extra_dirs=[tmp_path])


def test_a_sites_file_may_not_hide_behind_a_shipped_one(tmp_path: Path) -> None:
    (tmp_path / "cluster").mkdir()
    (tmp_path / "cluster" / "slurm.yaml").write_text("partition: MINE\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="ships a file of this name"):
        compose_points(["model=tiny"], multirun=False, extra_dirs=[tmp_path])


def test_a_site_adds_its_own_files(tmp_path: Path) -> None:
    site = tmp_path / "si,te (1) 'é"
    (site / "cluster").mkdir(parents=True)
    (site / "cluster" / "ours.yaml").write_text("name: ours\nkind: slurm\npartition: gpu\n", encoding="utf-8")
    (point,) = compose_points(["model=tiny", "cluster=ours"], multirun=False, extra_dirs=[site])
    assert point.config.cluster.partition == "gpu"


@pytest.mark.parametrize("group", ["parallelism", "hardware", "cluster", "training", "data", "model"])
def test_every_shipped_file_composes_and_plans(group: str) -> None:
    for name in group_choices(group):
        words = [f"{group}={name}"] + ([] if group == "model" else ["model=tiny"])
        words += ["data.path=/some/text"] if name == "text" else []
        (point,) = compose_points(words, multirun=False)
        assert getattr(point.config, group).name == name
        build_run_plan(point.config)


def test_every_number_of_the_hardware_files_has_a_source() -> None:
    for name in group_choices("hardware"):
        (point,) = compose_points(["model=tiny", f"hardware={name}"], multirun=False)
        hardware = point.config.hardware
        groups = ("peak_tflops", "achievable_tflops")
        rates = {f"{group}.{precision}" for group in groups for precision in getattr(hardware, group)}
        numbers = rates | {
            key
            for key, value in vars(hardware).items()
            if isinstance(value, (int, float)) and not isinstance(value, bool)
        }
        assert numbers == set(hardware.sources), name


def test_configuration_is_found_beside_the_source() -> None:
    assert (config_dir() / "config.yaml").is_file()


@pytest.mark.parametrize(("written", "line"), [("$SCRATCH", "$SCRATCH"), (r"\${SCRATCH}", "${SCRATCH}")])
def test_variables_of_the_shell_reach_the_setup(written: str, line: str) -> None:
    (point,) = compose_points(["model=tiny", f"cluster.setup=['cd {written}']"], multirun=False)
    assert point.config.cluster.setup == (f"cd {line}",)


def test_a_rate_that_the_file_does_not_have_can_be_typed() -> None:
    """A plan that lacks one asks for it by that key."""
    words = ["model=13b", "hardware=ndm_a100_v4", "hardware.achievable_tflops.fp32=15"]
    (point,) = compose_points(words, multirun=False)
    assert point.config.hardware.achievable_tflops["fp32"] == 15
