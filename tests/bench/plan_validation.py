"""Prints how far predicted step times are from published ones, by source and kind of parallelism.

    python tests/bench/plan_validation.py

Rows that constants were fitted on and rows that were not stand apart; the bars are those of validation rows that state
parallelism, batch and recomputation: median error at most 8 %, worst at most 25 %.
"""

from __future__ import annotations

import pandas as pd

from hpctrain.analysis.published import load_published
from hpctrain.analysis.validation import VALIDATION, row_name, validation_rows, validation_table


def main() -> None:
    rows = validation_rows(load_published())
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


def _summary(name: str, rows: pd.DataFrame) -> None:
    distance = rows["error"].abs()
    print(f"\n{name}: {len(rows)}, median {distance.median():.1%}, worst {distance.max():.0%}")
    for index in distance.sort_values(ascending=False).index[:5]:
        print(f"  {rows.loc[index, 'source']}: {row_name(rows.loc[index])}")


if __name__ == "__main__":
    main()
