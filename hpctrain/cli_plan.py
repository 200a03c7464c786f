"""The verb ``plan``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from hpctrain.cli_answers import answer_flag
from hpctrain.cli_compose import asks_rehearsal, parse_compose_words, planned_points, print_config
from hpctrain.errors import EXIT_CONFIG, EXIT_OK, ConfigError

_QUESTIONS = {"--largest", "--fewest-nodes", "--best-micro-batch"}
"""Options of ``cli_plan_questions``, which is loaded only where one of them is given."""


def plan(words: Sequence[str]) -> int:
    """Prints the plan, of a sweep the table; the exit code is that of what keeps it from being submitted."""
    if (code := answer_flag(words)) is not None:
        return code
    if not _QUESTIONS.isdisjoint(words):
        from hpctrain.cli_plan_questions import answer_question

        return answer_question(words)
    if any(word == "--calibrate" or word.startswith("--calibrate=") for word in words):
        from hpctrain.cli_plan_calibrate import plan_calibrate_words

        return plan_calibrate_words(words)
    if any(word == "--table" or word.startswith("--table=") for word in words):
        from hpctrain.cli_plan_table import plan_table_words

        return plan_table_words(words)
    from hpctrain.cli_plan_cost import cost_is_told, plan_json, plan_text, take_cost_words
    from hpctrain.launch.interpreter import interpreter

    picture = None
    if any(word.partition("=")[0] == "--picture" for word in words):
        from hpctrain.cli_plan_picture import take_picture_word

        picture, words = take_picture_word(words)
    options, rest = take_cost_words(words)
    parsed = parse_compose_words(rest)
    if parsed.shown_config:
        return print_config(parsed)
    planned, site = planned_points(parsed, asks_site=parsed.site)
    if options is not None and options.step_time_s is not None:
        planned = [(point, its_plan.without_rate_problems()) for point, its_plan in planned]
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
        print(plan_json(planned, options, parsed.multirun, parsed.force, site), end="")
    else:
        print(plan_text(planned, options, parsed.multirun, parsed.force, interpreter(), site), end="")
        if site is not None:
            from hpctrain.launch.site.render import render_site

            print(f"\n{render_site(site)}", end="")
        if comparisons and not parsed.multirun:
            print(f"\n{comparisons[0]}")
    if picture is not None:
        from hpctrain.cli_plan_picture import write_picture

        print(write_picture(picture, planned), file=sys.stderr if parsed.as_json else sys.stdout)
    problems = [problem for _, its_plan in planned for problem in its_plan.problems]
    if problems:
        return ConfigError(problems).exit_code
    return EXIT_OK if cost_is_told(planned, options, parsed.force) else EXIT_CONFIG
