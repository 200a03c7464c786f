"""Asks Slurm what this cluster has, with a few commands at once. A question without an answer is a gap, never an error."""

from __future__ import annotations

import grp
import os
import pwd
import threading
from collections.abc import Callable
from typing import NamedTuple

from hpctrain.launch.site import accounting_formats
from hpctrain.launch.site import formats as site_formats
from hpctrain.launch.slurm.states import SlurmCluster
from hpctrain.plan.site.limits import Accounting, Site

_TIMEOUT_S = 10.0
"""A controller that is away lets its clients wait about 9 s; nobody waits longer for a question that can be left open."""
_CONTROLLER = {
    "config": ("scontrol", "show", "config"),
    "partitions": ("scontrol", "-a", "--oneliner", "show", "partition"),
    "nodes": ("scontrol", "-a", "--oneliner", "show", "node"),
    "reservations": ("scontrol", "-a", "--oneliner", "show", "reservation"),
}
_ALL_ENFORCED = frozenset({"associations", "limits", "qos"})
_IMPLY_ASSOCIATIONS = frozenset({"limits", "qos", "safe", "wckeys"})


class _Answer(NamedTuple):
    text: str = ""
    trouble: str = ""


class SiteQuestion:
    """Slurm is being asked, in threads, while the caller does other work; ``site()`` waits for the answers.

    The threads are daemons: a caller that ends for another reason does not wait for them.
    """

    def __init__(self, cluster: SlurmCluster, always_accounting: bool = False) -> None:
        """Begins to ask.

        Args:
            cluster: whom to ask.
            always_accounting: ask the database also where none of its limits binds.
        """
        self._cluster = cluster
        self._always_accounting = always_accounting
        self._answers: dict[str, _Answer] = {}
        self._threads = [self._start(self._ask, name, command) for name, command in _CONTROLLER.items()]

    def site(self) -> Site:
        """What the cluster answered; what it did not is in ``gaps``."""
        for thread in self._threads:
            thread.join()
        return _site(self._answers)

    def _start(self, function: Callable[..., None], *arguments: object) -> threading.Thread:
        thread = threading.Thread(target=function, args=arguments, daemon=True)
        thread.start()
        return thread

    def _ask(self, name: str, command: tuple[str, ...]) -> None:
        self._answers[name] = _run(self._cluster, command)
        if name == "config":
            self._ask_accounting(site_formats.config_values(self._answers[name].text))

    def _ask_accounting(self, config: dict[str, str]) -> None:
        """The database is asked only where its rules bind, or where someone wants to see them."""
        if not _has_accounting(config) or not (self._always_accounting or _enforced(config)):
            return
        cluster, user = config.get("clustername", ""), _user_name()
        commands = {
            "users": ("sacctmgr", "-P", "show", "user", user, "withassoc", f"format={accounting_formats.USER_FORMAT}"),
            "accounts": (
                *("sacctmgr", "-P", "show", "assoc", "where", "user=", f"cluster={cluster}"),
                f"format={accounting_formats.ACCOUNT_FORMAT}",
            ),
            "qos": ("sacctmgr", "-P", "show", "qos"),
        }
        # sacctmgr knows no -M; one database serves all clusters of it.
        database = SlurmCluster(self._cluster.slurm_conf)
        threads = [self._start(self._ask_database, database, name, command) for name, command in commands.items()]
        for thread in threads:
            thread.join()

    def _ask_database(self, database: SlurmCluster, name: str, command: tuple[str, ...]) -> None:
        self._answers[name] = _run(database, command)


def start_asking(always_accounting: bool = False) -> SiteQuestion:
    """Asks the cluster that this shell selects; the answers come while the caller does other work."""
    return SiteQuestion(SlurmCluster(os.environ.get("SLURM_CONF", "")), always_accounting)


def ask_site(cluster: SlurmCluster, always_accounting: bool = False) -> Site:
    """Asks and waits, see ``SiteQuestion``."""
    return SiteQuestion(cluster, always_accounting).site()


def _run(cluster: SlurmCluster, command: tuple[str, ...]) -> _Answer:
    text, trouble = cluster.ask(command, _TIMEOUT_S)
    return _Answer("" if trouble else text, trouble)


