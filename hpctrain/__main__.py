"""``python -m hpctrain``."""

import sys

try:
    from hpctrain.cli import main
except KeyboardInterrupt:  # Ctrl-C before anything has begun
    sys.exit(130)

if __name__ == "__main__":
    main()
