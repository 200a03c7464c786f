"""The typed configuration: one frozen dataclass a group, checked strictly (no silent conversion).

The dataclasses state types and ranges of single values; rules that join several values live in ``hpctrain.plan``.
Units are in the names (``_gib``, ``_gb_per_s``, ``_tflops``); ``None`` means «derive it».
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from hpctrain.config import ranges
from hpctrain.config.aio import AioConfig
from hpctrain.config.calibration import Calibration
from hpctrain.config.limits import Limits
from hpctrain.config.trackers import TrackConfig

Count = Annotated[int, Limits(gt=0, lt=2**41)]
NonNegativeInt = Annotated[int, Limits(ge=0)]
Positive = Annotated[float, Limits(gt=0)]
NonNegative = Annotated[float, Limits(ge=0)]
Fraction = Annotated[float, Limits(ge=0, lt=1)]
Text = Annotated[str, Limits(min_length=1)]

Architecture = Literal["gpt", "llama"]
Precision = Literal["fp32", "bf16", "fp16"]
DeviceKind = Literal["cuda", "cpu"]
ActivationCheckpointing = Literal["none", "selective", "full"]


@dataclass(frozen=True)
class ModelConfig:
    """A decoder-only transformer. GPT: learned positions, LayerNorm, GELU, biases. Llama: rotary, RMSNorm, SwiGLU, GQA."""

    name: Text
    architecture: Architecture
    num_layers: ranges.Layers
    hidden_size: ranges.Hidden
    num_heads: ranges.Heads
    vocab_size: ranges.Vocabulary
    max_seq_len: ranges.SequenceLength
    num_kv_heads: ranges.Heads | None = None
    """Key and value heads; None: as many as ``num_heads``."""
    head_dim: ranges.HeadDim | None = None
    """Width of one head; None: ``hidden_size / num_heads``."""
    ffn_hidden_size: ranges.FeedForward | None = None
    """Width of the feed-forward layer; None: ``4 * hidden_size``."""
    tie_embeddings: bool = True
    norm_eps: ranges.NormEps = 1e-5
    rope_theta: ranges.RopeTheta = 10000.0
    init_std: ranges.InitStd = 0.006
    source: str = ""


@dataclass(frozen=True)
class ParallelismConfig:
    """How parameters, gradients and optimizer state are spread; DeepSpeed's ZeRO keys, sizes in elements."""

    name: Text
    zero_stage: Literal[0, 1, 2, 3]
    """0: plain data parallelism, all of it on every rank."""
    offload_optimizer: Literal["none", "cpu", "nvme"] = "none"
    offload_param: Literal["none", "cpu", "nvme"] = "none"
    offload_ratio: Annotated[float, Limits(gt=0, le=1)] = 1.0
    """Share of the optimizer's sub-groups that offload_optimizer moves off the GPU; the rest stays on it. Below 1 only in
    stage 3."""
    fit_offload_ratio: bool = False
    """Where offload_ratio is not stated, take the smallest one with which a tenth of the GPU stays free (ZeRO-Cache)."""
    nvme_ratio: Annotated[float, Limits(gt=0, le=1)] = 1.0
    """Share of what leaves the GPU that offload_optimizer=nvme moves to NVMe; the rest stays in host memory."""
    nvme_path: Text | None = None
    """Folder on each node's own NVMe, below which a job makes its own; None: the hardware's ``nvme_path``."""
    pipeline_swaps: bool = True
    """offload_optimizer=nvme: read the next sub-group and write the last one while one is stepped."""
    aio: AioConfig = field(default_factory=AioConfig)
    tensor_parallel_size: Count = 1
    """Ranks that split each matrix between them (Megatron)."""
    pipeline_parallel_size: Count = 1
    """Stages that the blocks are cut into; with ZeRO stage 1."""
    sequence_parallel_size: Count = 1
    """Ranks that split each sequence between them, and in attention the heads (DeepSpeed-Ulysses)."""
    hpz_partition_size: Count = 1
    """Ranks, those of a node, that keep a second partition of the parameters between them (ZeRO++ hpZ); 1: none."""
    quantized_weights: bool = False
    """Gather stage-3 parameters as int8 (ZeRO++ qwZ); CUDA only."""
    quantized_gradients: bool = False
    """Reduce stage-3 gradients by quantized all-to-alls (ZeRO++ qgZ); CUDA only."""
    reduce_bucket_size: Count | None = None
    """None: DeepSpeed's 500,000,000, or the model's parameters where they are fewer (stage 3 allocates it whole)."""
    allgather_bucket_size: Count = 500_000_000
    prefetch_bucket_size: NonNegativeInt = 50_000_000
    param_persistence_threshold: NonNegativeInt = 100_000
    max_live_parameters: Count = 1_000_000_000
    max_reuse_distance: Count = 1_000_000_000
    sub_group_size: Count | None = None
    """Elements of a rank that stage 3's optimizer steps at once; None: DeepSpeed's 1,000,000,000, or with offload_ratio below 1
    what moves that share."""
    overlap_comm: bool = True
    pin_memory: bool = True


