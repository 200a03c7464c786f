"""Configurations a second of the search behind ``parallelism=auto``, and its time for five runs.

``python -m tests.bench.search_bench [ROUNDS]``: each run is searched in a process of its own, ROUNDS times, and the median of the
CPU time is printed: of the first search in the process, and of one more, whose replays of the engine are known. A configuration
counts when its time is predicted, or a bound shows that it does not fit; the best are decided by the exact rules of memory. The
aims: at least 20,000 a second, and the search for 530B on 1,024 GPUs within 0.15 s.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time

RUNS = {
    "530b, 128 nodes": ("model=530b", "nodes=128"),
    "175b, 32 nodes": ("model=175b", "nodes=32"),
    "1t, 128 nodes": ("model=1t", "nodes=128"),
    "llama3_70b, 4 nodes": ("model=llama3_70b", "nodes=4"),
    "tiny, this machine": ("model=tiny", "cluster=local"),
}


def search_once(words: list[str]) -> dict[str, float]:
    """In this process: what was considered, and seconds of CPU of the imports, of the first search and of the second."""
    from hpctrain.config.compose import compose_points

    (point,) = compose_points(["parallelism=auto", *words], multirun=False)
    started = time.process_time()
    from hpctrain.plan.search.ranking import OpenKeys, rank_choices

    open_keys = OpenKeys(frozenset(point.open_keys))
    marks = [time.process_time()]
    for _ in range(2):
        considered = rank_choices(point.config, open_keys).num_considered
        marks.append(time.process_time())
    return {
        "considered": considered,
        "import_s": marks[0] - started,
        "first_s": marks[1] - marks[0],
        "again_s": marks[2] - marks[1],
    }


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    print(f"{'run':<20}  configurations  imports ms  first search ms  again ms  configurations/s (first)")
    for name, words in RUNS.items():
        command = [sys.executable, "-m", "tests.bench.search_bench", "--once", *words]
        found = [
            json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            for _ in range(rounds)
        ]
        median = {key: statistics.median(each[key] for each in found) for key in found[0]}
        imports, first, again = (median[key] * 1e3 for key in ("import_s", "first_s", "again_s"))
        rate = median["considered"] / median["first_s"]
        print(
            f"{name:<20}  {median['considered']:>14,}  {imports:>10.1f}  {first:>15.1f}  {again:>8.1f}  {rate:>24,.0f}"
        )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--once"]:
        print(json.dumps(search_once(sys.argv[2:])))
    else:
        main()
