"""Token files: Megatron's ``.bin`` and ``.idx`` with a manifest, and how text becomes them."""
