"""Wall-clock time by part against hand-worked runs, and the figures that show it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.container import BarContainer
from matplotlib.figure import Figure

from hpctrain.analysis.figures.goodput_plots import MAX_ROWS, plot_goodput, plot_wall_clock
from hpctrain.analysis.frames import Frames, load_frames
from hpctrain.analysis.goodput import ATTEMPT_COLUMNS, PARTS, RUN_COLUMNS, Goodput, end_reasons, goodput
from hpctrain.record.paths import RunPaths
from tests.analysis.figures.test_plots import png
from tests.analysis.make_runs import Attempt, make_run

KILLED = {"state": "failed", "end_reason": "killed"}


def of(frames: Frames) -> Goodput:
    return goodput(frames.runs, frames.steps, frames.attempts)


def change_attempt(run: RunPaths, number: int, **fields: object) -> None:
    path = run.attempt(number)
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


@pytest.fixture(scope="module")
def two_attempts(tmp_path_factory: pytest.TempPathFactory) -> Frames:
    """8 GPUs. First: 10 s set-up, steps 1 to 6 of 1 s, killed 4 s later. Second, 100 s after: 10 s, steps 5 to 8 of 2 s."""
    root = tmp_path_factory.mktemp("runs")
    run = make_run(
        root / "run", attempts=[Attempt([1.0] * 6, end={**KILLED, "ended_at_s": 1020.0}), Attempt([2.0] * 4, 5)]
    )
    later = {"started_at_s": 1120.0, "ended_at_s": 1138.0}
    change_attempt(run, 2, **later)
    lines = [json.loads(line) for line in run.steps.read_text().splitlines()]
    for line in lines[6:]:
        line["time_s"] += 104  # the maker's clock went on from 1,016 s, the last step's end
    run.steps.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return load_frames([root])


def test_two_attempts_by_hand(two_attempts: Frames) -> None:
    result = of(two_attempts)
    first, second = result.attempts.to_dict("records")
    assert {name: first[name] for name in PARTS} == {
        "setup_s": 10.0,
        "curve_s": 4.0,
        "between_s": 0.0,
        "undone_s": 2.0,
        "tail_s": 4.0,
    }
    assert {name: second[name] for name in PARTS} == {
        "setup_s": 10.0,
        "curve_s": 8.0,
        "between_s": 0.0,
        "undone_s": 0.0,
        "tail_s": 0.0,
    }
    assert (first["wall_s"], second["wall_s"]) == (20.0, 18.0)
    assert (first["wait_s"], second["wait_s"]) == (0.0, 100.0)
    assert (first["end_reason"], second["end_reason"]) == ("killed", "completed")
    assert (first["num_steps"], first["num_undone_steps"]) == (6, 2)
    assert first["gpu_hours"] == pytest.approx(20 * 8 / 3600)
    assert first["lost_gpu_hours"] == pytest.approx(16 * 8 / 3600)
    (run,) = result.runs.to_dict("records")
    assert run["goodput_share"] == pytest.approx(12 / 38)
    assert (run["wall_s"], run["wait_s"], run["num_attempts"], run["end_reason"]) == (38.0, 100.0, 2, "completed")
    assert run["lost_gpu_hours"] == pytest.approx(26 * 8 / 3600)
    assert result.messages == ()
    assert list(result.attempts) == ATTEMPT_COLUMNS
    assert list(result.runs) == RUN_COLUMNS


def test_agrees_with_the_row_of_the_run(two_attempts: Frames) -> None:
    """The frame ``runs`` counts the same time on its own way."""
    (ours,) = of(two_attempts).runs.to_dict("records")
    (row,) = two_attempts.runs.to_dict("records")
    assert ours["gpu_hours"] == pytest.approx(row["gpu_hours"])
    assert 1 - ours["goodput_share"] == pytest.approx(row["lost_time_share"])


def test_agrees_with_the_rows_of_the_recorded_runs() -> None:
    """Real runs, one of them requeued and one that diverged."""
    frames = load_frames([Path(__file__).parents[1] / "data" / "runs"])
    result = of(frames)
    rows = frames.runs.set_index("folder").loc[result.runs["folder"]]
    assert len(result.runs) == len(frames.runs) > 0
    assert (1 - result.runs["goodput_share"]).tolist() == pytest.approx(rows["lost_time_share"].tolist())
    assert result.runs["gpu_hours"].tolist() == pytest.approx(rows["gpu_hours"].tolist())
    parts = result.attempts[list(PARTS)].astype(float).sum(axis=1)
    assert parts.tolist() == pytest.approx(result.attempts["wall_s"].tolist(), rel=1e-4)
    assert result.messages == ()


def test_a_damaged_record_leaves_the_run_unsplit_in_both(tmp_path: Path) -> None:
    """The first start's record is half a file: its steps are there, and what it cost is not known."""
    run = make_run(tmp_path / "run", attempts=[Attempt([1.0] * 6, end=KILLED), Attempt([2.0] * 4, 5)])
    run.attempt(1).write_text(run.attempt(1).read_text()[:40])
    frames = load_frames([tmp_path])
    (row,) = frames.runs.to_dict("records")
    assert all(pd.isna(row[name]) for name in ("lost_time_share", "gpu_hours", "wall_tokens_per_s"))
    result = of(frames)
    (ours,) = result.runs.to_dict("records")
    nothing = ["goodput_share", "gpu_hours", "lost_gpu_hours", "wall_s", "num_undone_steps", *PARTS]
    assert all(pd.isna(ours[name]) for name in nothing)
    assert result.messages == (
        "run: no record of attempt 1 that can be read, but steps of it; the time of the whole run is not known",
    )
    assert result.attempts[["attempt", "wall_s"]].to_numpy().tolist() == [[2, 18.0]], "the other attempt keeps its row"
    assert drawn_message(plot_goodput(result, frames.runs)) == "no run with time stamps to show"


