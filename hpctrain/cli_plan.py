"""The verb ``plan``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from hpctrain.cli_answers import answer_flag
from hpctrain.cli_compose import asks_rehearsal, parse_compose_words, planned_points, print_config
from hpctrain.errors import EXIT_OK, ConfigError


def plan(words: Sequence[str]) -> int:
    """Prints the plan, of a sweep the table; the exit code is that of what keeps it from being submitted."""
    if (code := answer_flag(words)) is not None:
        return code
    if any(word == "--table" or word.startswith("--table=") for word in words):
        from hpctrain.cli_plan_table import plan_table_words

        return plan_table_words(words)
    from hpctrain.cli_plan_cost import plan_json, plan_text, take_cost_words
    from hpctrain.launch.interpreter import interpreter

    options, rest = take_cost_words(words)
    parsed = parse_compose_words(rest)
    if parsed.shown_config:
        return print_config(parsed)
    planned, site = planned_points(parsed, asks_site=parsed.site)
    if parsed.site and site is None:
        print("note: --site asks Slurm, and this plan makes no job of it", file=sys.stderr)
    comparisons = []
    if parsed.rehearse or asks_rehearsal(planned):
        from hpctrain.cli_rehearsed import with_rehearsals
        from hpctrain.rehearse.compare import render_comparison

        rehearsed = with_rehearsals(planned, parsed.rehearse)
        planned = [(point, its_plan) for point, its_plan, _ in rehearsed]
        comparisons = [render_comparison(found) for _, _, found in rehearsed if found is not None]
    if parsed.as_json:
        print(plan_json(planned, options, parsed.multirun, parsed.force), end="")
    else:
        print(plan_text(planned, options, parsed.multirun, parsed.force, interpreter(), site), end="")
        if site is not None:
            from hpctrain.launch.site.render import render_site

            print(f"\n{render_site(site)}", end="")
        if comparisons and not parsed.multirun:
            print(f"\n{comparisons[0]}")
    problems = [problem for _, its_plan in planned for problem in its_plan.problems]
    return ConfigError(problems).exit_code if problems else EXIT_OK