@dataclass(frozen=True)
class HardwareConfig:
    """One kind of node. Every number has an entry in ``sources``."""

    name: Text
    device: DeviceKind
    gpu: Text
    gpus_per_node: ranges.GpusPerNode
    cpu: Text
    cpu_cores_per_node: ranges.HostCores | None
    host_memory_gib: ranges.HostGib | None
    default_precision: Precision
    gpu_memory_gib: ranges.GpuGib | None = None
    """Memory of one GPU that a process can allocate; None on CPU, where ranks share the host's."""
    peak_tflops: dict[Precision, ranges.Tflops] = field(default_factory=dict)
    """Dense peak of one GPU, 1e12 FLOP/s by data type; empty: no MFU is computed."""
    intra_node_gb_per_s: ranges.LinkRate | None = None
    """GPU to GPU inside a node, one direction, GB/s a GPU."""
    inter_node_gb_per_s: ranges.NetworkRate | None = None
    """Network of one node, one direction, GB/s (all adapters together)."""
    achievable_tflops: dict[Precision, ranges.Tflops] = field(default_factory=dict)
    """Best measured matmul rate of one GPU, 1e12 FLOP/s by data type; empty: no step time is predicted."""
    gpu_memory_gb_per_s: ranges.GpuMemoryRate | None = None
    """Bandwidth of one GPU's memory, GB/s."""
    host_link_gb_per_s: ranges.LinkRate | None = None
    """GPU to host memory, one direction, GB/s a GPU; asked for where something is offloaded."""
    host_memory_gb_per_s: ranges.HostMemoryRate | None = None
    """Memory of a node's processors, GB/s, all sockets together; asked for where the optimizer runs on the CPU."""
    nvme_path: Text | None = None
    """Folder on the node's own NVMe; None: stated by ``parallelism.nvme_path`` where something is moved there."""
    nvme_gib_per_node: ranges.NvmeGib | None = None
    """Room of that file system, GiB a node; None: looked at when the ranks start."""
    nvme_read_gb_per_s: ranges.NvmeRate | None = None
    """Sequential reads, GB/s a node, all drives together; asked for where something is moved to NVMe, as the next."""
    nvme_write_gb_per_s: ranges.NvmeRate | None = None
    price_per_gpu_hour: ranges.GpuHourPrice | None = None
    """Price of one GPU for one hour, in ``price_currency``; ``plan --price`` wins."""
    price_currency: Text | None = None
    """Such as USD; None: money is printed without one."""
    gpu_power_w: ranges.GpuWatts | None = None
    """Board power limit of one GPU, W; None: no energy of the GPUs is computed."""
    node_power_w: ranges.NodeWatts | None = None
    """Greatest power of a whole node, W, without network switches and cooling of the hall; None: not stated."""
    node_mtbf_hours: ranges.NodeMtbfHours | None = None
    """Hours of one node between failures that end a job, on average; ``plan --mtbf-hours`` wins."""
    sources: dict[str, Text] = field(default_factory=dict)


