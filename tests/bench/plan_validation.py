"""Prints how far predicted step times and memory are from published ones, by source and kind of parallelism.

    python -m tests.bench.plan_validation [--readme]

Rows that constants were fitted on and rows that were not stand apart. The bars are those of validation rows that state
parallelism, batch and recomputation: step time with a median error of at most 8 % and at worst 25 %, peak memory within 10 %, no
false "fits", no false "does not fit". ``--readme`` writes its short form into the README.
"""

from __future__ import annotations

import sys

import pandas as pd

from hpctrain.analysis.memory_validation import (
    FALSE_FIT,
    FALSE_REFUSAL,
    UNDECIDED,
    memory_row_name,
    memory_rows,
    memory_table,
    repeated_peaks,
)
from hpctrain.analysis.published import load_published
from hpctrain.analysis.validation import VALIDATION, row_name, validation_rows, validation_table
from tests.bench.validation_section import README, validation_section, written_readme


def main() -> None:
    published = load_published()
    if "--readme" in sys.argv[1:]:
        section = validation_section(published)
        README.write_text(written_readme(README.read_text(encoding="utf-8"), section), encoding="utf-8")
        return
    rows = validation_rows(published)
    table = validation_table(rows)
    print(f"{'role':<12}{'source':<54}{'kind':<22}{'rows':>5}{'median':>8}{'worst':>7}{'mean':>7}  worst row")
    for row in table.to_dict("records"):
        mark = f" [{row['stated']}]" if row["stated"] else ""
        print(
            f"{row['role']:<12}{row['source']:<54}{row['kind']:<22}{row['rows']:>5}{row['median']:>8.1%}{row['largest']:>7.0%}"
            f"{row['mean']:>+7.0%}  {row['worst_row']}{mark}"
        )
    judged = rows[(rows["role"] == VALIDATION) & (rows["stated"] == "")]
    for name, part in (("judged validation rows", judged), ("all rows", rows)):
        _summary(name, part)
    _memory(published)


def _summary(name: str, rows: pd.DataFrame) -> None:
    distance = rows["error"].abs()
    print(f"\n{name}: {len(rows)}, median {distance.median():.1%}, worst {distance.max():.0%}")
    for index in distance.sort_values(ascending=False).index[:5]:
        print(f"  {rows.loc[index, 'source']}: {row_name(rows.loc[index])}")


def _memory(published: pd.DataFrame) -> None:
    """Peaks by source, then every wrong fit by name."""
    rows = memory_rows(published)
    print(
        f"\n{'memory: role':<14}{'source':<54}{'GPU':<30}{'rows':>5}{'peaks':>6}{'median':>8}{'worst':>7}{'mean':>7}"
        f"{'in 10 %':>9}{'false fit':>11}{'false no':>10}{'open':>6}"
    )
    for row in memory_table(rows).to_dict("records"):
        mark = f" [{row['stated']}]" if row["stated"] else ""
        gpu = row["gpu"] if isinstance(row["gpu"], str) else "not stated"
        errors = f"{'':>37}"
        if row["peaks"]:
            errors = f"{row['median']:>8.1%}{row['largest']:>7.0%}{row['mean']:>+7.0%}{row['within_10']:>9.0%}{'':>6}"
        print(
            f"{row['role']:<14}{row['source']:<54}{gpu:<30}{row['rows']:>5}{row['peaks']:>6}{errors}"
            f"{row[FALSE_FIT]:>5}{row[FALSE_REFUSAL]:>10}{row[UNDECIDED]:>6}{mark}"
        )
    judged = rows[(rows["role"] == VALIDATION) & (rows["stated"] == "")]
    distance = judged["memory_error"].dropna().abs()
    print(
        f"\njudged peaks: {len(distance)}, median {distance.median():.1%}, within 10 % {(distance <= 0.1).mean():.0%}"
    )
    for index in distance.sort_values(ascending=False).index[:5]:
        print(f"  {judged.loc[index, 'source']}: {memory_row_name(judged.loc[index])}")
    repeated = repeated_peaks(rows[rows["source"].str.startswith("BigScience")])
    print(f"\nequal settings of one table: {len(repeated)}, spread {repeated['spread'].median():.0%} in the median")
    for row in repeated.head(3).to_dict("records"):
        print(f"  {row['model']}, {row['gpu']}: {row['count']} rows, {row['lowest']:g} to {row['highest']:g} GB")
    _wrong_fits(rows)


def _wrong_fits(rows: pd.DataFrame) -> None:
    for verdict in (FALSE_FIT, FALSE_REFUSAL):
        wrong = rows[rows["verdict"] == verdict]
        print(f"\n{verdict}: {len(wrong)}")
        for index in wrong.index:
            mark = wrong.loc[index, "stated"] or "all stated"
            print(f"  {wrong.loc[index, 'source']}: {memory_row_name(wrong.loc[index])} [{mark}]")


if __name__ == "__main__":
    main()
