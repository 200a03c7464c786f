"""The report's page as text: what is in it, what can never be in it, and its limits."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from dataclasses import asdict, replace
from pathlib import Path

import pandas as pd
import pytest

from hpctrain.analysis.comparison import compare
from hpctrain.analysis.frames import RUN_DTYPES, Frames, load_frames
from hpctrain.analysis.published import load_published
from hpctrain.analysis.report.environment import read_environment
from hpctrain.analysis.report.html_cards import cards
from hpctrain.analysis.report.html_figures import scaling_picture, throughput_picture
from hpctrain.analysis.report.html_report import PublishedResults, render_html
from hpctrain.analysis.report.published_match import matches, published_points
from hpctrain.analysis.report.write_report import write_report
from hpctrain.analysis.run_row import RunSummary
from hpctrain.analysis.scaling import scaling_efficiency
from hpctrain.config.schema import ModelConfig
from hpctrain.record.paths import RunPaths
from tests.analysis.make_runs import CPU_NODE, Attempt, make_run, toy_config
from tests.analysis.report.page_reader import Node, read_page, table_rows, written_page
from tests.analysis.report.report_runs import HOSTILE_NAME, make_sweep, write_code

GPT_175B = ModelConfig(
    "gpt175", "gpt", num_layers=96, hidden_size=12288, num_heads=96, vocab_size=50304, max_seq_len=512
)


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Frames:
    return load_frames([make_sweep(tmp_path_factory.mktemp("runs")), Path("/nosuch")])


@pytest.fixture(scope="module")
def source(sweep: Frames) -> str:
    environments = [read_environment(Path(folder), Path(folder).name) for folder in sweep.runs["folder"].tolist()]
    return render_html(
        sweep, environments=environments, published=PublishedResults(load_published()), written_at="now", max_pictures=2
    )


@pytest.fixture(scope="module")
def page(source: str) -> Node:
    return read_page(source)


def test_every_run_has_its_row_with_every_column(sweep: Frames, page: Node) -> None:
    rows = {row["Run"]: row for row in table_rows(page, "runs-table")}
    assert set(rows) == set(sweep.runs["run"])
    assert len(next(iter(rows.values()))) == sweep.runs.shape[1]
    # 8 nodes of 4 GPUs, 128 sequences of 32 tokens in 0.625 s
    eight = rows["toy-8n"]
    assert [eight[key] for key in ("GPUs", "Step time (s)", "Tokens/s", "Peak memory (GiB)", "Valid")] == [
        "32", "0.625", "6,554", "1", "yes",
    ]  # fmt: skip
    assert (rows["killed"]["Valid"], rows["killed"]["Reason"][:31]) == ("no", "failed (killed), 5 of 10 steps ")
    assert (rows["at-once"]["Step time (s)"], rows["at-once"]["State"]) == ("-", "failed")


def test_numbers_sort_as_numbers_and_missing_values_are_marked(page: Node) -> None:
    rows = page.by_id("runs-table").all("tr")
    headers = [cell.words() for cell in rows[0].all("th")]
    place = headers.index("Tokens/s")
    cells = {row.children[0].words(): row.children[place].attributes for row in rows[1:]}
    assert float(cells["toy-8n"]["data-number"] or "nan") == pytest.approx(128 * 32 / 0.625)
    assert "data-missing" in cells["at-once"]
    assert "data-number" not in cells["at-once"]
    assert rows[0].children[place].attributes["class"] == "number"


def test_scaling_is_in_the_page_with_its_efficiency(page: Node) -> None:
    rows = table_rows(page, "weak-scaling")
    # the named runs of one size count as their median: 2 nodes have 0.55 s and 0.56 s
    assert [(row["GPUs"], row["Runs"], row["Efficiency (%)"]) for row in rows] == [
        ("4", "1", "100.0"),
        ("8", "2", "90.1"),
        ("16", "1", "83.3"),
        ("32", "1", "80.0"),
    ]
    assert "Strong scaling: messages" in page.by_id("scaling").words()


def test_names_are_text_and_nothing_else(source: str, page: Node) -> None:
    assert HOSTILE_NAME in [row["Run"] for row in table_rows(page, "runs-table")]
    assert "<script>alert" not in source
    assert "<img src=x" not in source
    assert len(page.all("script")) == len(page.all("style")) == 1
    message = next(row["Message"] for row in table_rows(page, "attempts-table") if row["Run"] == "killed")
    assert message == "a rank <b>died</b>"
    assert not page.all("b")


def test_the_page_asks_for_nothing_and_obeys_its_own_script_only(source: str, page: Node) -> None:
    policy = next(
        meta.attributes["content"] for meta in page.all("meta") if "Security" in str(meta.attributes.get("http-equiv"))
    )
    assert policy is not None
    assert policy.startswith("default-src 'none'; img-src data:; ")
    for tag in ("style", "script"):
        [node] = page.all(tag)
        digest = base64.b64encode(hashlib.sha256(node.text.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}';" in policy
        assert not node.attributes
    assert "unsafe" not in policy
    for node in page.everything():
        for name, value in node.attributes.items():
            assert not name.startswith("on")
            assert name != "style", "the policy would refuse it"
            if name in ("src", "href", "srcset", "action"):
                assert str(value).startswith(("#", "data:image/")), value
    [style] = page.all("style")
    assert not re.search(r"url\(|@import|https?:", style.text)


def test_what_html_cannot_hold_is_spelled_out(tmp_path: Path) -> None:
    make_run(tmp_path / "runs" / "a\x1b[2J")
    make_run(tmp_path / "runs" / os.fsdecode(b"b\xff"))
    write_report(load_frames([tmp_path / "runs"]), tmp_path / "report.html", max_pictures=0)
    page = read_page((tmp_path / "report.html").read_text(encoding="utf-8"))
    assert {row["Run"] for row in table_rows(page, "runs-table")} == {r"a\x1b[2J", r"b\xff"}


def test_no_pictures_are_a_choice(sweep: Frames) -> None:
    assert not read_page(render_html(sweep, max_pictures=0)).all("img")


def test_pictures_are_limited_and_the_page_says_so(page: Node) -> None:
    part = page.by_id("pictures")
    assert len(part.all("article")) == 2
    assert "2 of 6 runs with steps, valid ones first" in part.words()
    links = [node.attributes["href"] for node in page.by_id("runs-table").all("a")]
    assert [f"#{node.attributes['id']}" for node in part.all("article")] == links
    for image in page.all("img"):
        assert image.attributes["alt"]
        assert int(str(image.attributes["width"])) > 100


def test_environment_is_compared_key_by_key(page: Node) -> None:
    rows = table_rows(page, "environment-differences")
    assert [(row["Key"], row["Value"], row["Runs"], row["Which"]) for row in rows] == [
        ("torch", "2.6.0", "3", "toy-1n, toy-2n, toy-4n"),
        ("torch", "2.7.1", "1", "toy-8n"),
    ]
    equal = {row["Key"]: row["Value"] for row in table_rows(page, "environment-equal")}
    assert equal["python"] == "3.11.2"
    assert "4 of 7 run(s) recorded their environment." in page.by_id("environment").words()


def test_problems_are_listed(page: Node) -> None:
    words = page.by_id("problems").words()
    assert "/nosuch: no such folder" in words
    assert "killed: 1 damaged line(s), left out" in words
    assert "killed/code.json: no such file, so neither versions nor commit" in words


def test_the_cost_is_named_by_the_runs_that_have_one(tmp_path: Path) -> None:
    """Foreign logs, whose device is not known, have no cost; hours of GPUs and of ranks on the CPU are no sum."""
    attempt = Attempt([1.0] * 10)
    make_run(tmp_path / "cpu", toy_config(nodes=1, hardware=CPU_NODE), [attempt])
    runs = load_frames([tmp_path]).runs
    log = runs.assign(run="x.log", device=None, gpu_hours=None, tokens_per_s_per_gpu=1e9).astype(runs.dtypes)
    hours = float(runs["gpu_hours"].iloc[0])
    found = {card.label: card for card in cards(pd.concat([runs, log], ignore_index=True))}
    assert (found["Cost"].value, found["Cost"].unit) == (f"{hours:.4g}", "rank-hours")
    assert (found["Fastest per GPU"].note, "Fastest per rank" in found) == ("x.log", False)
    gpu = runs.assign(device="cuda", gpu_hours=3.0).astype(runs.dtypes)
    costs = [card for card in cards(pd.concat([runs, gpu, log, gpu], ignore_index=True)) if card.label == "Cost"]
    assert [(card.value, card.unit) for card in costs] == [("6", "GPU-hours"), (f"{hours:.4g}", "rank-hours")]


def test_the_colour_of_a_state_is_told(page: Node) -> None:
    words = "on orange: not valid, for the reason below; plain: valid, but not known to have completed."
    assert words in page.by_id("runs").words()
    rows = page.by_id("runs-table").all("tbody")[0].all("tr")
    tones = {row.attributes["data-valid"]: row.all("span")[0].attributes["class"] for row in rows}
    assert tones == {"yes": "good", "no": "bad"}


def test_plan_and_measurement_stand_side_by_side(sweep: Frames) -> None:
    predicted = sweep.runs["step_time_s"] * 0.9
    error = predicted / sweep.runs["step_time_s"] - 1
    inside = sweep.runs["run"] != "toy-8n"
    runs = sweep.runs.assign(
        predicted_step_time_s=predicted,
        predicted_step_time_low_s=0.8 * predicted,
        predicted_step_time_high_s=1.2 * predicted,
        prediction_error=error,
        in_predicted_range=inside.where(error.notna()).astype("boolean"),
    )
    frames = Frames(runs, sweep.steps, sweep.attempts, sweep.samples)
    missing = PublishedResults(problem="x: no published results")
    page = read_page(render_html(frames, published=missing, max_pictures=0))
    assert "Published results were not read: x: no published results." in page.by_id("throughput").words()
    row = next(row for row in table_rows(page, "plan-table") if row["Run"] == "toy-8n")
    assert (row["Step time, plan (s)"], row["measured (s)"]) == ("0.5625", "0.625")
    assert (row["its range (s)"], row["measured / plan"], row["in the range"]) == ("0.45 to 0.675", "1.111", "no")
    errors = [cell.words() for cell in page.by_id("plan-table").all("tbody")[0].all("tr")[0].children]
    assert errors[5] == "-10.0"
    assert "Measured step time in the predicted range: 4 of 5 valid run(s)." in page.by_id("plan").words()
    assert "toy-8n: hardware=test_gpu does not state hardware.achievable_tflops.bf16" in page.by_id("plan").words()
    assert (
        "Predicted step time: absolute error 10.0 % in the median, 10.0 % at most; signed error -10.0 % in the median;"
        " over 5 valid run(s)."
    ) in page.by_id("plan").words()


def test_a_run_of_a_published_size_stands_beside_it(tmp_path: Path) -> None:
    config = toy_config(nodes=16, model=GPT_175B, activation_checkpointing="full", micro_batch_size=1)
    make_run(tmp_path / "ours", config, [Attempt([2e6] * 10)])
    runs = load_frames([tmp_path]).runs
    published = load_published(files=["azure-deepspeed.csv"])
    pairs = matches(runs, published_points(published))
    assert len(pairs) == 5
    assert {point["model"] for _, point in pairs} == {"GPT 175B"}
    assert pairs[0][1]["gpus"] == 128, "the most similar number of GPUs first; ours are 64"
    page = read_page(render_html(load_frames([tmp_path]), published=PublishedResults(published), max_pictures=1))
    row = table_rows(page, "published-table")[0]
    assert row["Run"] == "ours"
    assert row["Published"].startswith("DeepSpeed on Azure (2022-07-26): GPT 175B, 128 GPUs, micro batch ")
    assert row["Evidence"] == "DIGITISED"
    assert len(page.by_id("throughput").all("img")) == 1


def test_without_a_run_of_a_published_size_a_sentence_says_so(page: Node) -> None:
    assert "No valid run has the size of a published result within 10 %; those are " in page.by_id("throughput").words()


@pytest.mark.parametrize(("seconds", "tone"), [(0.8, "bad"), (0.5, "good")])
def test_a_comparison_is_a_part_of_the_page(tmp_path: Path, seconds: float, tone: str) -> None:
    for folder, time_s in (("base", 0.5), ("new", seconds)):
        make_run(tmp_path / folder / "run", toy_config(num_steps=12), [Attempt([time_s] * 12)])
    frames = load_frames([tmp_path / "new"])
    comparison = compare(frames, load_frames([tmp_path / "base"]))
    page = read_page(render_html(frames, comparison=comparison, max_pictures=0))
    part = page.by_id("against")
    [verdict] = [
        node for node in part.all("span") if node.attributes.get("class") == tone and "onfiguration" in node.text
    ]
    assert verdict.text.startswith("Regression: 1 of 1" if tone == "bad" else "No regression shown in 1")
    row = table_rows(page, "comparison-table")[0]
    assert (row["Metric"], row["Verdict"]) == ("step time", "slower" if tone == "bad" else "within 5 %")
    assert "of the medians of one run a side, of the geometric means of three runs or more" in part.words()


def test_dollars_in_names_are_no_formulas(tmp_path: Path) -> None:
    for nodes in (1, 2):
        make_run(tmp_path / rf"$\{nodes}$", toy_config(nodes=nodes))
    frames = load_frames([tmp_path])
    assert throughput_picture(frames.runs, None) is not None
    assert scaling_picture(scaling_efficiency(frames.runs, "weak")) is not None
    page = read_page(render_html(frames))
    assert r"$\1$" in [row["Run"] for row in table_rows(page, "runs-table")]


def test_a_rate_that_only_a_log_prints_is_drawn(sweep: Frames) -> None:
    rates = dict.fromkeys(f"{name}_tflops_per_gpu" for name in ("model", "hardware", "megatron"))
    runs = sweep.runs.assign(**rates, printed_tflops_per_gpu=120.5).astype(sweep.runs.dtypes)
    assert throughput_picture(runs, None) is not None
    assert throughput_picture(runs.assign(printed_tflops_per_gpu=None).astype(runs.dtypes), None) is None


@pytest.mark.parametrize(("num_logs", "is_open"), [(3, True), (80, False)])
def test_long_lists_of_names_are_folded(num_logs: int, is_open: bool) -> None:
    """The page names every log; 80 names of 15 letters with their commas are more than 800 letters."""
    rows = [
        RunSummary(f"/x/{n}", f"run-{n:05}.output", source="megatron-lm", tokens_per_s=9.0, valid=True)
        for n in range(num_logs)
    ]
    runs = pd.DataFrame(list(map(asdict, rows)), columns=list(RUN_DTYPES)).astype(RUN_DTYPES)
    frames = replace(load_frames([]), runs=runs)
    lists = read_page(render_html(frames, max_pictures=0)).by_id("scaling").all("details")
    assert [node.all("summary")[0].words() for node in lists] == [
        "Strong scaling: messages (1)",
        "Weak scaling: messages (1)",
    ]
    for node in lists:
        assert ("open" in node.attributes) == is_open
        assert f"run-{num_logs - 1:05}.output" in node.words()


def test_logs_of_other_systems_have_rows_with_what_they_know(sweep: Frames) -> None:
    rows = [
        RunSummary("/x/a.log", "a.log", source="megatron-lm", state="completed", gpus=64, step_time_s=1.5, valid=True),
        RunSummary("/x/b.log", "b.log", source="nanogpt", state="unreadable", reason="no record"),
    ]
    runs = pd.DataFrame(list(map(asdict, rows)), columns=list(RUN_DTYPES)).astype(RUN_DTYPES)
    frames = replace(sweep, runs=pd.concat([sweep.runs, runs], ignore_index=True))
    page = read_page(render_html(frames, published=PublishedResults(load_published()), max_pictures=0))
    by_name = {row["Run"]: row for row in table_rows(page, "runs-table")}
    log = by_name["a.log"]
    assert (log["System"], log["GPUs"], log["Model"], log["Step time (s)"]) == ("megatron-lm", "64", "-", "1.5")
    assert "/x/b.log: no record" in page.by_id("problems").words()


@pytest.mark.parametrize("kind", ["failed", "empty"])
def test_a_page_of_nothing_good_is_still_a_page(tmp_path: Path, kind: str) -> None:
    if kind == "failed":
        make_run(tmp_path / "a", attempts=[Attempt([], end={"state": "failed", "end_reason": "launch_failed"})])
        (make_run(tmp_path / "b").root / "plan.json").write_text("{")
    frames = load_frames([tmp_path])
    write_report(frames, tmp_path / "report.html", max_pictures=1)
    page = read_page((tmp_path / "report.html").read_text(encoding="utf-8"))
    assert len(table_rows(page, "runs-table")) == (2 if kind == "failed" else 0)
    assert "No efficiency: no two valid runs" in page.by_id("scaling").words()
    assert "No picture: no valid run has a rate in TFLOP/s." in page.by_id("throughput").words()


def test_hardware_and_cluster_belong_to_the_environment(tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs" / "a")
    write_code(run.root)
    write_report(load_frames([tmp_path / "runs"]), tmp_path / "report.html", max_pictures=0)
    page = read_page((tmp_path / "report.html").read_text(encoding="utf-8"))
    rows = {row["Key"]: row["Value"] for row in table_rows(page, "environment-equal")}
    assert (rows["hardware"], rows["cluster"], rows["torch"]) == ("test_gpu", "test", "2.6.0")


def test_a_report_writes_nothing_into_the_runs(tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs" / "a")
    before = {path: path.stat().st_mtime_ns for path in run.root.rglob("*")}
    write_report(load_frames([tmp_path / "runs"]), tmp_path / "report.html", max_pictures=0)
    assert {path: path.stat().st_mtime_ns for path in run.root.rglob("*")} == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "runs"]


def test_a_thousand_runs_are_a_file_that_can_be_mailed(source: str, sweep: Frames) -> None:
    rows = source.split('id="runs-table"')[1].split("<tbody>")[1].split("</tbody>")[0]
    assert len(rows.encode()) / len(sweep.runs) < 6000, "bytes a run; pictures have limits of their own"


def test_the_throughput_picture_shows_the_fastest_and_says_so(sweep: Frames) -> None:
    runs = pd.concat([sweep.runs[sweep.runs["valid"]]] * 7, ignore_index=True)
    picture = throughput_picture(runs, None)
    assert picture is not None
    assert picture.note == f"The 30 valid runs with the most TFLOP/s of {len(runs)}; the table has all."
    assert picture.height_px < 1100


def change_attempt(run: RunPaths, **fields: object) -> None:
    path = run.attempt(1)
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def test_a_running_run_has_no_duration_yet(tmp_path: Path) -> None:
    make_run(tmp_path / "runs" / "done")
    change_attempt(
        make_run(tmp_path / "runs" / "running"), state="running", ended_at_s=None, end_reason=None, exit_code=None
    )
    rows = {row["Run"]: row for row in table_rows(written_page(tmp_path / "runs"), "attempts-table")}
    # 10 s before the first step, then 2 + 1 + 8 x 0.5 s
    assert {name: (row["State"], row["Duration (s)"]) for name, row in rows.items()} == {
        "done": ("completed", "17"),
        "running": ("running", "-"),
    }


@pytest.mark.parametrize("seconds", [253402300800.0, 1e18, -1e18, 1e300, -1e12])
def test_a_time_that_no_calendar_has_is_a_problem_in_the_page(tmp_path: Path, seconds: float) -> None:
    change_attempt(make_run(tmp_path / "runs" / "a"), started_at_s=seconds)
    change_attempt(make_run(tmp_path / "runs" / "b"), ended_at_s=253402300799.0)
    page = written_page(tmp_path / "runs")
    assert f"started_at_s={seconds:g}" in page.by_id("runs").words()
    [row] = table_rows(page, "attempts-table")
    assert (row["Run"], row["Started (UTC)"]) == ("b", "1970-01-01 00:16:40")  # 1,000 s


def test_halves_of_signs_in_records_are_spelled_out(tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs" / "run")
    run.plan.write_text(run.plan.read_text().replace('"toy"', '"\\ud800"'))
    change_attempt(run, message="\udcff fell")
    page = written_page(tmp_path / "runs", pictures=1)
    assert table_rows(page, "runs-table")[0]["Model"] == r"\ud800"
    assert table_rows(page, "attempts-table")[0]["Message"] == r"\xff fell"


def test_runs_of_one_name_are_told_apart_in_the_page(tmp_path: Path) -> None:
    for place in ("old/run0", "new/run0"):
        run = make_run(tmp_path / "runs" / place, attempts=[Attempt([0.5] * 3, end={"state": "failed"})])
        write_code(run.root, commit=place)
    page = written_page(tmp_path / "runs", pictures=2)
    both = ["new/run0", "old/run0"]
    for name in ("runs-table", "attempts-table"):
        assert [row["Run"] for row in table_rows(page, name)] == both
    assert [node.all("h3")[0].words().split()[0] for node in page.all("article")] == both
    which = {row["Value"]: row["Which"] for row in table_rows(page, "environment-differences")}
    assert which == {"new/run0": "new/run0", "old/run0": "old/run0"}
    assert "new/run0: failed" in page.by_id("runs").words()
