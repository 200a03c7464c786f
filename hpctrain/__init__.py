"""hpctrain: plan, launch and measure large-model training on HPC clusters."""

__version__ = "0.1.0"