def test_a_damaged_record_of_an_attempt_without_a_step_does_so_too(tmp_path: Path) -> None:
    refused = {"state": "failed", "end_reason": "launch_failed"}
    run = make_run(tmp_path / "run", attempts=[Attempt([], end=refused), Attempt([1.0] * 5)])
    run.attempt(1).write_text("{")
    frames = load_frames([tmp_path])
    assert frames.runs["gpu_hours"].isna().all()
    result = of(frames)
    assert result.runs[["goodput_share", "gpu_hours"]].isna().all(axis=None)
    (message,) = result.messages
    assert message.startswith(f"run: {run.attempt(1)}: ")
    assert message.endswith("; the time of the whole run is not known")


def test_a_time_that_is_none_adds_nothing_in_both(tmp_path: Path) -> None:
    """A step of -5 s: neither the row of the run nor the split takes it from the others."""
    run = make_run(tmp_path / "run", attempts=[Attempt([1.0] * 40)])
    run.steps.write_text(run.steps.read_text().replace('"step_time_s": 1.0', '"step_time_s": -5.0', 1))
    frames = load_frames([tmp_path])
    (row,) = frames.runs.to_dict("records")
    (ours,) = of(frames).runs.to_dict("records")
    assert row["lost_time_share"] == pytest.approx(1 - 39 / 50)
    assert ours["goodput_share"] == pytest.approx(39 / 50)


def test_an_attempt_that_ended_before_it_started_is_told(tmp_path: Path) -> None:
    make_run(tmp_path / "run", attempts=[Attempt([], end={"ended_at_s": 900.0})])
    result = of(load_frames([tmp_path]))
    assert result.messages == (
        "run, attempt 1: its time stamps contradict each other: -100 s set-up, until the first step starts, and the attempt"
        " took -100 s; its time is not split",
    )
    assert result.runs["goodput_share"].isna().all()


