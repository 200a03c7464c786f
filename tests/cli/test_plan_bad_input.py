"""Bad words of ``plan``, with its tables and costs: one message, exit code 2, nothing written."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from hpctrain import cli
from hpctrain.errors import HpctrainError
from hpctrain.plan.stated.cells import COLUMNS

WORDS = "model=13b nodes=4 parallelism=zero3"
CASES = {
    "hardware=ndm_a100_v4 hardware.gpu=NoSuchGPU": "hardware.gpu=NoSuchGPU: is not in the device table",
    "nodes=0": "nodes=0: must be greater than 0; nearest: 1",
    "nodes=1000000000000": "nodes=1000000000000: must be less than or equal to 1000000",
    "model=gpt5": "model=gpt5: there is no such model; known: ",
    "model.num_layers=1000000000": "model.num_layers=1000000000: must be less than or equal to 10000",
    "model.vocab_size=1000000000000": "model.vocab_size=1000000000000: must be less than or equal to 10000000",
    "model.num_heads=7": "model.num_heads=7: must divide model.hidden_size=5120 (5120 mod 7 = 3); nearest: 5, 8",
    "training.seq_len=-5": "training.seq_len=-5: must be greater than 0",
    "training.micro_batch_size=1000000000": "training.micro_batch_size=1000000000: must be less than or equal to 1000000",
    "parallelism.tensor_parallel_size=3": "tensor_parallel_size 3 must divide the 32 ranks of 4 x 8",
    "hardware=b300": "hardware=b300: there is no such hardware; known: ",
    "hardware.gpu_memory_gib=81050": "hardware.gpu_memory_gib=81050: must be from 0 to 2,048; it is in GiB of one GPU",
    "hardware.intra_node_gb_per_s=2400": "if it is in Gb/s: 300",
    "hardware.price_per_gpu_hour=-1": "hardware.price_per_gpu_hour=-1: must be greater than 0",
    "hardware.inter_node_gb_per_s=null": "hardware.inter_node_gb_per_s=null: is not stated by hardware=ndm_a100_v4, and 4 nodes",
    "hardware.intra_node_gb_per_s=null": "hardware.intra_node_gb_per_s=null: is not stated by hardware=ndm_a100_v4, and the 8",
    "--largest hardware.inter_node_gb_per_s=null": "such as hardware.inter_node_gb_per_s=200 (8 adapters of 200 Gb/s)",
    "hardware.inter_node_gb_per_s=null --tokens 1B": "does not state hardware.inter_node_gb_per_s; for one plan --step-time-s",
    "--tokens 300B --price -2": "--price=-2: must be above zero; for example --price 2.10 or 2.10USD",
    "--tokens 300B --price 2.10EURO": "--price=2.10EURO: must be a number above zero",
    "--tokens": "--tokens: must be followed by a number above zero; for example --tokens 300B",
    "--tokens nan": "--tokens=nan: must be a number above zero",
    "training=launch_check --tokens 1e9": "cost: none, training=launch_check trains nothing, so that there are no steps",
    "training=launch_check --step-time-s 2": "cost: none, training=launch_check trains nothing",
    "-m training=launch_check --tokens 1e9": "note: cost: training=launch_check trains nothing",
    "-m nodes=1,0": "nodes=0: must be greater than 0",
    "-m nodes=range(1,9,0)": "nodes=range(1,9,0): ",
    "-m nodes=range(1,1000000)": "nodes=range(1,1000000): has more than 10,000 values",
    "-m nodes=range(1,1)": "nodes=range(1,1): has no values",
    "-m hardware=glob(zz*)": "hardware=glob(zz*): matches no hardware; known: cpu, dgx_h100",
    "--tokns 1B": "--tokns: is no option of this verb; nearest: --tokens; see",
    "--largest --picture a.png": "--picture: is no option of this verb, but of another one or of another question",
    "--picture=": "--picture: must be followed by a file",
    "nodes=1e3": "nodes=1000.0: must be a whole number; nearest: 1000",
    "model.vocab_size=1": "model.vocab_size=1: must be greater than 1; nearest: 2",
    "hardware.node_mtbf_hours=18000000": "hardware.node_mtbf_hours=18000000: must be from 1 to",
}


@pytest.mark.parametrize(("words", "expected"), CASES.items(), ids=CASES)
def test_one_message_and_exit_code_2(words: str, expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = cli.run(["plan", *WORDS.split(), *words.split()])
        text = capsys.readouterr().out
    except HpctrainError as error:
        code, text = error.exit_code, str(error)
        assert capsys.readouterr().out == ""
    assert code == 2
    assert text.count(expected) == 1


TABLE_CASES = {
    "--table": "argument --table: expected one argument",
    "--table rows.csv": "-o FILE is missing",
    "--table rows.csv -o out.csv -o other.csv": "-o FILE is given twice",
    "--table rows.csv --table rows.csv -o out.csv": "--table FILE is given twice",
    "--table none.csv -o out.csv": "--table none.csv: No such file or directory",
    "--table . -o out.csv": "--table .: Is a directory",
    "--table rows.csv -o .": "--output .: is a folder; give the name of a file",
    "--table rows.csv -o none/out.csv": "--output none/out.csv: no such folder as ",
    "--table rows.csv -o rows.csv": "--output rows.csv: is the table itself",
    "--table rows.csv -o out.csv nodes=3": "nodes=3: a table is planned as its rows say",
    "--table bytes.csv -o out.csv": "--table bytes.csv: is no UTF-8 text at byte 0",
    "--table empty.csv -o out.csv": "--table empty.csv: is empty",
    "--table short.csv -o out.csv": "short.csv header: 33 columns are missing: source, ref",
}


@pytest.mark.parametrize(("words", "expected"), TABLE_CASES.items(), ids=TABLE_CASES)
def test_a_table_that_cannot_be_planned(
    words: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    header = ",".join(COLUMNS) + "\n"
    Path("rows.csv").write_text(header)
    Path("bytes.csv").write_bytes(b"\xff\xfe\x00")
    Path("empty.csv").touch()
    Path("short.csv").write_text("layers,hidden\n")
    with pytest.raises(HpctrainError) as refused:
        cli.run(["plan", *words.split()])
    assert refused.value.exit_code == 2
    assert expected in str(refused.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bytes.csv", "empty.csv", "rows.csv", "short.csv"]
    assert Path("rows.csv").read_text() == header


ROW = {
    "source": "s",
    "layers": "40",
    "hidden": "5120",
    "heads": "40",
    "vocab": "50304",
    "seq_len": "2048",
    "gpu": "A100-80GB",
    "num_gpus": "32",
    "micro_batch_per_gpu": "2",
    "global_batch": "64",
    "zero_stage": "3",
}
ROW_CASES = [
    ({"gpu": "RTX 9999"}, "gpu=RTX 9999: is not in the device table; known: A10"),
    ({"gpu_mem_gb": "81920"}, "gpu_mem_gb=81920: must be from 1 to 2,048 GB"),
    ({"gpu_mem_gb": "0.08"}, "gpu_mem_gb=0.08: must be from 1 to 2,048 GB"),
    ({"hidden": "0"}, "hidden=0: must be a whole number from 1 to 1000000"),
    ({"layers": "4.5"}, "layers=4.5: must be a whole number from 1 to 10000"),
    ({"heads": "7"}, "model.num_heads=7: must divide model.hidden_size=5120"),
    ({"tp": "3"}, "tp x pp x sp x dp = 3 x 1 x 1 x 10 is not num_gpus=32"),
    ({"global_batch": "7"}, "global_batch=7 is less than micro_batch_per_gpu x dp = 2 x 32"),
    ({"zero_stage": "9"}, "zero_stage=9: is no ZeRO stage; one of 0, 1, 2, 3"),
    ({"layers": "", "hidden": ""}, "does not state layers, hidden"),
]


def test_rows_that_cannot_be_planned_say_so_and_stop_no_other(tmp_path: Path) -> None:
    table, output = tmp_path / "rows.csv", tmp_path / "out.csv"
    with table.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, COLUMNS, restval="")
        writer.writeheader()
        writer.writerows(ROW | changes for changes, _ in [*ROW_CASES, ({}, "")])
    assert cli.run(["plan", "--table", str(table), "-o", str(output)]) == 0
    with output.open(newline="") as stream:
        found = list(csv.DictReader(stream))
    for row, (_, expected) in zip(found, ROW_CASES, strict=False):
        assert expected in row["problem"]
    assert found[-1]["problem"] == ""
    assert float(found[-1]["pred_step_time_s"]) > 0
