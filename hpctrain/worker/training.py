"""The payload ``train``: from the meeting of the ranks to the end marker."""

from __future__ import annotations

import dataclasses
import os
import time

import torch

from hpctrain.record.schema import SCHEMA_VERSION, AttemptRecord
from hpctrain.record.writer import StepWriter, ValidationFile
from hpctrain.worker.checkpoint import CheckpointSaver, SaveTotals
from hpctrain.worker.checkpoint_files import RankFiles
from hpctrain.worker.compiled_blocks import compile_blocks
from hpctrain.worker.data.batches import TokenBatches
from hpctrain.worker.data.corpus import Corpus, load_corpus
from hpctrain.worker.data.micro_batches import MicroBatchStream
from hpctrain.worker.end_reasons import EXIT_CODES
from hpctrain.worker.engine import build_engine
from hpctrain.worker.first_weights import take_first_weights
from hpctrain.worker.gloo_gather import gather_in_place
from hpctrain.worker.loop import train
from hpctrain.worker.nvme_folder import with_folder
from hpctrain.worker.process_group import (
    check_same_corpus,
    measure_world,
    rank_device,
    start_process_group,
)
from hpctrain.worker.rank_guard import RankGuard
from hpctrain.worker.rank_start import Rank
from hpctrain.worker.rendezvous import meet
from hpctrain.worker.resume import check_room, load_newest
from hpctrain.worker.state_tiers import require_async_io
from hpctrain.worker.step_log import StepLog
from hpctrain.worker.stop_signal import StopSignal
from hpctrain.worker.telemetry import node_telemetry
from hpctrain.worker.track_process import trackers
from hpctrain.worker.validation import Validation
from hpctrain.worker.watchdog import Leave, watch_steps
from hpctrain.worker.world import check_world


def run_training(rank: Rank, stop: StopSignal, leave: Leave, guard: RankGuard) -> None:
    """Trains as this rank; the environment is set already, since torch and DeepSpeed read it when they are imported."""
    config, plan, env = rank.config, rank.plan, rank.env
    training = config.training
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    device = rank_device(plan.device)
    record = _meet(rank, device, stop)
    with node_telemetry(rank.paths, env, device, training.telemetry_interval_s) as telemetry:
        corpus = _load_corpus(rank)
        stop.check_before_first_step()
        check_room(rank)
        require_async_io(plan)
        engine = build_engine(with_folder(plan, rank.nvme), training.weight_decay, training.seed, device)
        if device.type == "cpu":
            gather_in_place()
        if plan.compile:
            num_blocks = compile_blocks(engine.module)
            if rank.env.rank == 0:
                print(f"hpctrain: {num_blocks} blocks will be compiled in the first step", flush=True)
        files = RankFiles()
        loaded = load_newest(engine, rank, corpus.digest, files)
        if loaded.step == 0:
            take_first_weights(engine, rank)
        layout = plan.layout
        place = layout.place(env.rank)
        batches = TokenBatches(corpus.training, plan.batch, place.data, layout.data_parallel_degree)
        torch.distributed.barrier()
        stop.check_before_first_step()
        record = dataclasses.replace(
            record, setup_time_s=time.time() - rank.started_at_s, resumed_from_step=loaded.step
        )
        rank.write_attempt(record)
        saver = CheckpointSaver(
            engine, rank, corpus.digest, files, loaded.rejected, lambda totals: _note_saves(rank, record, totals)
        )
        writer = StepWriter(rank.paths.steps) if env.rank == 0 else None
        log = StepLog(writer, env.attempt, device)
        if telemetry is not None:
            telemetry.follow(log)
        first_step = loaded.step + 1
        validation = _validation(rank, corpus)
        with (
            trackers(rank, first_step, guard),
            watch_steps(rank, log, leave),
            MicroBatchStream(batches, first_step, plan.num_steps, device) as data,
        ):
            train(engine, plan, training, data, log, stop, saver, first_step, validation)
    # A rank that leaves early would break the last collective of a slower one.
    torch.distributed.barrier()
    exit_code = EXIT_CODES["completed"]
    completed = dataclasses.replace(
        _with_saves(record, saver.totals),
        state="completed",
        ended_at_s=time.time(),
        end_reason="completed",
        exit_code=exit_code,
    )
    rank.write_end(completed)
    print("hpctrain: completed", flush=True)


def _load_corpus(rank: Rank) -> Corpus:
    """The corpus, the same on all ranks; a collective."""
    plan = rank.plan
    corpus = load_corpus(rank.config.data, plan.model.vocab_size, plan.batch.seq_len, rank.config.training.seed)
    check_same_corpus(f"{corpus.digest}/{corpus.validation_digest}", rank.env.node_name)
    if rank.env.rank == 0:
        for line in corpus.notes:
            print(f"hpctrain: {line}", flush=True)
    return corpus


def _validation(rank: Rank, corpus: Corpus) -> Validation | None:
    """What ``training.validation_interval`` asks for."""
    training = rank.config.training
    if training.validation_interval is None:
        return None
    assert corpus.validation is not None, "the plan refuses an interval without held-out data"
    writer = ValidationFile(rank.paths.validations) if rank.env.rank == 0 else None
    return Validation(corpus.validation, rank.plan, training, rank.env.rank, rank.env.attempt, writer)


def _with_saves(record: AttemptRecord, totals: SaveTotals) -> AttemptRecord:
    return dataclasses.replace(
        record,
        num_checkpoints=totals.num_saved,
        num_failed_checkpoints=totals.num_failed,
        checkpoint_time_s=totals.time_s,
    )


def _note_saves(rank: Rank, record: AttemptRecord, totals: SaveTotals) -> None:
    """Into the attempt's record, where a full disk costs the note and not the run."""
    try:
        rank.write_attempt(_with_saves(record, totals))
    except OSError as error:
        print(f"hpctrain: warning: {error.filename}: {error.strerror}; the attempt's record lacks a save", flush=True)


def _meet(rank: Rank, device: torch.device, stop: StopSignal) -> AttemptRecord:
    """Joins the other ranks, holds them against the plan, and leaves the start marker."""
    env = rank.env
    timeout_s = 60.0 * rank.config.training.start_timeout_min
    store = meet(env, timeout_s, rank.paths.failure(env.attempt), stop)
    start_process_group(store, env, device, 60.0 * rank.config.training.collective_timeout_min)
    world = measure_world(env, device)
    check_world(world, rank.plan.layout)
    record = AttemptRecord(
        schema_version=SCHEMA_VERSION,
        attempt=env.attempt,
        job_id=env.job_id,
        state="running",
        started_at_s=rank.started_at_s,
        world_size=world.size,
        form=rank.plan.form,
        nodes=world.nodes,
        master_addr=env.master_addr,
        master_port=env.master_port,
        versions=rank.versions,
    )
    rank.write_attempt(record)
    return record
