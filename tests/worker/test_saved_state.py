"""The state of composed checkpoints, read by parameter; and the parameters' names and cuts against the built model."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from hpctrain.errors import RecordError
from hpctrain.plan.parameters import Parameter, decoder_parameters
from hpctrain.worker.model.decoder import Decoder
from hpctrain.worker.parallel_groups import ParallelGroups, RankGroup
from hpctrain.worker.state.saved_state import SavedState, damage
from hpctrain.worker.state.source import TensorPlace, joined_pieces, own_piece
from tests.worker.run_folder import GPT, LLAMA
from tests.worker.saved_states import compose_checkpoint, decoder_of, shape_of, state_of

MODELS = {"gpt": GPT, "llama": LLAMA, "gpt, untied": GPT | {"tie_embeddings": False}}
FORMS = [(0, 2, 1), (0, 2, 2), (1, 1, 1), (1, 3, 1), (2, 2, 2), (3, 1, 1), (3, 5, 1), (3, 2, 2)]


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_parameters_are_those_of_the_built_decoder(model: dict[str, Any], num_ranks: int) -> None:
    shape = shape_of(model)
    whole = dict(decoder_of(shape).named_parameters())
    for rank in range(num_ranks):
        built = Decoder(shape, "none", 3, ParallelGroups(tensor=RankGroup(rank, num_ranks)))
        parameters = decoder_parameters(shape)
        assert [each.name for each in parameters] == [name for name, _ in built.named_parameters()]
        assert [each.shape for each in parameters] == [tuple(whole[each.name].shape) for each in parameters]
        for parameter, (_, own) in zip(parameters, built.named_parameters(), strict=True):
            assert parameter.piece_shape(num_ranks) == tuple(own.shape)
            assert (parameter.split_dim is not None and num_ranks > 1) == hasattr(own, "tensor_model_parallel")
            if own.dim() > 1:  # drawn by name, and then cut by the layer
                drawn = dict(Decoder(shape, "none", 3).named_parameters())[parameter.name]
                assert torch.equal(own_piece(drawn, parameter, TensorPlace(rank, num_ranks)), own)


@pytest.mark.parametrize("parameter", decoder_parameters(shape_of(LLAMA))[:8], ids=lambda each: each.name)
def test_pieces_are_joined_to_what_they_were_cut_from(parameter: Parameter) -> None:
    whole = torch.randn(parameter.shape)
    pieces = [own_piece(whole, parameter, TensorPlace(rank, 2)) for rank in range(2)]
    assert torch.equal(joined_pieces(pieces, parameter), whole)


@pytest.mark.parametrize("model", [GPT, LLAMA], ids=["gpt", "llama"])
@pytest.mark.parametrize(("zero_stage", "zero_ranks", "tensor_ranks"), FORMS, ids=str)
def test_every_form_gives_the_state_back(
    zero_stage: int, zero_ranks: int, tensor_ranks: int, model: dict[str, Any], tmp_path: Path
) -> None:
    shape = shape_of(model)
    state = state_of(decoder_of(shape))
    saved = SavedState(*compose_checkpoint(tmp_path, shape, state, zero_stage, zero_ranks, tensor_ranks))
    assert saved.adam_step == 6
    assert saved.engine_counts == {"global_steps": 7, "global_samples": 56, "skipped_steps": 1}
    for kind, tensors in state.items():
        for parameter in saved.parameters:
            whole = tensors[parameter.name]
            found = saved.whole(kind, parameter)
            assert found is not None
            assert torch.equal(found, whole), (kind, parameter.name)
            for num_ranks in (1, 2):
                for rank in range(num_ranks):
                    place = TensorPlace(rank, num_ranks)
                    piece = own_piece(whole, parameter, place).flatten()
                    start, stop = piece.numel() // 3, piece.numel() - 1
                    part = saved.piece(kind, parameter, place, start, stop)
                    assert part is not None
                    assert torch.equal(part, piece[start:stop])


def test_what_is_missing_or_of_another_shape_is_named(tmp_path: Path) -> None:
    shape = shape_of(GPT)
    folder, record = compose_checkpoint(tmp_path, shape, state_of(decoder_of(shape)), 1)
    table = decoder_parameters(shape)[0]
    last_matrix = next(each for each in decoder_parameters(shape) if each.name == "blocks.1.ffn_out.weight")
    without = dataclasses.replace(record, files=tuple(file for file in record.files if "pp_rank_1" not in file.name))
    with pytest.raises(RecordError, match=r"rank 1 wrote no file that ends with _optim_states\.pt"):
        SavedState(folder, without).whole("fp32", last_matrix)
    wider = dataclasses.replace(record, model=record.model | {"ffn_hidden_size": 130})
    with pytest.raises(RecordError, match=r"blocks.0.ffn_in.bias has shape \(128,\), by its complete.json \(130,\)"):
        SavedState(folder, wider).whole("fp32", table)
    unknown = dataclasses.replace(record, model=record.model | {"window": 128})
    with pytest.raises(RecordError, match="window"):
        SavedState(folder, unknown).whole("fp32", table)
    content = torch.load(folder / "zero_pp_rank_0_mp_rank_00_optim_states.pt", weights_only=False)
    flats = content["optimizer_state_dict"]["single_partition_of_fp32_groups"]
    flats[0] = flats[0][:100].clone()
    torch.save(content, folder / "zero_pp_rank_0_mp_rank_00_optim_states.pt")
    size = (folder / "zero_pp_rank_0_mp_rank_00_optim_states.pt").stat().st_size
    files = [dataclasses.replace(file, num_bytes=size) if "pp_rank_0" in file.name else file for file in record.files]
    with pytest.raises(RecordError, match="group 0 of rank 0 has 100 elements of fp32, fewer than 8320"):
        SavedState(folder, dataclasses.replace(record, files=tuple(files))).whole("fp32", table)


def test_damage_is_found_by_the_checksums(tmp_path: Path) -> None:
    shape = shape_of(GPT)
    folder, record = compose_checkpoint(tmp_path, shape, state_of(decoder_of(shape)), 3)
    path = folder / record.files[-1].name
    assert damage(path) == ""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    assert damage(path).endswith(" has another checksum than when it was saved")
    path.write_bytes(content[:100])
    assert damage(path) == f"{path}: File is not a zip file"
    assert damage(folder / "gone.pt") == f"{folder / 'gone.pt'}: No such file or directory"
