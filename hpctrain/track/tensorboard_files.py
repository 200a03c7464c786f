"""TensorBoard: event files in the run folder, written with tensorboard's own writer, without torch."""

from __future__ import annotations

from collections.abc import Sequence

import yaml
from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.plugins.text.summary import text_pb
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from hpctrain.track.points import Point
from hpctrain.track.tracker import Ending, RunFacts


class TensorboardFiles:
    """One file an attempt; TensorBoard shows them as one run."""

    def __init__(self, facts: RunFacts) -> None:
        self._writer = EventFileWriter(str(facts.paths.tensorboard))
        # From this mark on TensorBoard leaves out what earlier files have of this step and later ones.
        start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        self._add(event_pb2.Event(step=facts.first_step, session_log=start))
        text = yaml.safe_dump(facts.config, sort_keys=False, allow_unicode=True)
        markdown = "".join(f"    {line}\n" for line in text.splitlines())
        self._add(event_pb2.Event(step=facts.first_step, summary=text_pb("config", markdown)))

    def write(self, points: Sequence[Point]) -> None:
        for point in points:
            values = [summary_pb2.Summary.Value(tag=name, simple_value=value) for name, value in point.values.items()]
            summary = summary_pb2.Summary(value=values)
            self._add(event_pb2.Event(wall_time=point.time_s, step=point.step, summary=summary))
        self._writer.flush()

    def close(self, ending: Ending) -> None:
        del ending  # an event file has no word for it
        self._writer.close()

    def _add(self, event: event_pb2.Event) -> None:
        self._writer.add_event(event)
