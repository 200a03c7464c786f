"""Sequences of token files: each once an epoch, the same in a step on any number of ranks, and in the middle of a run."""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from hpctrain.config.schema import DataConfig
from hpctrain.plan.batch_ramp import ramp_stages
from hpctrain.plan.layout import Batch
from hpctrain.worker.data.batches import TokenBatches
from hpctrain.worker.data.corpus import Corpus, load_corpus
from hpctrain.worker.data.micro_batches import MicroBatchStream
from hpctrain.worker.data.sequences import Part, Sequences
from hpctrain.worker.end_reasons import DataError
from tests.token_files import write_tokens

SEQ_LEN, GLOBAL_BATCH, VOCAB = 6, 24, 10_000
WIDTH = SEQ_LEN + 1
RANKS = [1, 2, 3, 4, 8]


def batch_of(num_ranks: int, micro: int = 1, seq_len: int = SEQ_LEN) -> Batch:
    return Batch(micro, GLOBAL_BATCH // (num_ranks * micro), GLOBAL_BATCH, seq_len)


def load(seed: int = 1, vocab_size: int = VOCAB, seq_len: int = SEQ_LEN, **data: object) -> Corpus:
    config = DataConfig("x", "tokens", **{"path": None, **data})  # type: ignore[arg-type]
    return load_corpus(config, vocab_size, seq_len, seed)


@pytest.fixture
def counting(tmp_path: Path) -> Path:
    """A file of 100 windows and 3 tokens; each token is its place."""
    return write_tokens(tmp_path / "counting", np.arange(100 * WIDTH + 3))


def ranks_of(sequences: Sequences, num_ranks: int, batch: Batch | None = None) -> list[TokenBatches]:
    return [TokenBatches(sequences, batch or batch_of(num_ranks), rank, num_ranks) for rank in range(num_ranks)]


def global_batch(ranks: Sequence[TokenBatches], step: int) -> list[list[int]]:
    """All sequences of a step, ids and last label, in the order of their samples: micro step by micro step, rank by rank."""
    found = []
    for micro_step in range(ranks[0].batch.accumulation_of(step)):
        for batches in ranks:
            ids, labels = batches.micro_batch(step, micro_step)
            assert (labels[:, :-1] == ids[:, 1:]).all()
            found += np.concatenate([ids, labels[:, -1:]], axis=1).tolist()
    return found


def steps_of(ranks: Sequence[TokenBatches], steps: range) -> Iterator[list[int]]:
    for step in steps:
        yield from global_batch(ranks, step)


def test_every_token_of_an_epoch_is_seen_once_up_to_the_tail(counting: Path) -> None:
    corpus = load(path=str(counting))
    seen = list(steps_of(ranks_of(corpus.training, 2), range(1, 26)))  # 600 samples are 6 epochs
    for epoch in range(6):
        tokens = sorted(token for sequence in seen[100 * epoch : 100 * (epoch + 1)] for token in sequence)
        assert tokens == list(range(100 * WIDTH))
    assert seen[:100] != seen[100:200]
    assert list(steps_of(ranks_of(load(path=str(counting), seed=2).training, 2), range(1, 26)))[:100] != seen[:100]


@pytest.mark.parametrize("num_ranks", RANKS)
def test_the_order_of_samples_is_the_same_on_any_number_of_ranks(counting: Path, num_ranks: int) -> None:
    training = load(path=str(counting)).training
    alone = [global_batch(ranks_of(training, 1), step) for step in range(1, 11)]
    assert [global_batch(ranks_of(training, num_ranks), step) for step in range(1, 11)] == alone
    if num_ranks < 8:
        larger = ranks_of(training, num_ranks, batch_of(num_ranks, micro=GLOBAL_BATCH // num_ranks))
        assert [global_batch(larger, step) for step in range(1, 11)] == alone


def test_a_run_that_goes_on_reads_what_the_uninterrupted_one_does_on_other_ranks_too(counting: Path) -> None:
    """A ramp of 6, 12, 18 sequences to 24; stopped in the middle of it, and of an epoch."""
    training = load(path=str(counting)).training
    stages = ramp_stages(6, 6, 60, 24)

    def ranks(num_ranks: int) -> list[TokenBatches]:
        return ranks_of(training, num_ranks, dataclasses.replace(batch_of(num_ranks), ramp=stages))

    whole = list(steps_of(ranks(2), range(1, 21)))
    before = list(steps_of(ranks(2), range(1, 6)))
    after = list(steps_of(ranks(3), range(6, 21)))
    assert before + after == whole
    assert len(before) == Batch(1, 24, 24, SEQ_LEN, stages).samples_before(6) < 5 * 24
    assert Counter(map(tuple, whole[:100])).most_common(1)[0][1] == 1


def test_a_blend_takes_its_share_of_each_corpus_in_every_step(tmp_path: Path) -> None:
    first = write_tokens(tmp_path / "a", np.arange(50 * WIDTH))
    second = write_tokens(tmp_path / "b", 5000 + np.arange(500 * WIDTH))
    training = load(blend={str(first): 1.5, str(second): 0.5}).training
    assert training.num_windows == 550
    seen = list(steps_of(ranks_of(training, 3), range(1, 11)))
    is_first = np.array([sequence[0] < 5000 for sequence in seen])
    assert np.abs(np.cumsum(is_first) - 0.75 * np.arange(1, 241)).max() < 2
    of_first = [sequence[0] for sequence in seen if sequence[0] < 5000]
    assert len(of_first) == 180
    assert sorted(of_first[:50]) == sorted(of_first[50:100]) == list(range(0, 50 * WIDTH, WIDTH))  # epochs of its own
    of_second = [sequence[0] for sequence in seen if sequence[0] >= 5000]
    assert len(set(of_second)) == len(of_second) == 60


def test_a_blends_digest_knows_weights_and_files(tmp_path: Path) -> None:
    first, second = (str(write_tokens(tmp_path / name, np.arange(70) % 50)) for name in "ab")
    other = str(write_tokens(tmp_path / "c", np.arange(70) % 49))
    digests = [
        load(**data).digest
        for data in (
            {"blend": {first: 0.5, second: 0.5}},
            {"blend": {first: 0.6, second: 0.4}},
            {"blend": {first: 0.5, other: 0.5}},
            {"path": first},
            {"path": first, "validation_fraction": 0.2},
        )
    ]
    assert len(set(digests)) == 5
    assert load(path=first).digest == load(path=second).digest


@pytest.mark.parametrize("num_ranks", RANKS)
def test_validation_data_are_the_end_of_the_corpus_and_the_same_on_any_number_of_ranks(
    counting: Path, num_ranks: int
) -> None:
    corpus = load(path=str(counting), validation_fraction=0.24)
    assert corpus.validation is not None
    assert (corpus.training.num_windows, corpus.validation.num_windows) == (76, 24)
    assert [part.first_token for part in (*corpus.training.parts, *corpus.validation.parts)] == [0, 76 * WIDTH]
    held_out = global_batch(ranks_of(corpus.validation, num_ranks), 1)
    assert sorted(token for sequence in held_out for token in sequence) == list(range(76 * WIDTH, 100 * WIDTH))
    assert held_out == global_batch(ranks_of(corpus.validation, 1), 1)
    trained = {token for sequence in steps_of(ranks_of(corpus.training, 1), range(1, 9)) for token in sequence}
    assert trained == set(range(76 * WIDTH))


def test_validation_data_of_their_own(counting: Path, tmp_path: Path) -> None:
    held_out = write_tokens(tmp_path / "held_out", 5000 + np.arange(30 * WIDTH))
    corpus = load(path=str(counting), validation_path=str(held_out))
    assert corpus.validation is not None
    assert corpus.training.num_windows == 100
    assert corpus.validation.num_windows == 30
    assert corpus.digest == load(path=str(counting)).digest
    assert corpus.validation.read(np.arange(30))[0].min() == 5000
    assert load(path=str(counting)).validation is None


def test_sequences_of_a_large_file_are_the_tokens_of_the_file(tmp_path: Path) -> None:
    tokens = np.random.default_rng(1).integers(0, 100_000, 300_000)
    training = load(
        path=str(write_tokens(tmp_path / "large", tokens, "int32")), vocab_size=100_000, seq_len=511
    ).training
    samples = np.arange(1000)  # of 585 windows: into the second epoch
    ids, labels = training.read(samples)
    _, windows = training.locate(samples)
    assert ids.dtype == labels.dtype == np.int64
    for row, window in enumerate(windows.tolist()):
        assert (ids[row] == tokens[512 * window : 512 * window + 511]).all()
        assert (labels[row] == tokens[512 * window + 1 : 512 * window + 512]).all()


@pytest.mark.parametrize(("token", "dtype"), [(300, "uint16"), (70_000, "int32"), (-1, "int32")])
@pytest.mark.parametrize("place", [0, 4, 6], ids=["first", "in the middle", "last label"])
def test_a_token_beyond_the_vocabulary_is_named_when_it_comes(token: int, dtype: str, place: int) -> None:
    tokens = np.zeros(5 * WIDTH, dtype)
    tokens[2 * WIDTH + place] = token
    training = Sequences([Part(tokens, "data.path=x", first_token=1000)], SEQ_LEN, 260, seed=1)
    with pytest.raises(
        DataError, match=rf"model.vocab_size=260: data.path=x has token {token} at place {1014 + place:,}; "
    ):
        training.read(np.arange(5))


@pytest.mark.parametrize("num_bytes", [0, 1, 100 * WIDTH], ids="{} bytes left".format)
def test_a_file_that_is_cut_while_the_run_reads_it_is_told(num_bytes: int, counting: Path, tmp_path: Path) -> None:
    """The kernel would end the rank by SIGBUS."""
    other = write_tokens(tmp_path / "other", np.arange(50 * WIDTH))
    blend = load(blend={str(counting): 1.0, str(other): 1.0}, validation_fraction=0.1)
    assert blend.validation is not None
    blend.training.read(np.arange(8))
    whole = counting.with_suffix(".bin").stat().st_size
    os.truncate(counting.with_suffix(".bin"), num_bytes)
    for sequences in (blend.training, blend.validation):
        with pytest.raises(
            DataError, match=rf"counting.*: its \.bin has {num_bytes:,} bytes now, and had {whole:,} when the run"
        ):
            sequences.read(np.arange(8))


def test_a_file_that_another_takes_the_place_of_is_read_on(counting: Path) -> None:
    training = load(path=str(counting)).training
    before = training.read(np.arange(8))
    path = counting.with_suffix(".bin")
    path.with_suffix(".new").write_bytes(b"")
    path.with_suffix(".new").rename(path)
    assert (training.read(np.arange(8))[0] == before[0]).all()


def test_micro_batches_come_in_order_from_a_thread_that_ends(counting: Path) -> None:
    batches = TokenBatches(load(path=str(counting)).training, batch_of(2, micro=3), 1, 2)
    with MicroBatchStream(batches, 3, 9, torch.device("cpu")) as stream:
        for step in (3, 4, 5):
            micro_batches = stream.step(step)
            assert micro_batches.num_left == 4
            for micro_step, (ids, labels) in enumerate(micro_batches):
                expected = batches.micro_batch(step, micro_step)
                assert (ids.numpy() == expected[0]).all()
                assert (labels.numpy() == expected[1]).all()
            assert micro_batches.num_left == 0
            assert micro_batches.data_time_s > 0
        thread = stream._thread
        assert thread.is_alive()  # it has made a part of the other steps and waits for room
    assert not thread.is_alive()


def test_an_unused_stream_starts_no_thread(counting: Path) -> None:
    batches = TokenBatches(load(path=str(counting)).training, batch_of(1), 0, 1)
    with MicroBatchStream(batches, 1, 6, torch.device("cpu")) as stream:
        assert stream.step(1).num_left == GLOBAL_BATCH
    assert stream._thread.ident is None


def test_what_the_thread_meets_is_raised_where_the_micro_batch_is_taken() -> None:
    tokens = np.zeros(30 * WIDTH, np.uint16)
    tokens[-1] = 999
    batches = TokenBatches(Sequences([Part(tokens, "x")], SEQ_LEN, 260, 1), batch_of(1), 0, 1)
    with (
        MicroBatchStream(batches, 1, 3, torch.device("cpu")) as stream,
        pytest.raises(DataError, match="token 999 at place 209"),
    ):
        for step in (1, 2, 3):
            list(stream.step(step))


def test_a_file_is_mapped_and_not_read(counting: Path) -> None:
    (part,) = load(path=str(counting)).training.parts
    base: object = part.tokens
    while isinstance(base, np.ndarray) and base.base is not None:
        base = base.base
    assert type(base).__name__ == "mmap"
    # The kernel's own word of how it reads: «rr» is random. Source: proc_pid_smaps(5), VmFlags.
    areas = Path("/proc/self/smaps").read_text(encoding="utf-8").split(f"{counting}.bin\n")
    flags = next(line for line in areas[1].splitlines() if line.startswith("VmFlags:"))
    assert "rr" in flags.split()
    assert not part.tokens.flags.writeable
