"""hpctrain beside a hand-written PyTorch loop and beside Hugging Face's Trainer: same ranks, shapes and batches, in turns.

``python tests/bench/ddp_bench.py [BLOCKS] [OVERRIDE...]`` trains a GPT (model=tiny, unless an override says another) on two CPU
ranks, 4,096 tokens a rank and step (``training.micro_batch_size=8``: 1,024, where what the host does for a step weighs more), in
turns of a few steps each:

- a bare loop of DistributedDataParallel with torch's AdamW around the same decoder,
- hpctrain's engine and loop with parallelism=ddp and with parallelism=zero1,
- Hugging Face's Trainer with DeepSpeed's ZeRO-1 around GPT-2 of the same shape.

The aim is at least 0.97 of the bare loop's tokens/s in both groups, and more than the Trainer's. Needs accelerate:
``pip install -c constraints.txt -e '.[dev,bench]'``.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpctrain.config.compose import compose_points
from hpctrain.config.schema import Config
from hpctrain.plan.run_plan import RunPlan, build_run_plan

if TYPE_CHECKING:
    from hpctrain.worker.data.batches import TokenBatches

STEPS_A_BLOCK = 10
NUM_RANKS = 2
AIM = 0.97
COMMON = "cluster=local data=synthetic training=benchmark training.activation_checkpointing=none training.micro_batch_size=32"
BARE, OURS, TRAINER = "bare DDP loop", "hpctrain, {}", "HF Trainer + DeepSpeed ZeRO-1"
GROUPS = ("ddp", "zero1")

Loop = Callable[[], float]
"""Trains a block of steps; returns the last step's loss on this rank, nats."""


def main() -> None:
    if importlib.util.find_spec("accelerate") is None:
        sys.exit(
            "accelerate is missing, which Hugging Face's Trainer needs: pip install -c constraints.txt -e '.[bench]'"
        )
    arguments = sys.argv[1:] or ["5"]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    common = {
        **os.environ,
        **dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE", "LOCAL_SIZE"), str(NUM_RANKS)),
        "CROSS_RANK": "0",
        "CROSS_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "DS_ACCELERATOR": "cpu",
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
        "PYTHONWARNINGS": "ignore",
        "TRANSFORMERS_VERBOSITY": "error",
    }
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__, "--rank", *arguments],
            env=common | dict.fromkeys(("RANK", "LOCAL_RANK"), str(rank)),
        )
        for rank in range(NUM_RANKS)
    ]
    sys.exit(max(abs(rank.wait()) for rank in ranks))


def bench_rank(num_blocks: int, overrides: list[str]) -> None:
    """Takes turns; rank 0 prints."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    points = {group: _point(group, overrides) for group in GROUPS}
    batches = _batches(*points["zero1"])
    with tempfile.TemporaryDirectory() as folder, open(os.devnull, "w", encoding="utf-8") as nowhere:
        loops = {BARE: _bare_loop(*points["zero1"], batches)}
        for group, point in points.items():
            loops[OURS.format(group)] = _our_loop(*point, batches, Path(folder) / f"{group}.jsonl")
        seconds: dict[str, list[float]] = {name: [] for name in (*loops, TRAINER)}
        losses: dict[str, float] = {}

        def take_turns(trainer_s: float) -> None:
            """After each block of the Trainer, whose training cannot be called in parts."""
            seconds[TRAINER].append(trainer_s)
            printed, sys.stdout = sys.stdout, nowhere
            for name, loop in loops.items():
                dist.barrier()
                start_s = time.perf_counter()
                losses[name] = loop()
                dist.barrier()
                seconds[name].append(time.perf_counter() - start_s)
            sys.stdout = printed

        _train_with_trainer(*points["zero1"], batches, num_blocks + 1, folder, take_turns)
    if dist.get_rank() == 0:
        # The first block of each warms up.
        _report({name: values[1:] for name, values in seconds.items()}, losses, points["zero1"][1])
    sys.stdout.flush()
    os._exit(0)  # see hpctrain.worker.job._leave


def _point(group: str, overrides: list[str]) -> tuple[Config, RunPlan]:
    (point,) = compose_points([*f"model=tiny {COMMON} parallelism={group}".split(), *overrides], multirun=False)
    plan = build_run_plan(point.config)
    if plan.problems:
        sys.exit("\n".join(map(str, plan.problems)))
    return point.config, dataclasses.replace(plan, num_steps=STEPS_A_BLOCK)


def _batches(config: Config, plan: RunPlan) -> TokenBatches:
    import torch.distributed as dist

    from hpctrain.worker.data.batches import TokenBatches
    from hpctrain.worker.data.corpus import load_corpus

    corpus = load_corpus(config.data, plan.model.vocab_size, plan.batch.seq_len, config.training.seed)
    return TokenBatches(corpus.training, plan.batch, dist.get_rank(), NUM_RANKS)


def _bare_loop(config: Config, plan: RunPlan, batches: TokenBatches) -> Loop:
    """What one writes by hand: no log, no records, no signals, no schedule."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    from hpctrain.worker.engine import parameter_groups
    from hpctrain.worker.model.decoder import Decoder

    training = config.training
    decoder = Decoder(plan.model, "none", training.seed, loss_chunk_size=plan.loss_chunk_size)
    model = DistributedDataParallel(decoder)
    optimizer = torch.optim.AdamW(
        parameter_groups(decoder, training.weight_decay),
        lr=training.learning_rate,
        betas=(training.beta1, training.beta2),
        eps=training.eps,
    )

    def loop() -> float:
        for step in range(1, STEPS_A_BLOCK + 1):
            ids, labels = (torch.from_numpy(part) for part in batches.micro_batch(step, 0))
            loss = model(ids, labels)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(decoder.parameters(), training.gradient_clipping)
            optimizer.step()
            optimizer.zero_grad()
        return float(loss.detach())

    return loop