def test_parts_add_up_to_the_wall_clock(tmp_path: Path) -> None:
    """Times between steps, as for saving, are what is left."""
    run = make_run(tmp_path / "run", attempts=[Attempt([1.0] * 5, end={"ended_at_s": 1030.0})])
    lines = [json.loads(line) for line in run.steps.read_text().splitlines()]
    for line in lines[3:]:
        line["time_s"] += 7  # a checkpoint after step 3
    run.steps.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (row,) = of(load_frames([tmp_path])).attempts.to_dict("records")
    assert {name: row[name] for name in PARTS} == {
        "setup_s": 10.0,
        "curve_s": 5.0,
        "between_s": 7.0,
        "undone_s": 0.0,
        "tail_s": 8.0,
    }
    assert sum(row[name] for name in PARTS) == row["wall_s"] == 30.0


def test_dead_steps_stay_on_the_curve_and_are_told(tmp_path: Path) -> None:
    make_run(tmp_path / "run", attempts=[Attempt([1.0] * 5)], skipped=True)
    (row,) = of(load_frames([tmp_path])).runs.to_dict("records")
    assert (row["curve_s"], row["dead_s"], row["goodput_share"]) == (5.0, 5.0, pytest.approx(5 / 15))


def test_an_attempt_without_a_step_is_all_set_up(tmp_path: Path) -> None:
    make_run(tmp_path / "run", attempts=[Attempt([], end={"state": "failed", "end_reason": "launch_failed"})])
    (row,) = of(load_frames([tmp_path])).runs.to_dict("records")
    assert (row["setup_s"], row["wall_s"], row["goodput_share"]) == (10.0, 10.0, 0.0)


def test_a_step_written_twice_counts_once(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", attempts=[Attempt([1.0] * 3)])
    text = run.steps.read_text()
    run.steps.write_text(text + text.splitlines(keepends=True)[-1])
    (row,) = of(load_frames([tmp_path])).attempts.to_dict("records")
    assert (row["curve_s"], row["undone_s"], row["num_steps"]) == (3.0, 0.0, 3)


def test_an_attempt_without_an_end_counts_to_its_last_step(tmp_path: Path) -> None:
    end = {"state": "running", "ended_at_s": None, "end_reason": None}
    make_run(tmp_path / "run", attempts=[Attempt([1.0] * 3, end=end)])
    result = of(load_frames([tmp_path]))
    (row,) = result.attempts.to_dict("records")
    assert (row["wall_s"], row["tail_s"], row["end_reason"]) == (13.0, 0.0, "running")
    assert result.messages == ("run, attempt 1: no end recorded, so it is counted up to its last step",)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        pytest.param({"started_at_s": 1012.0}, "-2 s set-up, until the first step starts", id="starts after its steps"),
        pytest.param({"ended_at_s": 1011.0}, "-4 s after the last recorded step", id="ends before its steps"),
    ],
)
def test_clocks_that_contradict_each_other_are_told(tmp_path: Path, fields: dict[str, float], text: str) -> None:
    run = make_run(tmp_path / "run", attempts=[Attempt([1.0] * 5)])
    change_attempt(run, 1, **fields)
    result = of(load_frames([tmp_path]))
    wall_s = 3 if "started_at_s" in fields else 11
    assert result.messages == (
        f"run, attempt 1: its time stamps contradict each other: {text}, and the attempt took {wall_s} s;"
        " its time is not split",
    )
    assert result.attempts["curve_s"].isna().all()
    assert result.runs["goodput_share"].isna().all()
    assert drawn_message(plot_goodput(result, load_frames([tmp_path]).runs)) == "no run with time stamps to show"


