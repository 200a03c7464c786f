"""Whether a container's image is there and shows the ranks what they need; asked before anything is written."""

from __future__ import annotations

import os
from pathlib import PurePosixPath

from hpctrain.config.schema import Config
from hpctrain.errors import ConfigError, Problem
from hpctrain.plan.job.container import is_image_file, parse_mount
from hpctrain.plan.rules.data import named_paths
from hpctrain.user_path import user_path


def check_container(config: Config, python: str) -> None:
    """Looks at the image, and for what must be mounted.

    Args:
        config: with a container that ``container_problems`` has nothing against.
        python: the submitting interpreter, which the ranks use unless cluster.container.python names another.

    Raises:
        ConfigError: all that is wrong.
    """
    container = config.cluster.container
    if container.runtime == "none" or container.image is None:
        return
    problems = _image_problems(container.image) if is_image_file(container) else []
    root = str(user_path(config.run.root))
    if "," in root or ":" in root:
        rule = "a container's mounts are parted by commas and colons, so the run folder's path cannot have them"
        problems.append(Problem("run.root", config.run.root, rule, "choose a folder without them"))
    if container.python is None and not _is_mounted(python, container.mounts):
        rule = f"the ranks would use {python}, which is not mounted"
        fix = "set it to an interpreter of the image, or mount that environment in cluster.container.mounts"
        problems.append(Problem("cluster.container.python", "null", rule, fix))
    for key, named in named_paths(config.data):
        path = user_path(named)
        if not _is_mounted(str(path), container.mounts):
            # Of token files a prefix is named, and there is no file of that name.
            needed = path.parent if config.data.kind == "tokens" else path
            fix = f"add '{needed}:{needed}:ro' to cluster.container.mounts"
            problems.append(Problem(key, named, "is not mounted in the container", fix))
    weights = config.training.init_from
    if weights is not None and not _is_mounted(str(user_path(weights)), container.mounts):
        folder = user_path(weights)
        fix = f"add '{folder}:{folder}:ro' to cluster.container.mounts"
        problems.append(Problem("training.init_from", weights, "is not mounted in the container", fix))
    if problems:
        raise ConfigError(problems)


def _image_problems(image: str) -> list[Problem]:
    key = "cluster.container.image"
    if not os.path.exists(image):
        fix = "give the path of an image on a file system that all nodes see, or a registry's URI such as docker://..."
        return [Problem(key, image, "there is no such file", fix)]
    if not os.access(image, os.R_OK):
        return [Problem(key, image, "may not be read by you", "chmod it, or take another image")]
    return []


def _is_mounted(path: str, mounts: tuple[str, ...]) -> bool:
    """Whether the path is the same file inside."""
    return any(
        mount.source == mount.target and PurePosixPath(path).is_relative_to(mount.target)
        for mount in map(parse_mount, mounts)
    )
