"""``python -m hpctrain``."""

import gc
import sys

# A command makes many objects that stay, and hardly any garbage: at Python's 700 it would look through them every few ms.
gc.set_threshold(100_000)
try:
    from hpctrain.cli import main
except KeyboardInterrupt:  # Ctrl-C before anything has begun
    sys.exit(130)

if __name__ == "__main__":
    main()
