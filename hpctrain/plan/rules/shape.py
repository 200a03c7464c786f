"""Model shapes that can be, and that nobody trains: most often a slip in a number."""

from __future__ import annotations

from hpctrain.plan.model_shape import ModelShape

USUAL_HEAD_DIMS = (8, 1_024)
"""64 to 256 are usual, toys have 16 and 32."""
MOST_HEADS_WIDTH = 4.0
"""Times the hidden size what all heads are wide together; in use are up to 2 (Qwen3-0.6B, 16 x 128 of 1,024)."""
USUAL_FFN_SHARES = (0.25, 64.0)
"""Of the hidden size; in use are 0.375 (an expert of Qwen3-30B-A3B, 768 of 2,048) to 64 (T5-11B, 65,536 of 1,024)."""


def shape_warnings(shape: ModelShape) -> list[str]:
    """What is outside of all that is in use."""
    warnings = []
    least, most = USUAL_HEAD_DIMS
    if not least <= shape.head_dim <= most:
        warnings.append(
            f"model.head_dim={shape.head_dim} (of {shape.num_heads} heads at model.hidden_size={shape.hidden_size}): usual are 64"
            " to 256"
        )
    width = shape.num_heads * shape.head_dim
    if width > MOST_HEADS_WIDTH * shape.hidden_size:
        warnings.append(
            f"model.num_heads={shape.num_heads} x model.head_dim={shape.head_dim} = {width:,} is"
            f" {width / shape.hidden_size:.3g} x model.hidden_size={shape.hidden_size}; in use are up to 2"
        )
    share = shape.ffn_hidden_size / shape.hidden_size
    if not USUAL_FFN_SHARES[0] <= share <= USUAL_FFN_SHARES[1]:
        warnings.append(
            f"model.ffn_hidden_size={shape.ffn_hidden_size} is {share:.2g} x model.hidden_size={shape.hidden_size}; usual are 2.6"
            " to 8"
        )
    return warnings
