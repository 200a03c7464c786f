"""Values as a user types them for Hydra and the shell: each comes back as it was."""

from __future__ import annotations

import shlex

import pytest

from hpctrain.config.compose import compose_points, parse_override
from hpctrain.config.hydra_text import hydra_text, typed_override
from hpctrain.errors import ConfigError

VALUES = [
    *(
        "data/books",
        "~/x",
        "a b",
        'it\'s $HOME "q" \u00e9#=,{x}%j',
        "null",
        "True",
        "nan",
        "12",
        "2024_11",
        "1e5",
        "",
        "-x",
    ),
    *(
        "a\\b",
        "x\\",
        'a\\"b',
        "\\\\\\",
        'c:\\d\\"',
        "a,b",
        "[x]",
        "{a: 1}",
        "f(x)",
        " x ",
        "a:b",
        "${oc.env:HOME}",
        "*",
        "!",
    ),
]


@pytest.mark.parametrize("value", VALUES)
def test_a_value_comes_back_as_it_was(value: str) -> None:
    (word,) = shlex.split(typed_override("data.path", value))
    found = parse_override(word).value()
    assert (type(found) is not bool and found is not None and str(getattr(found, "text", found))) == value


def test_a_blend_of_paths_that_hydra_has_no_keys_for() -> None:
    blend = 'data.blend={"/x y": 1, /z=a: 2, /d/\u00e9#b: 3}'
    with pytest.raises(ConfigError, match=r"type 'data\.blend=") as caught:
        compose_points(["model=tiny", "data=tokens", blend], False, ())
    (advised,) = shlex.split(str(caught.value).partition("; type ")[2])
    assert advised == f"data.blend={hydra_text(blend.partition('=')[2])}"
    (point,) = compose_points(["model=tiny", "data=tokens", advised], False, ())
    assert point.config.data.blend == {"/x y": 1, "/z=a": 2, "/d/\u00e9#b": 3}