def test_missing_lines_leave_the_cost_and_no_split(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", attempts=[Attempt([1.0] * 5)])
    lines = run.steps.read_text().splitlines(keepends=True)
    run.steps.write_text("".join([*lines[:2], *lines[3:]]))
    result = of(load_frames([tmp_path]))
    assert result.messages == (
        "run, attempt 1: steps of its run have no line, which would count as lost time; its time is not split",
    )
    (row,) = result.runs.to_dict("records")
    assert (row["wall_s"], row["gpu_hours"]) == (15, pytest.approx(15 * 8 / 3600))
    assert pd.isna(row["goodput_share"])
    assert pd.isna(row["lost_gpu_hours"])


def test_an_attempt_of_more_than_a_year_is_told(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", attempts=[Attempt([1.0] * 5)])
    change_attempt(run, 1, ended_at_s=4e7)
    result = of(load_frames([tmp_path]))
    assert result.messages == (
        "run, attempt 1: it took 4e+07 s, more than a year: a clock was wrong; its time is not split",
    )
    assert result.attempts["wall_s"].isna().all()
    assert result.runs["gpu_hours"].isna().all()


def test_steps_longer_than_the_time_between_them_are_told(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", attempts=[Attempt([1.0] * 5, end={"ended_at_s": 1100.0})])
    run.steps.write_text(run.steps.read_text().replace('"step_time_s": 1.0', '"step_time_s": 9.0'))
    (message,) = of(load_frames([tmp_path])).messages
    assert "-32 s between steps" in message


def test_steps_without_time_stamps_are_told(two_attempts: Frames) -> None:
    steps = two_attempts.steps.assign(time_s=np.nan)
    result = goodput(two_attempts.runs, steps, two_attempts.attempts)
    assert result.messages[0] == "run, attempt 1: its steps carry no time stamps; its time is not split"


def test_a_start_that_is_not_known_is_told(two_attempts: Frames) -> None:
    attempts = two_attempts.attempts.assign(started_at_s=pd.array([pd.NA, 1120.0], dtype="Float64"))
    result = goodput(two_attempts.runs, two_attempts.steps, attempts)
    assert result.messages == ("run, attempt 1: no start time recorded, so its time is not counted",)
    assert result.attempts["attempt"].tolist() == [2]


def test_an_end_that_is_not_recorded_is_told(two_attempts: Frames) -> None:
    nothing = pd.array([pd.NA, pd.NA], dtype="string")
    attempts = two_attempts.attempts.assign(end_reason=nothing, state=nothing)
    result = goodput(two_attempts.runs, two_attempts.steps, attempts)
    assert end_reasons(result.attempts)["end_reason"].tolist() == ["not recorded"]
    figure = plot_wall_clock(result, two_attempts.runs)
    assert figure.axes[0].get_yticklabels()[0].get_text() == "run, attempt 1: not recorded"


def test_runs_without_gpus_have_no_cost(two_attempts: Frames) -> None:
    runs = two_attempts.runs.assign(gpus=pd.array([pd.NA], dtype="Int64"))
    result = goodput(runs, two_attempts.steps, two_attempts.attempts)
    assert result.runs["gpu_hours"].isna().all()
    assert result.runs["goodput_share"].tolist() == [pytest.approx(12 / 38)]


def test_end_reasons(tmp_path: Path) -> None:
    make_run(tmp_path / "a", attempts=[Attempt([1.0] * 6, end=KILLED), Attempt([1.0] * 6, end=KILLED), Attempt([1.0])])
    make_run(tmp_path / "b", attempts=[Attempt([1.0] * 2)])
    make_run(tmp_path / "waiting", attempts=[])
    result = of(load_frames([tmp_path]))
    table = end_reasons(result.attempts)
    assert table["end_reason"].tolist() == ["completed", "killed"]
    assert table[["attempts", "runs"]].to_numpy().tolist() == [[2, 2], [2, 1]]
    assert table["wall_s"].tolist() == [11.0 + 12.0, 32.0]
    assert table["gpu_hours"].sum() == pytest.approx(result.runs["gpu_hours"].sum())
    assert result.messages == ("no attempt with a start time, so nothing is counted: waiting",)


def drawn_message(figure: Figure) -> str:
    return "\n".join(text.get_text() for axis in figure.axes for text in axis.texts)


def bars(figure: Figure) -> dict[str, list[float]]:
    """Widths of the bars by part, a number a row."""
    (axis,) = figure.axes
    containers = [container for container in axis.containers if isinstance(container, BarContainer)]
    return {str(container.get_label()): [bar.get_width() for bar in container.patches] for container in containers}


def test_wall_clock_figure_shows_the_frame(two_attempts: Frames) -> None:
    result = of(two_attempts)
    figure = plot_wall_clock(result, two_attempts.runs)
    assert len(png(figure)) > 3_000
    assert bars(figure) == {
        PARTS["setup_s"]: [10, 10],
        PARTS["curve_s"]: [4, 8],
        PARTS["undone_s"]: [2, 0],
        PARTS["tail_s"]: [4, 0],
    }
    (axis,) = figure.axes
    assert axis.get_xlabel() == "time since the attempt's start (s)"
    labels = [label.get_text() for label in axis.get_yticklabels()]
    assert labels == ["run, attempt 1: killed", "run, attempt 2: completed"]
    assert figure.get_suptitle() == "Wall-clock time by attempt\ntoy on test_gpu, 1 run; no FLOP count enters"


def test_goodput_figure_shows_the_frame(two_attempts: Frames) -> None:
    figure = plot_goodput(of(two_attempts), two_attempts.runs)
    assert len(png(figure)) > 3_000
    seconds = {"setup_s": 20, "curve_s": 12, "undone_s": 2, "tail_s": 4}
    shares = {PARTS[name]: [pytest.approx(100 * part / 38)] for name, part in seconds.items()}
    assert bars(figure) == shares
    (axis,) = figure.axes
    assert axis.get_xlabel() == "share of the wall-clock time of all attempts (%)"
    assert [label.get_text() for label in axis.get_yticklabels()] == ["run (2 attempts)"]
    assert drawn_message(figure) == "31.6%"


def test_long_times_are_shown_in_a_fitting_unit(tmp_path: Path) -> None:
    make_run(tmp_path / "run", attempts=[Attempt([3600.0] * 3)])
    frames = load_frames([tmp_path])
    figure = plot_wall_clock(of(frames), frames.runs)
    assert figure.axes[0].get_xlabel() == "time since the attempt's start (h)"
    assert bars(figure)[PARTS["curve_s"]] == [pytest.approx(3)]


def test_many_runs_show_those_that_lost_most(two_attempts: Frames) -> None:
    """Copies that differ in what they lost: the first two lost least and have the highest share."""
    result = of(two_attempts)
    copies = range(MAX_ROWS + 2)
    attempts = pd.concat([result.attempts.iloc[:1].assign(wall_s=20.0 + n) for n in copies], ignore_index=True)
    runs = pd.concat([result.runs.assign(goodput_share=0.9 - n / 100) for n in copies], ignore_index=True)
    many = Goodput(attempts, runs, ())
    for figure, left_out in (
        (plot_wall_clock(many, two_attempts.runs), f"the {MAX_ROWS} of {MAX_ROWS + 2} attempts that lost most"),
        (plot_goodput(many, two_attempts.runs), f"the {MAX_ROWS} of {MAX_ROWS + 2} with the least goodput"),
    ):
        assert left_out in figure.get_suptitle().replace("\n", " ")
        assert len(figure.axes[0].get_yticks()) == MAX_ROWS
    shown = [text.get_text() for text in plot_goodput(many, two_attempts.runs).axes[0].texts]
    assert (shown[0], shown[-1]) == ("88.0%", "49.0%")


def test_nothing_to_show_is_said(tmp_path: Path) -> None:
    make_run(tmp_path / "waiting", attempts=[])
    for frames in (load_frames([]), load_frames([tmp_path])):
        result = of(frames)
        assert drawn_message(plot_wall_clock(result, frames.runs)) == "no attempt with time stamps to show"
        assert drawn_message(plot_goodput(result, frames.runs)) == "no run with time stamps to show"
        assert end_reasons(result.attempts).empty
