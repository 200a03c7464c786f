"""The tables of ``sacctmgr -P`` as values: columns are found by their headings, which differ little between versions."""

from __future__ import annotations

from collections.abc import Mapping

from hpctrain.launch.site.formats import limit, names, time_s, tres
from hpctrain.plan.site.limits import Account, Accounting, Association, Limits, Qos

USER_FORMAT = (
    "User,DefaultAccount,Cluster,Account,Partition,QOS,DefaultQOS,MaxJobs,MaxSubmitJobs,MaxWall,MaxTRES,MaxTRESPerNode,"
    "GrpTRES,GrpJobs,GrpSubmitJobs"
)
"""Limits of a user's own come with those of his accounts filled in, but for the Grp ones."""
ACCOUNT_FORMAT = "Cluster,Account,User,ParentName,GrpTRES,GrpJobs,GrpSubmitJobs"

_HEADINGS = {
    "maxwall": ("max_wall_s", time_s),
    "maxwalldurationperjob": ("max_wall_s", time_s),
    "maxtres": ("max_tres", tres),
    "maxtresperjob": ("max_tres", tres),
    "maxtrespernode": ("max_tres_per_node", tres),
    "maxtrespu": ("max_tres_per_user", tres),
    "maxtresperuser": ("max_tres_per_user", tres),
    "maxtrespa": ("max_tres_per_account", tres),
    "maxtresperacct": ("max_tres_per_account", tres),
    "grptres": ("group_tres", tres),
    "mintres": ("min_tres", tres),
    "mintresperjob": ("min_tres", tres),
    "maxjobs": ("max_jobs", limit),
    "maxjobspu": ("max_jobs", limit),
    "maxjobsperuser": ("max_jobs", limit),
    "maxsubmit": ("max_submit", limit),
    "maxsubmitjobs": ("max_submit", limit),
    "maxsubmitpu": ("max_submit", limit),
    "maxsubmitjobsperuser": ("max_submit", limit),
    "grpjobs": ("group_jobs", limit),
    "grpsubmit": ("group_submit", limit),
    "grpsubmitjobs": ("group_submit", limit),
}
"""A heading in lower case without blanks to the field of ``Limits`` and its reader."""


def rows(text: str) -> list[dict[str, str]]:
    """The lines of a ``-P`` table by heading, headings in lower case without blanks."""
    lines = [line for line in text.splitlines() if "|" in line]
    if not lines:
        return []
    headings = [heading.replace(" ", "").lower() for heading in lines[0].split("|")]
    return [dict(zip(headings, line.split("|"), strict=False)) for line in lines[1:]]


def accounting(users: str, accounts: str, qos: str, cluster: str) -> Accounting:
    """What the three tables say of one cluster.

    Args:
        users: ``sacctmgr -P show user NAME withassoc format=`` ``USER_FORMAT``.
        accounts: ``sacctmgr -P show assoc where user= format=`` ``ACCOUNT_FORMAT``.
        qos: ``sacctmgr -P show qos``.
        cluster: its name; rows of others are left out.
    """
    # The database keeps names in lower case, and Slurm compares those of QOS without regard to it.
    of_cluster = [row for row in rows(users) if row.get("cluster", "").lower() == cluster.lower()]
    default = next((row.get("defacct") or row.get("defaultaccount", "") for row in of_cluster), "")
    return Accounting(
        default_account=default,
        associations=tuple(
            Association(
                account=row.get("account", ""),
                partition=row.get("partition", ""),
                qos=tuple(name.lower() for name in names(row.get("qos", ""))),
                default_qos=(row.get("defqos") or row.get("defaultqos", "")).lower(),
                limits=_limits(row),
            )
            for row in of_cluster
            if row.get("account")
        ),
        accounts={
            row["account"]: Account(row["account"], row.get("parentname", ""), _limits(row))
            for row in rows(accounts)
            if row.get("cluster", "").lower() == cluster.lower() and row.get("account") and not row.get("user")
        },
        qos={
            row["name"].lower(): Qos(row["name"].lower(), _limits(row), names(row.get("flags", "")))
            for row in rows(qos)
            if row.get("name")
        },
    )


def _limits(row: Mapping[str, str]) -> Limits:
    found: dict[str, object] = {}
    for heading, value in row.items():
        if heading in _HEADINGS and value:
            field, read = _HEADINGS[heading]
            found[field] = read(value)
    return Limits(**found)  # type: ignore[arg-type]