@dataclass(frozen=True)
class ContainerConfig:
    """In what the ranks run; torch, deepspeed and this package's dependencies are in the image, or mounted into it."""

    runtime: Literal["none", "pyxis", "apptainer"] = "none"
    """pyxis: srun's --container-image (NVIDIA's plug-in over enroot); apptainer: ``apptainer exec`` around each rank."""
    image: Text | None = None
    """A file (made absolute when submitted) or, for a registry, its URI such as docker://..."""
    mounts: tuple[Text, ...] = ()
    """SOURCE, SOURCE:TARGET or SOURCE:TARGET:FLAGS each; the run folder and the copy of the code are mounted in any case."""
    python: Text | None = None
    """Absolute path of the interpreter inside the image; None: the submitting one, which must be mounted."""
    args: tuple[Text, ...] = ()
    """Further options of the runtime, each with its value as one word."""


@dataclass(frozen=True)
class ClusterConfig:
    """Where the job runs and how it is asked for. ``None`` leaves an sbatch option out."""

    name: Text
    kind: Literal["slurm", "local", "azureml"]
    wait: bool = False
    """Follow the run with a progress bar and end with its result."""
    time: Text | None = None
    """Time limit in one of Slurm's six forms, as text (YAML would read 4:00:00 as 14400); None: the partition's default."""
    partition: Text | None = None
    account: Text | None = None
    qos: Text | None = None
    constraint: Text | None = None
    reservation: Text | None = None
    nodelist: Text | None = None
    exclude: Text | None = None
    comment: Text | None = None
    exclusive: bool = False
    memory_per_node: Text | None = None
    """--mem, in Slurm's form; ``0`` means all of the node's memory."""
    cpus_per_task: Count | None = None
    gpu_request: Literal["auto", "none", "gpus_per_node", "gres"] = "auto"
    """auto: none where the hardware has no GPUs, else gpus_per_node, or gres where the site's Slurm knows no other form."""
    gpu_type: Text | None = None
    """The site's name of the GPU in gres.conf, where it wants one."""
    signal: Literal["USR1"] | None = "USR1"
    """Sent to the ranks before the time limit, so that they can save and stop; None: no warning."""
    signal_lead_s: Annotated[int, Limits(gt=0, le=65535)] = 120
    """Seconds between the warning signal and the time limit."""
    requeue: bool | None = True
    """May Slurm start the job again after preemption or a node failure; None leaves it to the site."""
    setup: tuple[str, ...] = ()
    """Shell lines before srun: modules, exports."""
    srun_args: tuple[str, ...] = ()
    extra: dict[str, str | int | bool | None] = field(default_factory=dict)
    """Further sbatch options, ``licenses: matlab`` gives ``--licenses=matlab``; true is a flag, null and false leave it out."""
    inherit_env: bool = False
    """Hand the submitting shell's environment to the job, but for the variables of an outer job."""
    container: ContainerConfig = field(default_factory=ContainerConfig)
    azureml: dict[str, str | int | bool] = field(default_factory=dict)
    """kind=azureml: compute, environment, experiment_name, workspace_name, resource_group, subscription_id, ..."""


@dataclass(frozen=True)
class LaunchConfig:
    """How runs are handed over, and what happens when one ends early."""

    mode: Literal["batch", "here"] = "batch"
    """here: inside an allocation (salloc), on its nodes, in the foreground."""
    sweep: Literal["array", "one_allocation"] = "array"
    """array: points of equal shape share a job array; one_allocation: one job, all points inside it one after another."""
    sweep_name: Text | None = None
    """Given again, the sweep of that name is continued: only what is missing is submitted. None: a new name."""
    max_running: Count | None = None
    """Tasks of an array that may run at once (Slurm's %N)."""
    rehearse: bool = False
    """Rehearse the run before it is submitted (``rehearse --quick``), and hold its memory against the hardware by that."""
    submit_wait_min: NonNegative = 0.0
    """Minutes to wait for room where Slurm says that a submit limit is reached; 0: stop, and continue later."""
    submit_retry_s: NonNegative = 60.0
    """For how long a controller that does not answer is asked for the job, and to take it, again."""
    comment_key: bool = True
    """Give the job a unique comment where cluster.comment is null, to find it again if sbatch's answer is lost."""
    chain: Literal["none", "requeue", "dependency"] = "none"
    """What follows when the time limit ends the run: nothing, the same job again, or dependent jobs."""
    max_attempts: Count = 10
    """Starts of one run, by Slurm and by the chain together; then it is FAILED."""
    exclude_failed_nodes: bool = False
    """Leave nodes that failed in an earlier attempt out of the next submission."""
    watchdog_min: Positive | None = None
    """Minutes without a step after which the stacks of all ranks are printed and the run ends; None: no watchdog.

    Off until the first step of an attempt is done; longer than the longest step with the saving of a checkpoint and a validation.
    """


