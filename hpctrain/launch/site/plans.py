"""Plans held against the site before they are submitted: asked once for all points of a sweep."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence

from hpctrain.config.compose import Point
from hpctrain.config.schema import ClusterConfig
from hpctrain.launch.site.question import SiteQuestion, ask_site
from hpctrain.launch.slurm.states import SlurmCluster
from hpctrain.plan.job.slurm_request import SlurmRequest
from hpctrain.plan.run_plan import RunPlan
from hpctrain.plan.site.check import plan_on_site, sweep_warnings
from hpctrain.plan.site.limits import Site
from hpctrain.plan.site.need import request_need

Planned = Sequence[tuple[Point, RunPlan]]


def planned_on_site(planned: Planned, question: SiteQuestion) -> tuple[list[tuple[Point, RunPlan]], Site | None]:
    """The plans with what the site says of them, and the site; None where no plan goes to Slurm as a new job.

    A site that could not be asked, in whole or in part, is told as a warning: Slurm itself judges the request then.
    """
    sites: dict[str, Site] = {}
    found = []
    for point, plan in planned:
        if plan.cluster_kind != "slurm" or point.config.launch.mode != "batch":
            found.append((point, plan))
            continue
        name = _other_cluster(point.config.cluster)
        if name not in sites:
            sites[name] = _ask_other(name) if name else question.site()
        site = sites[name]
        held = plan_on_site(plan, point.config, site)
        warnings = [f"the site could not be asked for everything: {gap}" for gap in site.gaps]
        if len(planned) > 1:
            warnings += sweep_warnings(request_need(held.slurm), len(planned), site)
        found.append((point, dataclasses.replace(held, warnings=(*held.warnings, *warnings))))
    return found, next(iter(sites.values()), None)


def _other_cluster(cluster: ClusterConfig) -> str:
    """The cluster that the user names with sbatch's --clusters; empty: the one that this shell selects."""
    named = next(
        (value for key, value in cluster.extra.items() if key.replace("_", "-") in ("clusters", "cluster")), ""
    )
    return str(named or "")


def _ask_other(name: str) -> Site:
    if "," in name or name == "all":
        return Site(gaps=(f"cluster.extra.clusters={name} names several clusters, and Slurm chooses among them",))
    return SiteQuestion(SlurmCluster(os.environ.get("SLURM_CONF", ""), name)).site()


def refusal_hint(words: str, request: SlurmRequest, slurm_conf: str) -> str:
    """Lines to put below sbatch's refusal, with a line break first; empty where the site has nothing to say.

    Args:
        words: sbatch's stderr.
        request: what was refused.
        slurm_conf: of the cluster that refused; empty: the default one.
    """
    from hpctrain.plan.site.hint import site_hint  # only after a refusal

    hint = site_hint(words, request, ask_site(SlurmCluster(slurm_conf), always_accounting=True))
    return f"\n{hint}" if hint else ""
