"""Reports of data loss: an error, or a warning if ``failOnDataLoss`` is false."""

from __future__ import annotations

import logging
from collections.abc import Sequence

log = logging.getLogger(__name__)


class DataLoss(RuntimeError):
    """Records that the query should have read are gone."""


def report(losses: Sequence[str], *, fail: bool) -> None:
    """Raise :class:`DataLoss` with Spark's words if there is a loss that must not be tolerated, else warn of it."""
    if not losses:
        return
    reason = " ".join(losses)
    missing = (
        "Some data may have been lost because they are not available in Tidelog any more; either the data was aged out "
        "by Tidelog or the topic may have been deleted before all the data in the topic was processed."
    )
    if fail:
        raise DataLoss(
            f"{missing} If you don't want your streaming query to fail on such cases, set the source option "
            f"failOnDataLoss to false. Reason: {reason}"
        )
    log.warning("%s Reason: %s", missing, reason)
