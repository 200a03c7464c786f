"""In what the ranks run: what is wrong with a container's request, and the words that start a rank in it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import NamedTuple

from hpctrain.config.schema import ContainerConfig
from hpctrain.errors import Problem
from hpctrain.plan.layout import Layout
from hpctrain.secret_text import redact_text

_REGISTRY = re.compile(r"(docker|oras|library|shub|https?|dockerd|podman)://\S+")
_ENROOT_IMAGE = re.compile(r"([\w.-]+@)?([\w.:-]+#)?[\w./-]+(:[\w.-]+)?")
_IMAGE_FILE = re.compile(r"[/~.].*|.*\.(sqsh|squashfs|sif|img|simg)")
_MOUNT_FLAGS = {
    "pyxis": frozenset(
        "ro rw bind rbind private rprivate shared rshared slave rslave nosuid nodev noexec x-create=dir".split()
    ),
    "apptainer": frozenset("ro rw image-src id".split()),
}
_RANK = '-u -m hpctrain.launch.rank_entry "$run_dir"'
"""What srun starts in every task: a named function with the path of its run, nothing pickled, no job id in any file's name."""


class Mount(NamedTuple):
    """One SOURCE:TARGET[:FLAGS]."""

    source: str
    target: str
    flags: str = ""


def is_image_file(container: ContainerConfig) -> bool:
    """Whether the image is a file of this cluster and not one of a registry.

    >>> [is_image_file(ContainerConfig("pyxis", image)) for image in ("./a.sqsh", "/a", "nvcr.io#nvidia/pytorch:25.01-py3")]
    [True, True, False]
    """
    if container.image is None or _REGISTRY.fullmatch(container.image):
        return False
    # apptainer takes everything without :// for a path.
    return container.runtime == "apptainer" or _IMAGE_FILE.fullmatch(container.image) is not None


def parse_mount(text: str) -> Mount:
    """The parts of a mount; a source alone is mounted at its own path.

    Raises:
        ValueError: what is wrong with it.

    >>> parse_mount("/data:/mnt/data:ro"), parse_mount("/scratch")
    (Mount(source='/data', target='/mnt/data', flags='ro'), Mount(source='/scratch', target='/scratch', flags=''))
    """
    source, _, rest = text.partition(":")
    target, _, flags = rest.partition(":")
    if "," in text:
        raise ValueError("a comma parts two mounts, so a path cannot hold one")
    if not source.startswith("/") or (rest and not target.startswith("/")) or ":" in flags or text.endswith(":"):
        raise ValueError("must be SOURCE:TARGET or SOURCE:TARGET:FLAGS with absolute paths")
    return Mount(source, target or source, flags)


def container_problems(container: ContainerConfig) -> list[Problem]:
    """What is wrong with the keys of ``cluster.container``."""
    key = "cluster.container"
    if container.runtime == "none":
        said = [name for name in ("image", "mounts", "python", "args") if getattr(container, name)]
        fix = "set cluster.container.runtime=pyxis or apptainer"
        return [Problem(f"{key}.{name}", _words(getattr(container, name)), "needs a runtime", fix) for name in said]
    problems = []
    if container.image is None:
        rule, fix = "needs an image", f"set {key}.image=FILE or a registry's URI, or {key}.runtime=none"
        problems.append(Problem(f"{key}.runtime", container.runtime, rule, fix))
    elif not is_image_file(container):
        problems += _registry_problems(container.runtime, container.image)
    if container.python is not None and not container.python.startswith("/"):
        rule = "must be an absolute path inside the image: another python may come first on its PATH"
        problems.append(Problem(f"{key}.python", container.python, rule, "such as /usr/bin/python3"))
    for text in container.mounts:
        try:
            mount = parse_mount(text)
        except ValueError as error:
            problems.append(Problem(f"{key}.mounts", text, str(error), "such as /data:/data:ro"))
            continue
        known = _MOUNT_FLAGS[container.runtime]
        unknown = [flag for flag in re.split(r"[+,]", mount.flags) if flag and flag not in known]
        if unknown:
            rule = f"{container.runtime} has no flag {unknown[0]!r}"
            problems.append(Problem(f"{key}.mounts", text, rule, f"known: {', '.join(sorted(known))}"))
    problems += [
        Problem(
            f"{key}.args",
            word,
            "would be taken for the image or the program",
            "write an option and its value as one word",
        )
        for word in container.args
        if not word.startswith("-")
    ]
    texts = (container.image or "", container.python or "", *container.mounts, *container.args)
    problems += [
        Problem(key, repr(text), "must be printable and on one line", "take the sign out")
        for text in texts
        if not text.isprintable()
    ]
    return problems


