"""Shell text in a configuration, where ``${...}`` is OmegaConf's and not the shell's."""

from __future__ import annotations


def shell_variable_hint(key: str) -> str:
    r"""What to add to a failed interpolation where a variable of the shell was meant.

    >>> print(shell_variable_hint("cluster.setup[0]"))
    ; here ${...} is filled in from the configuration: write a variable of the shell as $NAME or \${NAME}
    >>> shell_variable_hint("run.note")
    ''
    """
    if not key.startswith("cluster.setup"):
        return ""
    return r"; here ${...} is filled in from the configuration: write a variable of the shell as $NAME or \${NAME}"
