"""``./dev ecosystem NAME …``: runs foreign programs against clusters of its own and says of each what came of it."""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from tidelog.bench.ecosystem.check import Check
from tidelog.bench.ecosystem.checks import CHECKS
from tidelog.bench.ecosystem.installing import Missing

PASSED, FAILED, NOT_RUN = 0, 1, 2
ALL = "all"


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 if all passed; 1 if one failed; else 2 if one could not be run, or for wrong usage."""
    known = {check.name: check for check in CHECKS}
    parser = argparse.ArgumentParser(
        prog="./dev ecosystem",
        description="Programs of Kafka's ecosystem, unmodified, against Tidelog: "
        + "; ".join(f"{check.name} ({check.what})" for check in CHECKS)
        + f"; {ALL}.",
    )
    parser.add_argument("names", nargs="+", metavar="NAME", choices=[*known, ALL], help="which")
    parser.add_argument("--keep", action="store_true", help="keep the files of the run, and say where they are")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # stops what was started on the way out
    codes = [_run(known[name], options.keep) for name in (known if ALL in options.names else options.names)]
    return FAILED if FAILED in codes else max(codes)


def _run(check: Check, keep: bool) -> int:
    root = Path(tempfile.mkdtemp(prefix=f"tidelog-ecosystem-{check.name}-"))
    begun = time.monotonic()
    try:
        shown = check.run(root)
    except Missing as missing:
        print(f"NOT RUN  {check.name}: {missing}", flush=True)
        return NOT_RUN
    except Exception as trouble:
        traceback.print_exc()
        print(f"FAIL     {check.name} ({check.what}): {trouble}", flush=True)
        return FAILED
    finally:
        if keep:
            print(f"kept     {root}", file=sys.stderr)
        else:
            shutil.rmtree(root, ignore_errors=True)
    print(f"PASS     {check.name} ({check.what}), {time.monotonic() - begun:.0f} s: {shown}", flush=True)
    return PASSED


if __name__ == "__main__":
    sys.exit(main())
