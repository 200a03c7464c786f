"""Names of hpctrain's own environment variables. Light, since the smallest of its processes import it."""

ATTEMPT_VARIABLE = "HPCTRAIN_ATTEMPT"
"""Which start of the run this is; set by the batch script, the controller of a local run, or ``job.yml``."""
FIRST_ATTEMPT_VARIABLE = "HPCTRAIN_FIRST_ATTEMPT"
"""In the script of a resumed run: number of the first start that its submission makes."""
BATCH_SIGNAL_VARIABLE = "HPCTRAIN_BATCH_SIGNAL"
"""Set by the batch script when it got SIGTERM."""
DATA_PATH_VARIABLE = "HPCTRAIN_DATA_PATH"
"""Where this process sees the text of ``data.path``, if not there; set by ``launch.azureml_entry``."""
RUN_VARIABLE = "HPCTRAIN_RUN"
"""In the environment of every process below a rank: which run it belongs to."""
RANK_PROCESS_VARIABLE = "HPCTRAIN_RANK_PROCESS"
"""In the same environments: process id and start of the rank."""
GUARD_MODULE = "hpctrain.worker.rank_guard"
"""By this word of its command a rank's guard is known among the processes of a run."""

OWN_VARIABLES = (
    ATTEMPT_VARIABLE,
    FIRST_ATTEMPT_VARIABLE,
    BATCH_SIGNAL_VARIABLE,
    DATA_PATH_VARIABLE,
    RUN_VARIABLE,
    RANK_PROCESS_VARIABLE,
)
"""All of them: what a submission from inside a job must not take along."""
