"""``python -m hpctrain``."""

from hpctrain.cli import main

if __name__ == "__main__":
    main()
