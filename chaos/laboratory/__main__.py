"""``python -m tidelog.chaos.laboratory``."""

import sys


def _main() -> int:
    try:
        from tidelog.chaos.laboratory.command import main
    except ModuleNotFoundError as missing:
        if missing.name != "toxiproxy":
            raise
        print("chaos: expected the package toxiproxy-python, found none: pip install 'tidelog[chaos]'", file=sys.stderr)
        return 2
    return main()


if __name__ == "__main__":
    sys.exit(_main())
