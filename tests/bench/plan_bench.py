"""One plan inside the process: from the typed configuration to the RunPlan, with nothing remembered of an earlier one.

``python -m tests.bench.plan_bench [ROUNDS]`` prints CPU time, the median of all rounds; the aim is at most 20 ms for each.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterator
from types import ModuleType

from hpctrain.config.compose import compose_points
from hpctrain.plan.run_plan import build_run_plan

AIM_MS = 20.0
CASES = {
    "tiny": "model=tiny cluster=local parallelism=zero3",
    "13b, stage 2": "model=13b nodes=16 parallelism=zero2",
    "530b": "model=530b nodes=128 parallelism=zero3",
    "530b, 3-D parallel": "model=530b nodes=420 parallelism=megatron_3d",
    "530b, fitted offload": "model=530b nodes=128 parallelism=zero_cache",
    "llama3_405b": "model=llama3_405b nodes=128 parallelism=zero3",
    "175b, fitted, batch": "model=175b nodes=16 parallelism=zero_cache training.global_batch_size=92160",
    "2t, all offloaded": "model=2t nodes=128 parallelism=zero3_offload training.offload_activations=true",
}


def _memories() -> Iterator[ModuleType]:
    yield from (module for name, module in list(sys.modules.items()) if name.startswith("hpctrain.plan"))


def forget() -> None:
    """Empties every cache of the planner."""
    for module in _memories():
        for value in list(vars(module).values()):
            clear = getattr(value, "cache_clear", None)
            if clear is not None:
                clear()


def plan_ms(words: str, rounds: int) -> tuple[float, float]:
    """Median and least CPU time of making the plan, in ms."""
    (point,) = compose_points(words.split(), multirun=False)
    times = []
    for _ in range(rounds):
        forget()
        started_s = time.process_time()
        build_run_plan(point.config, point.assumptions)
        times.append(time.process_time() - started_s)
    return 1e3 * statistics.median(times), 1e3 * min(times)


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    for name, words in CASES.items():
        median, _ = plan_ms(words, rounds)
        print(f"{name:<22} {median:6.1f} ms  (aim at most {AIM_MS:g} ms)")


if __name__ == "__main__":
    main()
