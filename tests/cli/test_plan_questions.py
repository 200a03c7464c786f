"""``plan --largest``, ``--fewest-nodes``, ``--best-micro-batch``: words in, text or JSON and an exit code out."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from hpctrain.cli_plan import plan
from hpctrain.errors import EXIT_CONFIG, EXIT_DOES_NOT_FIT, EXIT_OK, ConfigError
from hpctrain.help_text import help_text

ZERO3 = ("hardware=ndm_a100_v4", "parallelism=zero3")


def told(capsys: pytest.CaptureFixture[str], *words: str, code: int = EXIT_OK) -> str:
    assert plan(words) == code
    return capsys.readouterr().out


def told_json(capsys: pytest.CaptureFixture[str], *words: str, code: int = EXIT_OK) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(told(capsys, *words, "--json", code=code))
    return answer


def test_largest(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--largest", "model=13b", *ZERO3)
    answer = told_json(capsys, *words)
    assert (answer["question"], answer["trainer"]) == ("largest", None)
    layers = answer["largest"]["num_layers"]
    assert answer["above"]["num_layers"] == layers + 1
    assert answer["binds"] == [problem["key"] for problem in answer["above"]["short"]] == ["memory.gpu"]
    text = told(capsys, *words)
    assert text.startswith(
        "note: not stated: training=pretrain, data=stdlib\n\nlargest model of this width on 1 node x 8 GPUs"
    )
    assert f"binds at {layers + 1} layers: memory.gpu=" in text
    assert f"plan it with model.num_layers={layers}\n" in text
    # What it says to type is planned, and one layer more is not.
    assert plan([f"model.num_layers={layers}", *words[1:]]) == EXIT_OK
    assert plan([f"model.num_layers={layers + 1}", *words[1:]]) == EXIT_DOES_NOT_FIT


@pytest.mark.parametrize("words", ["--largest nodes=2", "--fewest-nodes", "--best-micro-batch nodes=2"])
def test_a_wide_table_is_folded_to_the_terminal(
    words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    whole = told(capsys, *words.split(), "model=13b", *ZERO3).split("\n\n")
    monkeypatch.setenv("COLUMNS", "80")
    folded = told(capsys, *words.split(), "model=13b", *ZERO3).split("\n\n")
    assert max(map(len, whole[2].splitlines())) > 100
    tables = folded[2 : len(folded) - len(whole) + 3]
    assert len(tables) > 1
    assert max(len(line) for table in tables for line in table.splitlines()) <= 80
    # Nothing is lost: the same head and foot, all columns, and in each table what a line is of.
    assert (folded[:2], folded[2 + len(tables) :]) == (whole[:2], whole[3:])
    for number, line in enumerate(whole[2].splitlines()):
        cells = [cell for table in tables for cell in table.splitlines()[number].split()]
        assert set(line.split()) == set(cells)
        assert len({table.splitlines()[number][:13] for table in tables}) == 1


def test_largest_of_another_trainer(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--largest", "model=28b", "hardware=hccpnv4h", "parallelism=zero3_offload")
    answer = told_json(capsys, *words, "--trainer", "megatron_deepspeed_2022")
    assert answer["trainer"] == "megatron_deepspeed_2022"
    assert (answer["largest"]["num_layers"], answer["binds"]) == (28, ["memory.host"])
    assert answer["largest"]["step_time_s"] is None
    text = told(capsys, *words, "--trainer=megatron_deepspeed_2022")
    assert ", by the memory of megatron_deepspeed_2022: 28 layers, 30.5 B parameters" in text
    assert "plan it with" not in text, "the planner plans runs of its own worker"


def test_fewest_nodes(capsys: pytest.CaptureFixture[str]) -> None:
    answer = told_json(capsys, "--fewest-nodes", "model=175b", *ZERO3)
    assert answer["question"] == "fewest-nodes"
    assert answer["fewest"]["has_headroom"] is True
    assert answer["nearest"]["nodes"] == answer["fewest"]["nodes"] - 1
    assert answer["more"][0]["gpu_hours_per_billion_tokens"] > 0
    assert answer["max_nodes"] == 1024
    text = told(capsys, "--fewest-nodes", "--max-nodes", "3", "model=175b", *ZERO3, code=EXIT_DOES_NOT_FIT)
    assert "for 175b: none of at most 3 with a tenth of each tier free\n" in text
    assert "planned: nodes=1-3, up to --max-nodes 3" in text


def test_best_micro_batch(capsys: pytest.CaptureFixture[str]) -> None:
    answer = told_json(capsys, "--best-micro-batch", "model=13b", "nodes=2", *ZERO3)
    assert answer["question"] == "best-micro-batch"
    assert answer["best"] in answer["rows"]
    assert [row["fits"] for row in answer["rows"]].index(False) == len(answer["rows"]) - 1
    text = told(capsys, "--best-micro-batch", "model=530b", "parallelism=ddp", code=EXIT_DOES_NOT_FIT)
    assert "ddp: none fits\n" in text


def test_what_is_open_is_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    """Of a form that nobody stated: for each size anew, and once for all micro batches."""
    nodes = told_json(
        capsys, "--fewest-nodes", "model=13b", "hardware=ndm_a100_v4", "parallelism=auto", "--max-nodes=4"
    )
    assert nodes["fewest"]["nodes"] == 1
    assert {row["parallelism"] for row in (nodes["fewest"], *nodes["more"])}.isdisjoint({"auto"})
    best = told_json(capsys, "--best-micro-batch", "model=13b", "hardware=ndm_a100_v4", "parallelism=auto", "nodes=2")
    assert len({row["parallelism"] for row in best["rows"]}) == 1
    assert any(f"parallelism={best['best']['parallelism']}" in note for note in best["notes"]), (
        "what was chosen is told"
    )
    with pytest.raises(ConfigError, match="parallelism=auto: --trainer deepspeed chooses no parallelism; state one"):
        plan(["--largest", "--trainer", "deepspeed", "model=13b", "parallelism=auto"])


def test_fewest_nodes_of_an_open_form_for_a_small_batch(capsys: pytest.CaptureFixture[str]) -> None:
    """Four sequences a step: no plain data parallelism shares them among the 8 GPUs of a node, a split model does."""
    answer = told_json(capsys, "--fewest-nodes", "model=13b", "hardware=ndm_a100_v4", "training.global_batch_size=4")
    assert answer["fewest"]["nodes"] == 1
    assert answer["fewest"]["global_batch_size"] == 4
    assert plan(["model=13b", "hardware=ndm_a100_v4", "training.global_batch_size=4", "nodes=1"]) == EXIT_OK


REFUSED = [
    (["--largest", "--fewest-nodes", "model=tiny"], "--largest and --fewest-nodes: are 2 questions"),
    (["--largest", "--table", "rows.csv"], "--table and --largest: are 2 questions"),
    (["--largest", "--calibrate", "runs"], "--calibrate and --largest: are 2 questions"),
    (["--largest", "-m", "model=tiny,13b"], "--multirun: does not go with --largest"),
    (["--largest", "--rehearse", "--site", "model=13b"], "--site --rehearse: does not go with --largest"),
    (["--fewest-nodes", "--force", "model=13b"], "--force: does not go with --fewest-nodes"),
    (["--largest", "--tokens", "3B", "model=13b"], "--tokens: asks what a run costs"),
    (["--largest", "model=13b", "model.num_layers=3"], "model.num_layers=3: is what --largest looks for; leave it out"),
    (["--fewest-nodes", "model=13b", "nodes=3"], "nodes=3: is what --fewest-nodes looks for"),
    (
        ["--best-micro-batch", "model=13b", "+training.micro_batch_size=3"],
        "training.micro_batch_size=3: is what --best-micro-batch looks for",
    ),
    (["--largest", "--max-nodes=3", "model=13b"], "--max-nodes 3: goes with --fewest-nodes, not with --largest"),
    (["--best-micro-batch", "--trainer", "fsdp", "model=13b"], "--trainer fsdp: goes with --largest"),
    (["--largest", "--trainer", "nemo", "model=13b"], "--trainer=nemo: is not known; known: deepspeed, "),
    (["--largest", "model=13b", "--trainer"], "argument --trainer: expected one argument"),
    (["--fewest-nodes", "--max-nodes", "0", "model=13b"], "--max-nodes=0: must be a whole number from 1 to 1,000,000"),
    (["--fewest-nodes", "--max-nodes", "1e3", "model=13b"], "--max-nodes=1e3: must be a whole number"),
    (["--fewest-nodes", "--max-nodes", "²", "model=13b"], "--max-nodes=²: must be a whole number"),
    (["--largest", "model=13b", "training=launch_check"], "training=launch_check: builds no model"),
    (["--largest", "model=13b", "--deepest"], "--deepest: is no option of this verb"),
]


@pytest.mark.parametrize(("words", "message"), REFUSED, ids=[message.partition(":")[0] for _, message in REFUSED])
def test_words_that_contradict_are_refused(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        plan(words)
    assert message in str(error.value)
    assert error.value.exit_code == EXIT_CONFIG


def test_help_names_the_questions() -> None:
    for option in ("--largest", "--fewest-nodes", "--max-nodes N", "--best-micro-batch", "--trainer NAME"):
        assert option in help_text()


def test_a_plain_plan_does_not_load_the_questions() -> None:
    code = (
        "import sys; from hpctrain.cli_plan import plan; plan(['model=tiny', 'cluster=local', 'parallelism=zero3']);"
        "print([name for name in sys.modules if 'questions' in name], file=sys.stderr)"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stderr.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    "words",
    [
        "model=13b nodes=2 hardware=ndm_a100_v4",
        "model=28b nodes=3 hardware=ndm_a100_v4 parallelism.sequence_parallel_size=8",
        "model=125m nodes=2 hardware=ndm_a100_v4 training.offload_activations=true training=benchmark",
        "model=llama3_8b nodes=2 hardware=ndm_a100_v4",
    ],
    ids=["all-open", "degree-stated", "inputs-on-host", "accumulation"],
)
def test_the_best_micro_batch_is_planned_with_the_words_that_it_says(
    words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Form and accumulation were chosen before the micro batch was varied; with another one the search takes others."""
    answer = told_json(capsys, "--best-micro-batch", *words.split())
    text = told(capsys, "--best-micro-batch", *words.split())
    (line,) = (line for line in text.splitlines() if line.startswith("plan it with "))
    typed = line.removeprefix("plan it with ").split()
    assert typed[0].startswith("parallelism=")
    found = told_json(capsys, *words.split(), *typed)
    assert found["prediction"]["tokens_per_s"] == pytest.approx(answer["best"]["tokens_per_s"])
    plain = told_json(capsys, *words.split())
    assert found["prediction"]["tokens_per_s"] >= 0.999 * plain["prediction"]["tokens_per_s"]
    stated = told(capsys, "--best-micro-batch", "model=13b", *ZERO3)
    assert "\nplan it with training.micro_batch_size=" in stated