@dataclass(frozen=True)
class BatchRampConfig:
    """How the global batch grows to ``training.global_batch_size`` (Megatron-LM's --rampup-batch-size), in sequences."""

    start: Count
    """Of the first step."""
    increment: Count
    """By which it grows, after equal shares of ``samples``."""
    samples: Count
    """Sequences after which the batch is the full one."""


@dataclass(frozen=True)
class TrainingConfig:
    """What is done: batch, steps, precision, optimizer and schedule."""

    name: Text
    num_steps: Count
    payload: Literal["train", "launch_check"] = "train"
    """launch_check: ranks meet, count themselves and leave; no torch, no GPU work."""
    seq_len: ranges.SequenceLength | None = None
    """Tokens of one sequence; None: the model's ``max_seq_len``."""
    micro_batch_size: ranges.MicroBatch | None = None
    """Sequences per data-parallel rank per forward; None: chosen with the recomputation, the fastest
    by prediction of those with which a tenth of the memory stays free; at most 8 where no global batch is stated."""
    global_batch_size: ranges.GlobalBatch | None = None
    """Sequences per optimizer step; None: micro batch x data-parallel degree x accumulation."""
    gradient_accumulation_steps: ranges.MicroBatch | None = None
    batch_ramp: BatchRampConfig | None = None
    """Begin with a smaller global batch, by less accumulation; None: the full one from the first step."""
    precision: Precision | None = None
    """None: the hardware's ``default_precision``."""
    loss_scale: NonNegative | None = None
    """Of fp16: a fixed factor on the loss, which keeps small gradients above fp16's smallest number; None or 0: a dynamic one."""
    initial_scale_power: Annotated[int, Limits(ge=0, le=32)] = 16
    """A dynamic loss scale starts at 2 to this power."""
    loss_scale_window: Count = 1000
    """Steps in a row without an overflow after which a dynamic loss scale doubles."""
    min_loss_scale: Annotated[int, Limits(gt=0, le=2**32)] = 1
    """A dynamic loss scale halves down to this; an overflow there ends the run."""
    hysteresis: Count = 2
    """Which overflow since a dynamic loss scale last doubled halves it, as each one after it does."""
    activation_checkpointing: ActivationCheckpointing | None = None
    """selective: recompute norms and activation functions, not products; full: keep each block's input and run its forward again;
    None: chosen with the micro batch."""
    loss_chunk_size: NonNegativeInt | None = None
    """Tokens of which the loss has scores at a time; 0: all of a micro batch; None: chosen by the plan."""
    offload_activations: bool = False
    """Keep the blocks' inputs in pinned host memory between forward and backward; with activation_checkpointing=full."""
    compile: bool = False
    """Compile each block by torch.compile, in the first step."""
    learning_rate: Positive = 6e-4
    min_learning_rate: NonNegative = 6e-5
    warmup_steps: NonNegativeInt = 0
    decay: Literal["cosine", "linear", "constant"] = "cosine"
    """From learning_rate after the warm-up to min_learning_rate at the last step; constant: stays at learning_rate."""
    weight_decay: NonNegative = 0.1
    beta1: Fraction = 0.9
    beta2: Fraction = 0.95
    eps: Positive = 1e-8
    gradient_clipping: NonNegative = 1.0
    seed: NonNegativeInt = 1234
    init_from: Text | None = None
    """A folder in Hugging Face's layout, Llama or GPT-2 of the model's shape, with whose weights a new run begins; None: drawn
    by the seed."""
    log_interval: Count = 10
    """Steps between two flushes of ``steps.jsonl``; every step gets its line."""
    validation_interval: Count | None = None
    """Steps between two validations on held-out data (data.validation_*), one more after the last step; None: none."""
    validation_batches: Count = 10
    """Held-out global batches of a validation, always the same ones; fewer where the held-out data ends before."""
    start_timeout_min: Count = 30
    """Minutes that ranks wait for each other at the start."""
    collective_timeout_min: Count = 30
    """Minutes after which a collective that some rank does not join ends the run."""
    checkpoint_interval: Count | None = None
    """Steps between two checkpoints; None: only at the end and at a stop, where asked."""
    checkpoint_at_end: bool = False
    """One more after the last step."""
    checkpoint_at_stop: bool = True
    """One more where a signal asks for the end: time limit, preemption, cancellation."""
    check_checkpoint_room: bool | None = None
    """Refuse a run for whose checkpoints the file system of the run folder has no room; None: refuse where a key of checkpoints
    is stated or the run is a chain, else warn."""
    keep_checkpoints: Count = 2
    """Complete checkpoints that stay; older ones are removed after a newer one is complete."""
    telemetry_interval_s: Annotated[float, Limits(ge=0.1, le=86400)] | None = 5.0
    """Seconds between two samples of each node's memory and GPUs in ``nodes/<name>.jsonl``; None: no telemetry."""


