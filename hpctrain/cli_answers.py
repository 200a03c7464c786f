"""Questions about the program or the configuration (--help, and those that Hydra answers), whatever the verb."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence

from hpctrain.errors import EXIT_OK, ConfigError

_HYDRA_FLAGS = ("--hydra-help", "--info", "-i", "--shell-completion", "-sc")
_HYDRA_VERBS = ("submit", "plan", "rehearse")


def answer_flag(words: Sequence[str]) -> int | None:
    """Answers a question about the program or the configuration; None if the words ask none."""
    if any(word in ("--help", "-h") for word in words):
        from hpctrain.help_text import help_text

        print(help_text())
        return EXIT_OK
    if any(word in _HYDRA_FLAGS for word in words):
        return _hydra_answers(words)
    return None


def _hydra_answers(words: Sequence[str]) -> int:
    """Hydra's own questions (--info, --hydra-help, --shell-completion), answered by Hydra."""
    completing = [word for word in words if word in ("--shell-completion", "-sc")]
    if completing and not any(word.startswith(("install=", "uninstall=", "query=")) for word in words):
        raise ConfigError(f"{completing[0]}: must be followed by install=SHELL or uninstall=SHELL (bash, zsh, fish)")
    import hydra
    from hydra.errors import HydraException

    from hpctrain.config.compose import CONFIG_NAME, config_dir

    sys.argv = [sys.argv[0], *words]
    if line := os.environ.get("COMP_LINE"):
        # Hydra completes overrides; a verb before them is ours.
        os.environ["COMP_LINE"] = re.sub(rf"^(\S+) ({'|'.join(_HYDRA_VERBS)}) ", r"\1 ", line)
    try:
        hydra.main(version_base="1.3", config_path=str(config_dir()), config_name=CONFIG_NAME)(lambda config: None)()
    except HydraException as error:
        raise ConfigError(str(error)) from None
    return EXIT_OK
