"""Rules of ``track`` and of validation: what they ask for, and what of it can be told before a rank starts."""

from __future__ import annotations

import re

from hpctrain.config.schema import Config
from hpctrain.errors import Problem
from hpctrain.plan.job.variables import stated_variables
from hpctrain.secret_text import redact_text

_MLFLOW_URI = re.compile(r"https?://[^/\s]+.*|databricks(-uc)?(://\S+)?|file:///\S.*")
_FORWARD_SHARE = 1 / 3
"""Of a step's FLOPs: the backward pass takes twice those of the forward pass. Source: arXiv 2001.08361, section 2.1."""
_LARGE_SHARE = 0.05


def track_problems(config: Config) -> list[Problem]:
    """What trackers cannot do, and validation without held-out data."""
    problems = [*_validation_problems(config)]
    mlflow = config.track.mlflow
    if mlflow is not None:
        key, uri = "track.mlflow.tracking_uri", mlflow.tracking_uri
        if redact_text(uri) != uri:
            rule = "holds a secret, which no file of a run keeps"
            fix = "take it out, and set env_from_shell=[MLFLOW_TRACKING_USERNAME,MLFLOW_TRACKING_PASSWORD]"
            problems.append(Problem(key, uri, rule, fix))
        elif not _MLFLOW_URI.fullmatch(uri):
            rule = "is no address that the ranks' MLflow client takes (a database stands behind MLflow's server)"
            problems.append(
                Problem(key, uri, rule, "known forms: http://SERVER:PORT, https://..., databricks, file:///FOLDER")
            )
    return problems


def _validation_problems(config: Config) -> list[Problem]:
    interval, data = config.training.validation_interval, config.data
    is_checked = config.training.payload == "train"  # a launch check reads no data
    if interval is None or not is_checked or data.validation_path is not None or data.validation_fraction > 0:
        return []
    rule = f"needs held-out data, and data={data.name} keeps none"
    fix = "set data.validation_fraction=0.01, or data.validation_path to what is never trained on"
    return [Problem("training.validation_interval", str(interval), rule, fix)]


def track_warnings(config: Config) -> list[str]:
    """What is allowed and often not meant."""
    warnings, training = [], config.training
    wandb = config.track.wandb
    known = {*stated_variables(config), *config.env_from_shell}
    if wandb is not None and wandb.mode == "online" and "WANDB_API_KEY" not in known and not config.cluster.inherit_env:
        warnings.append(
            "track.wandb: without env_from_shell=[WANDB_API_KEY] the ranks have the key of the nodes' ~/.netrc only;"
            " track.wandb.mode=offline needs none"
        )
    if training.validation_interval is not None:
        share = training.validation_batches * _FORWARD_SHARE / training.validation_interval
        if share > _LARGE_SHARE:
            warnings.append(
                f"training.validation_batches={training.validation_batches} every {training.validation_interval} steps add about"
                f" {share:.0%} to the time of the steps"
            )
    return warnings