def _our_loop(config: Config, plan: RunPlan, batches: TokenBatches, steps_file: Path) -> Loop:
    """The whole of the worker's loop, its records written."""
    import torch
    import torch.distributed as dist

    from hpctrain.record.writer import StepWriter
    from hpctrain.worker.compiled_blocks import compile_blocks
    from hpctrain.worker.data.micro_batches import MicroBatchStream
    from hpctrain.worker.engine import build_engine
    from hpctrain.worker.gloo_gather import gather_in_place
    from hpctrain.worker.loop import train
    from hpctrain.worker.step_log import StepLog
    from hpctrain.worker.stop_signal import StopSignal

    training, device = config.training, torch.device("cpu")
    engine = build_engine(plan, training.weight_decay, training.seed, device)
    gather_in_place()
    if plan.compile:
        compile_blocks(engine.module)
    stop = StopSignal()
    last = [0.0]
    engine.module.register_forward_hook(lambda module, inputs, loss: last.__setitem__(0, loss.detach()))

    def loop() -> float:
        writer = StepWriter(steps_file) if dist.get_rank() == 0 else None
        with MicroBatchStream(batches, 1, STEPS_A_BLOCK, device) as data:
            train(engine, plan, training, data, StepLog(writer, 1, device), stop)
        return float(last[0])

    return loop


def _train_with_trainer(
    config: Config,
    plan: RunPlan,
    batches: TokenBatches,
    num_blocks: int,
    folder: str,
    end_block: Callable[[float], None],
) -> None:
    """Trains with Hugging Face's Trainer; ``end_block`` gets the seconds of each block of steps, and time stands still in it."""
    import torch
    import torch.distributed as dist
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

    class Blocks(TrainerCallback):
        start_s = 0.0

        def on_train_begin(self, *arguments: Any, **named: Any) -> None:
            self._begin()

        def on_step_end(self, args: Any, state: Any, control: Any, **named: Any) -> None:
            if state.global_step % STEPS_A_BLOCK == 0:
                dist.barrier()
                end_block(time.perf_counter() - self.start_s)
                self._begin()

        def _begin(self) -> None:
            dist.barrier()
            self.start_s = time.perf_counter()

    shape, training, batch = plan.model, config.training, plan.batch
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=shape.vocab_size,
            n_positions=shape.max_seq_len,
            n_embd=shape.hidden_size,
            n_layer=shape.num_layers,
            n_head=shape.num_heads,
            n_inner=shape.ffn_hidden_size,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            use_cache=False,
        )
    )
    steps = range(1, STEPS_A_BLOCK + 1)
    rows = [row for step in steps for row in torch.from_numpy(batches.micro_batch(step, 0)[0].copy())]
    arguments = TrainingArguments(
        output_dir=folder,
        max_steps=num_blocks * STEPS_A_BLOCK,
        per_device_train_batch_size=batch.micro_batch_size,
        learning_rate=training.learning_rate,
        lr_scheduler_type="constant",
        max_grad_norm=training.gradient_clipping,
        weight_decay=training.weight_decay,
        adam_beta1=training.beta1,
        adam_beta2=training.beta2,
        adam_epsilon=training.eps,
        use_cpu=True,
        ddp_backend="gloo",
        deepspeed=plan.ds_config,
        report_to="none",
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
    )
    data: Any = [{"input_ids": row, "labels": row} for row in rows * NUM_RANKS]
    Trainer(model=model, args=arguments, train_dataset=data, callbacks=[Blocks()]).train()


def _report(seconds: dict[str, list[float]], losses: dict[str, float], plan: RunPlan) -> None:
    tokens = plan.batch.tokens_per_step * STEPS_A_BLOCK
    shape = f"{plan.model.name}, {plan.num_parameters:,} parameters, {plan.batch.tokens_per_step:,} tokens a step"
    print(f"{shape}; medians of {len(seconds[BARE])} blocks of {STEPS_A_BLOCK} steps; load {os.getloadavg()[0]:.1f}")
    for name, values in seconds.items():
        rate = statistics.median(tokens / value for value in values)
        loss = f", loss {losses[name]:.6f}" if name in losses else ""
        print(f"{name:<30} {rate:10,.0f} tokens/s{loss}")
    for group in GROUPS:
        ours = seconds[OURS.format(group)]
        for other, aim in ((BARE, f"aim at least {AIM}"), (TRAINER, "aim above 1")):
            ratio = statistics.median(theirs / mine for mine, theirs in zip(ours, seconds[other], strict=True))
            print(
                f"{OURS.format(group)} / {other}: {ratio:.3f} of its tokens/s (median over neighbouring blocks), {aim}"
            )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        bench_rank(int(sys.argv[2]), sys.argv[3:])
    else:
        main()