def _site(answers: dict[str, _Answer]) -> Site:
    """The answers as values; an empty list of partitions or nodes is hidden (PrivateData) rather than true."""
    config = site_formats.config_values(answers["config"].text)
    nodes = site_formats.nodes(answers["nodes"].text) or None
    partitions = site_formats.partitions(answers["partitions"].text, nodes, config) or None
    reservations = None
    if not answers["reservations"].trouble:
        reservations = site_formats.reservations(answers["reservations"].text)
    accounting = _accounting(answers, config.get("clustername", ""))
    uid = os.getuid()
    return Site(
        cluster=config.get("clustername", ""),
        version=config.get("slurm_version", ""),
        user=_user_name(),
        user_groups=_group_names() if any(found.allow_groups for found in (partitions or {}).values()) else (),
        is_root=uid == 0,
        max_array_size=site_formats.limit(config.get("maxarraysize", "")),
        max_job_count=site_formats.limit(config.get("maxjobcount", "")),
        select_type=config.get("selecttype", ""),
        gres_types=site_formats.names(config["grestypes"]) if "grestypes" in config else None,
        enforce=_enforced(config),
        enforce_part_limits=config.get("enforcepartlimits", "NO"),
        job_requeue=config.get("jobrequeue", "1").lower() not in ("0", "no"),
        job_submit_plugins=site_formats.names(config.get("jobsubmitplugins", "")),
        licenses=site_formats.names(config.get("licenses", "")),
        has_accounting=_has_accounting(config),
        partitions=partitions,
        nodes=nodes,
        reservations=reservations,
        accounting=accounting,
        gaps=_gaps(answers, partitions is None, nodes is None),
    )


def _gaps(answers: dict[str, _Answer], no_partitions: bool, no_nodes: bool) -> tuple[str, ...]:
    troubles: dict[str, list[str]] = {}
    for name, answer in answers.items():
        if answer.trouble:
            troubles.setdefault(answer.trouble, []).append(name)
    gaps = [f"{', '.join(names)} could not be asked: {trouble}" for trouble, names in troubles.items()]
    hidden = {"partitions": no_partitions, "nodes": no_nodes}
    gaps += [
        f"{name}: the site shows none (it may hide them from users)"
        for name, is_empty in hidden.items()
        if is_empty and not answers[name].trouble
    ]
    return tuple(gaps)


def _accounting(answers: dict[str, _Answer], cluster: str) -> Accounting | None:
    """None where the database was not asked, or one of its answers is missing."""
    tables = [answers.get(name, _Answer(trouble="not asked")) for name in ("users", "accounts", "qos")]
    if any(table.trouble for table in tables):
        return None
    users, accounts, qos = (table.text for table in tables)
    return accounting_formats.accounting(users, accounts, qos, cluster)


def _has_accounting(config: dict[str, str]) -> bool:
    return config.get("accountingstoragetype", "").endswith("slurmdbd")


def _enforced(config: dict[str, str]) -> frozenset[str]:
    """The words of AccountingStorageEnforce with what they imply. Source: slurm.conf(5)."""
    words = {word.lower() for word in site_formats.names(config.get("accountingstorageenforce", ""))} - {"0"}
    if "all" in words or "1" in words:
        words |= _ALL_ENFORCED
    if words & _IMPLY_ASSOCIATIONS:
        words.add("associations")
    if "safe" in words:
        words.add("limits")
    return frozenset(words)


def _user_name() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a user of a directory service that this machine does not know
        return str(os.getuid())


def _group_names() -> tuple[str, ...]:
    """The user's groups as the system's database has them now, as Slurm sees them, and those of this process."""
    numbers = {os.getgid(), *os.getgroups()}
    try:
        user = pwd.getpwuid(os.getuid())
        numbers |= set(os.getgrouplist(user.pw_name, user.pw_gid))
    except KeyError:  # a user of a directory service that this machine does not know
        pass
    found = []
    for group in numbers:
        try:
            found.append(grp.getgrgid(group).gr_name)
        except KeyError:  # a number without a name
            continue
    return tuple(sorted(found))