def _registry_problems(runtime: str, image: str) -> list[Problem]:
    if _REGISTRY.fullmatch(image) or (runtime == "pyxis" and _ENROOT_IMAGE.fullmatch(image)):
        return []
    fix = "an absolute path, docker://REGISTRY/IMAGE:TAG, or for pyxis REGISTRY#IMAGE:TAG"
    return [Problem("cluster.container.image", image, "is neither a file nor an image of a registry", fix)]


def _words(value: str | tuple[str, ...] | None) -> str:
    return value if isinstance(value, str) else ",".join(value or ())


def container_warnings(container: ContainerConfig, layout: Layout) -> tuple[str, ...]:
    """What is allowed and slow at size."""
    if container.runtime == "none" or container.image is None or is_image_file(container):
        return ()
    who = f"each of {layout.num_nodes} nodes" if container.runtime == "pyxis" else f"each of {layout.world_size} ranks"
    file = "enroot import" if container.runtime == "pyxis" else "apptainer build"
    return (
        f"cluster.container.image={redact_text(container.image)}: {who} fetches it at the start; {file} makes a file of it once",
    )


def srun_container_words(container: ContainerConfig, snapshot: str, names: Sequence[str]) -> list[str]:
    """Words of srun for pyxis, in the script's spelling; none for other runtimes.

    Args:
        container: checked by ``container_problems``.
        snapshot: folder of the package's copy; empty: the image has the package.
        names: variables that must be in the ranks as they are here, whatever the image sets.
    """
    if container.runtime != "pyxis":
        return []
    mounts = ",".join(_mount_words(container, snapshot))
    return [
        f"--container-image={shlex.quote(container.image or '')}",
        f"--container-mounts={mounts}",
        '--container-workdir="$run_dir"',
        "--no-container-mount-home",
        f"--container-env={','.join(names)}",
        *map(shlex.quote, container.args),
    ]


def rank_command(container: ContainerConfig, snapshot: str, has_gpus: bool) -> str:
    """The command of one rank in the script's spelling."""
    python = '"$python"' if container.python is None or container.runtime == "none" else shlex.quote(container.python)
    if container.runtime != "apptainer":
        return f"{python} {_RANK}"
    binds = [f"--bind={mount}" for mount in _mount_words(container, snapshot)]
    words = [
        "apptainer exec",
        *(["--nv"] if has_gpus else []),
        "--no-home",
        '--pwd="$run_dir"',
        *binds,
        *map(shlex.quote, container.args),
        shlex.quote(container.image or ""),
    ]
    return f"{' '.join(words)} {python} {_RANK}"


def export_lines(container: ContainerConfig, names: Sequence[str]) -> list[str]:
    """What makes variables of the host win over those that an apptainer image sets; pyxis has an option for it."""
    if container.runtime != "apptainer":
        return []
    return [f'for name in {" ".join(names)}; do export "APPTAINERENV_$name=${{!name-}}"; done']


def _mount_words(container: ContainerConfig, snapshot: str) -> list[str]:
    own = ['"$run_dir":"$run_dir"']
    if snapshot:
        own.append(f"{shlex.quote(snapshot)}:{shlex.quote(snapshot)}:ro")
    return [*own, *(shlex.quote(text if ":" in text else f"{text}:{text}") for text in container.mounts)]