@dataclass(frozen=True)
class DataConfig:
    """Where the tokens come from."""

    name: Text
    kind: Literal["stdlib", "text", "synthetic", "tokens"]
    path: Text | None = None
    """text: a UTF-8 file, or a folder of which all ``*.txt`` are read; tokens: PREFIX of ``PREFIX.bin`` and ``PREFIX.idx``."""
    blend: dict[Text, Positive] = field(default_factory=dict)
    """tokens: prefix to weight in place of ``path``; the share of a corpus in the sequences is its weight over their sum."""
    validation_path: Text | None = None
    """What is never trained on, of the same kind as ``path``."""
    validation_fraction: Fraction = 0.0
    """Share at the end of the corpus (of each one of a blend) that is kept for validation and never trained on."""
    tokenizer_digest: Text | None = None
    """tokens: digest of the tokenizer that the manifests must name; None: those of a blend must only be equal."""
    max_bytes: Count = 64 * 2**20
    """Text beyond this size is left out (stdlib) or refused (text): every rank holds the corpus in memory."""


@dataclass(frozen=True)
class RunConfig:
    """Where runs are kept and what this one is called."""

    root: Text = "runs"
    name: Text | None = None
    """None: made from model, nodes and parallelism."""
    note: str = ""
    chosen: tuple[Text, ...] = ()
    """Written by the plan: keys whose values ``parallelism=auto`` chose; ``rerun RUN parallelism=auto`` opens them again."""


@dataclass(frozen=True)
class Config:
    """All groups of one run, composed by Hydra, resolved and checked."""

    nodes: ranges.Nodes
    model: ModelConfig
    parallelism: ParallelismConfig
    hardware: HardwareConfig
    cluster: ClusterConfig
    training: TrainingConfig
    data: DataConfig
    run: RunConfig
    launch: LaunchConfig = field(default_factory=LaunchConfig)
    track: TrackConfig = field(default_factory=TrackConfig)
    env: dict[str, str | int | float | bool] = field(default_factory=dict)
    """Environment variables of every rank; they win over what hpctrain would set. Secret ones are written to no file."""
    env_from_shell: tuple[Text, ...] = ()
    """Names of variables that ranks get as they are in the submitting shell; their values are written to no file."""
    calibration: Calibration | None = None
    """Of past runs, for the predicted step: found beside them (``launch.calibrations``), never typed and not in config.yaml."""

    @property
    def precision(self) -> Precision:
        """What parameters, activations and gradients are in."""
        return self.training.precision or self.hardware.default_precision
