"""What trackers have, read back by their own libraries, in processes of their own: they change the one that imports them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

_TENSORBOARD = """
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
found = EventAccumulator(sys.argv[1])
found.Reload()
scalars = {tag: [[e.step, e.value, e.wall_time] for e in found.Scalars(tag)] for tag in found.Tags()["scalars"]}
text = found.Tensors("config")[-1].tensor_proto.string_val[0].decode()
print(json.dumps({"scalars": scalars, "config": text}))
"""
# LevelDB's log format behind seven bytes of wandb's own: blocks of 32 KiB, in them parts of records with seven bytes before each,
# checksum, length and kind (whole, first, middle, last).
_WANDB = """
import json, struct, sys
from pathlib import Path
from wandb.proto.wandb_internal_pb2 import Record
BLOCK, HEAD = 32768, 7
def messages(content):
    place, parts = HEAD, b""
    while place + HEAD <= len(content):
        if BLOCK - place % BLOCK < HEAD:
            place += BLOCK - place % BLOCK
            continue
        _, length, kind = struct.unpack("<IHB", content[place : place + HEAD])
        parts += content[place + HEAD : place + HEAD + length]
        place += HEAD + length
        if kind in (1, 4):
            yield parts
            parts = b""
found = []
for path in sorted(Path(sys.argv[1]).glob("wandb/offline-run-*/*.wandb")):
    run = {"history": [], "id": "", "config": {}, "exit_code": None}
    for message in messages(path.read_bytes()):
        record = Record()
        record.ParseFromString(message)
        kind = record.WhichOneof("record_type")
        if kind == "run":
            run["id"], run["name"], run["project"] = record.run.run_id, record.run.display_name, record.run.project
            run["config"] |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
        elif kind == "history":
            items = record.history.item
            run["history"].append({".".join(item.nested_key) or item.key: json.loads(item.value_json) for item in items})
        elif kind == "exit":
            run["exit_code"] = record.exit.exit_code
    found.append(run)
print(json.dumps(found))
"""
_MLFLOW = """
import json, os, sys
os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
from mlflow.tracking import MlflowClient
client = MlflowClient(tracking_uri=sys.argv[1])
experiment = client.get_experiment_by_name(sys.argv[2])
found = []
for run in client.search_runs([experiment.experiment_id]):
    history = {
        name: [[m.step, m.value, m.timestamp] for m in client.get_metric_history(run.info.run_id, name)]
        for name in run.data.metrics
    }
    found.append(
        {"id": run.info.run_id, "name": run.info.run_name, "status": run.info.status, "tags": run.data.tags,
         "params": run.data.params, "history": history}
    )
print(json.dumps(found))
"""


def read_tensorboard(folder: Path) -> Any:
    """``scalars``: by name step, value, Unix time; ``config``: its text."""
    return _answer(_TENSORBOARD, str(folder))


def read_wandb(folder: Path) -> Any:
    """The offline runs below ``wandb/`` of a run folder, oldest first."""
    return _answer(_WANDB, str(folder))


def read_mlflow(uri: str, experiment: str) -> Any:
    """The runs of an experiment."""
    return _answer(_MLFLOW, uri, experiment)


def _answer(code: str, *words: str) -> Any:
    command = [sys.executable, "-W", "ignore", "-c", code, *words]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    return json.loads(answer.stdout.splitlines()[-1])
