"""The report as one HTML page that needs nothing else: no network, no second file, and no JavaScript to be read."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import jinja2
import pandas as pd

from hpctrain.analysis.comparison import Comparison
from hpctrain.analysis.frames import Frames
from hpctrain.analysis.goodput import goodput
from hpctrain.analysis.report.comparison_text import verdict_text
from hpctrain.analysis.report.environment import Environment, environment_keys
from hpctrain.analysis.report.html_cards import Card, cards, counted_states
from hpctrain.analysis.report.html_figures import (
    MAX_TELEMETRY_RUNS,
    Picture,
    RunPicture,
    agreement_pictures,
    goodput_picture,
    run_pictures,
    scaling_picture,
    telemetry_pictures,
    throughput_picture,
)
from hpctrain.analysis.report.html_tables import (
    Header,
    Table,
    attempts_table,
    comparison_table,
    environment_table,
    predicted_runs,
    prediction_table,
    problems_of,
    runs_table,
    scaling_table,
)
from hpctrain.analysis.report.published_match import matches, matches_table, published_points, published_sizes
from hpctrain.analysis.scaling import KIND_KEYS, scaling_efficiency
from hpctrain.text_table import MISSING

MAX_PICTURES = 24
"""Runs with a picture of their own: 60 kB each, so a report of 1,000 runs stays a file that can be mailed."""

_TEMPLATES = Path(__file__).resolve().parent / "templates"
_LONG_TEXT = 48
_OPEN_CHARACTERS = 800
"""Of a list of messages that is shown unfolded: about seven lines of the page."""
_UNSHOWABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
"""Control signs and halves of signs, which HTML does not allow and names of files may hold."""


@dataclass(frozen=True)
class Part:
    """A section of the page."""

    anchor: str
    title: str
    texts: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    pictures: tuple[Picture, ...] = ()
    run_pictures: tuple[RunPicture, ...] = ()
    lists: tuple[tuple[str, tuple[str, ...]], ...] = ()
    verdict: str = ""
    tone: str = ""


@dataclass(frozen=True)
class Page:
    """Everything that the template draws."""

    title: str
    subtitle: str
    cards: tuple[Card, ...]
    parts: tuple[Part, ...]
    footer: str


@dataclass(frozen=True)
class PublishedResults:
    """What the runs stand beside: the rows of ``load_published``, or why there are none."""

    rows: pd.DataFrame | None = None
    problem: str = ""


def render_html(
    frames: Frames,
    *,
    environments: Sequence[Environment] = (),
    published: PublishedResults = PublishedResults(),
    comparison: Comparison | None = None,
    written_at: str = "",
    max_pictures: int = MAX_PICTURES,
) -> str:
    """The page as text.

    Args:
        frames: the runs.
        environments: of the same runs, those that have one.
        published: what others have reached.
        comparison: with a baseline; None: not asked for.
        written_at: date and program for the page's foot.
        max_pictures: how many runs get a picture of their own; 0: the page has no picture at all.
    """
    runs, draw = frames.runs, max_pictures > 0
    pictures = run_pictures(frames, max_pictures)
    parts = [
        _runs_part(frames, pictures),
        *([_comparison_part(comparison)] if comparison is not None else []),
        _scaling_part(runs, draw),
        _throughput_part(runs, published, draw),
        *([_pictures_part(runs, pictures)] if pictures else []),
        *([_telemetry_part(frames)] if draw and len(frames.samples) else []),
        _plan_part(frames, draw),
        _environment_part(environments, len(runs)),
        *([_attempts_part(frames, draw)] if len(frames.attempts) else []),
        _problems_part(frames, environments),
    ]
    names = runs["run"].tolist()
    title = f"Training run {names[0]}" if len(names) == 1 else f"{len(names)} training runs"
    page = Page(title, counted_states(runs), tuple(cards(runs)), tuple(parts), written_at)
    return _render(page)


def _render(page: Page) -> str:
    style, script = ((_TEMPLATES / name).read_text(encoding="utf-8") for name in ("report.css", "report.js"))
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    template = environment.get_template("report.html.j2")
    policy = _policy(style, script)
    text = template.render(
        page=page, style=style, script=script, policy=policy, classes=_classes, is_open=_is_open, missing=MISSING
    )
    return _UNSHOWABLE.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def _policy(style: str, script: str) -> str:
    """Nothing may be loaded or sent, and only this one script and style sheet, by their digests, are obeyed."""
    return (
        f"default-src 'none'; img-src data:; style-src '{_digest(style)}'; script-src '{_digest(script)}';"
        " base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _classes(head: Header, text: str) -> str:
    words = {
        "number": head.is_number,
        "extra": head.is_extra,
        "screen": head.screen_only,
        "long": not head.is_number and len(text) > _LONG_TEXT,
    }
    return " ".join(word for word, applies in words.items() if applies)


def _is_open(texts: Sequence[str]) -> bool:
    """Whether a list of messages is shown unfolded."""
    return sum(map(len, texts)) <= _OPEN_CHARACTERS


def _runs_part(frames: Frames, pictures: Sequence[RunPicture]) -> Part:
    places = {folder: f"run-{place}" for place, folder in enumerate(frames.runs["folder"].tolist(), start=1)}
    drawn = {picture.anchor for picture in pictures}
    anchors = {folder: anchor for folder, anchor in places.items() if anchor in drawn}
    invalid = frames.runs.loc[~frames.runs["valid"].astype(bool), ["run", "reason"]]
    reasons = tuple(f"{run}: {reason}" for run, reason in invalid.itertuples(index=False))
    texts = (
        "Speeds are medians of the steady steps: after the warm-up of each attempt, without undone and dead ones."
        " TFLOP/s by three FLOP counts, each named; MFU and HFU against the dense peak of the data type.",
        "State on green: completed and valid for comparison; on orange: not valid, for the reason below; plain: valid, but"
        " not known to have completed.",
    )
    return Part(
        "runs", "Runs", texts, (runs_table(frames.runs, anchors),), lists=(("Not valid for comparison", reasons),)
    )


def _comparison_part(comparison: Comparison) -> Part:
    lists = (("Stopped working", comparison.broken), ("Not compared", comparison.not_compared))
    tables = (comparison_table(comparison),) if comparison.pairs else ()
    tone = "bad" if comparison.exit_code else "good"
    return Part("against", "Against the base", (), tables, lists=lists, verdict=verdict_text(comparison), tone=tone)


def _scaling_part(runs: pd.DataFrame, draw: bool) -> Part:
    scalings = [scaling_efficiency(runs, kind) for kind in KIND_KEYS]
    shown = [scaling for scaling in scalings if scaling.points["efficiency"].notna().any()]
    pictures = tuple(picture for scaling in shown if draw and (picture := scaling_picture(scaling)))
    lists = [(f"{scaling.kind.capitalize()} scaling: messages", scaling.messages) for scaling in scalings]
    lists.append(("Contradictions between printed TFLOP/s and tokens/s", scalings[0].contradictions))
    texts = ["Efficiency is tokens/s a GPU over tokens/s a GPU of the base, never a ratio of TFLOP/s."]
    if not shown:
        texts.append("No efficiency: no two valid runs of equal configuration differ in their number of GPUs.")
    return Part("scaling", "Scaling", tuple(texts), tuple(map(scaling_table, shown)), pictures, lists=tuple(lists))


def _throughput_part(runs: pd.DataFrame, published: PublishedResults, draw: bool) -> Part:
    texts, tables, beside = [], [], None
    if published.rows is None:
        texts.append(f"Published results were not read: {published.problem or 'none given'}.")
    else:
        points = published_points(published.rows)
        pairs = matches(runs, points)
        if pairs:
            tables.append(matches_table(pairs))
            texts.append("Published results of the same model size (within 10 %), on the most similar number of GPUs.")
            beside = pd.DataFrame([point for _, point in pairs]).drop_duplicates(ignore_index=True)
            beside = beside.astype(points.dtypes)
        else:
            texts.append(
                f"No valid run has the size of a published result within 10 %; those are {published_sizes(points)}."
            )
    picture = throughput_picture(runs, beside) if draw else None
    if draw and picture is None:
        texts.append("No picture: no valid run has a rate in TFLOP/s.")
    pictures = (picture,) if picture else ()
    return Part("throughput", "Throughput and published results", tuple(texts), tuple(tables), pictures)


def _pictures_part(runs: pd.DataFrame, pictures: Sequence[RunPicture]) -> Part:
    with_steps = int((runs["num_recorded_steps"] > 0).sum())
    texts: tuple[str, ...] = ()
    if len(pictures) < with_steps:
        texts = (
            f"{len(pictures)} of {with_steps} runs with steps, valid ones first; a report of fewer folders shows others.",
        )
    return Part("pictures", "Loss and step time", texts, run_pictures=tuple(pictures))


def _plan_part(frames: Frames, draw: bool) -> Part:
    runs = frames.runs
    predicted = predicted_runs(runs)
    texts = []
    for column, what in (("prediction_error", "step time"), ("memory_error", "memory of one rank")):
        signed = predicted.loc[predicted["valid"].astype(bool), column].dropna()
        known = signed.abs()
        if len(known):
            texts.append(
                f"Predicted {what}: absolute error {100 * float(known.median()):.1f} % in the median,"
                f" {100 * float(known.max()):.1f} % at most; signed error {100 * float(signed.median()):+.1f} % in the median;"
                f" over {len(known)} valid run(s)."
            )
        else:
            texts.append(f"Predicted {what}: no valid run with both a prediction and a measurement.")
    inside = predicted.loc[predicted["valid"].astype(bool), "in_predicted_range"].dropna()
    if len(inside):
        texts.append(f"Measured step time in the predicted range: {int(inside.sum())} of {len(inside)} valid run(s).")
    peaks = frames.samples.groupby("folder")["ranks_rss_bytes"].max().dropna()
    host_peaks = {str(folder): int(peak) for folder, peak in peaks.items()}
    tables = (prediction_table(runs, host_peaks),) if len(predicted) else ()
    gaps = runs.loc[runs["prediction_gap"].notna(), ["run", "prediction_gap"]]
    lists = (("No predicted step time", tuple(f"{run}: {gap}" for run, gap in gaps.itertuples(index=False))),)
    pictures = tuple(agreement_pictures(runs)) if draw else ()
    return Part("plan", "Plan against measurement", tuple(texts), tables, pictures, lists=lists)


def _telemetry_part(frames: Frames) -> Part:
    texts = ["By the driver and the operating system: what everybody on the node uses, not the run alone."]
    num_runs = frames.samples["folder"].nunique()
    if num_runs > MAX_TELEMETRY_RUNS:
        texts.append(
            f"The first {MAX_TELEMETRY_RUNS} of {num_runs} runs with telemetry; a report of fewer folders shows others."
        )
    return Part("telemetry", "Telemetry", tuple(texts), pictures=tuple(telemetry_pictures(frames)))


def _environment_part(environments: Sequence[Environment], num_runs: int) -> Part:
    known = [environment for environment in environments if environment.values]
    if not known:
        return Part("environment", "Environment", ("No run here recorded its environment.",))
    keys = environment_keys(known)
    differing = [key for key in keys if key.differs]
    texts = [f"{len(known)} of {num_runs} run(s) recorded their environment."]
    if len(known) > 1:
        texts.append(f"{len(differing)} of {len(keys)} keys differ between runs." if differing else "No key differs.")
    tables = []
    if differing:
        tables.append(environment_table(keys, len(known), differing=True))
    if len(differing) < len(keys):
        tables.append(environment_table(keys, len(known), differing=False))
    return Part("environment", "Environment", tuple(texts), tuple(tables))


def _attempts_part(frames: Frames, draw: bool) -> Part:
    result = goodput(frames.runs, frames.steps, frames.attempts)
    picture = goodput_picture(result, frames.runs) if draw else None
    return Part(
        "attempts",
        "Attempts and goodput",
        ("Every start of every run, and what its wall-clock time was spent on.",),
        (attempts_table(frames.attempts),),
        (picture,) if picture else (),
        lists=(("How it was counted", result.messages),),
    )


def _problems_part(frames: Frames, environments: Sequence[Environment]) -> Part:
    problems = problems_of(frames.problems, frames.runs, environments)
    texts = () if problems else ("Every file was read as it should be.",)
    return Part("problems", "Files with problems", texts, lists=(("Problems", tuple(problems)),))
