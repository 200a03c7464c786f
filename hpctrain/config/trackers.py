"""The keys of ``track``: where the step records of a run go beside its run folder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from hpctrain.config.limits import Limits

_Text = Annotated[str, Limits(min_length=1)]


@dataclass(frozen=True)
class WandbConfig:
    """Weights & Biases; the key comes from ``env_from_shell=[WANDB_API_KEY]``, or from the nodes' ~/.netrc."""

    project: _Text
    mode: Literal["online", "offline"] = "online"
    """offline: into the run folder, for ``wandb sync`` from a machine that has a network."""
    entity: _Text | None = None
    """Team or user; None: the key's default."""


@dataclass(frozen=True)
class MlflowConfig:
    """MLflow's tracking; a password comes from ``env_from_shell=[MLFLOW_TRACKING_PASSWORD]``."""

    tracking_uri: _Text
    """http(s)://SERVER, databricks, or file:///FOLDER on a file system that the nodes share."""
    experiment: _Text = "hpctrain"


@dataclass(frozen=True)
class TrackConfig:
    """Trackers that get the step records, beside ``steps.jsonl``; all off by default."""

    tensorboard: bool = False
    """Event files in ``tensorboard/`` of the run folder."""
    wandb: WandbConfig | None = None
    mlflow: MlflowConfig | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Those that are on."""
        on = {"tensorboard": self.tensorboard, "wandb": self.wandb is not None, "mlflow": self.mlflow is not None}
        return tuple(name for name, is_on in on.items() if is_on)
