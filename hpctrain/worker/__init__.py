"""The ranks: the only room, with ``rehearse``, that imports torch and DeepSpeed."""

import sys

# Where MLflow is installed, `import deepspeed` imports it for its autotuner: five seconds of processor time at the start of every
# rank, and MLflow's own telemetry, for nothing. Trackers live in a process of their own (hpctrain.track).
sys.modules.setdefault("mlflow", None)  # type: ignore[arg-type]
