"""Patches of what decides who may do what. Each breaks a promise of ``docs/security.md``."""

from __future__ import annotations

from functools import partial
from typing import Final

from tidelog.chaos.simulated.mutants.mutant import Mutant

_ACCESS: Final = "tidelog.broker.access.access"
_AUTHORIZER: Final = "tidelog.security.authorizer"
_CHANGE: Final = "tidelog.metadata_quorum.image.change"
_CHANGES: Final = "tidelog.metadata_quorum.controller.acl_changes"
_GUARD: Final = "tidelog.broker.access.guard"

mutant: Final = partial(Mutant, scenario="access")

MUTANTS: Final = (
    mutant(
        id="revoked-right-stays",
        rule="no right outlives the image",
        what="A node learns that an entry was removed and keeps deciding by it.",
        module=_ACCESS,
        old="                self.authorizer.remove(acl_id)\n                continue\n",
        new="                continue\n",
    ),
    mutant(
        id="change-of-rights-goes-unsaid",
        rule="no right outlives the image",
        what="An image drops an entry, but the report of its changes omits that.",
        module=_CHANGE,
        old="                self._acls.drop(record.acl_id)\n                self._acls_changed.add(record.acl_id)\n",
        new="                self._acls.drop(record.acl_id)\n",
    ),
    mutant(
        id="decision-cached-for-ever",
        rule="no right outlives the image",
        what="A cached decision stays valid until the cache is full, whatever entries are added or removed.",
        module=_AUTHORIZER,
        old="    def _changed(self) -> None:\n        self._cached.clear()\n",
        new="    def _changed(self) -> None:\n",
    ),
    mutant(
        id="restarted-node-knows-no-rights",
        rule="a node decides as its image says",
        what="A starting node takes over all of its metadata except the entries, and denies what is allowed.",
        module=_CHANGE,
        old="        acls=frozenset(acl for acl in {*old.acls, *new.acls}",
        new="        acls=frozenset(acl for acl in {*old.acls}",
    ),
    mutant(
        id="first-entry-decides",
        rule="an entry that denies comes before all that allow",
        what="After an entry that allows, nobody looks for one that denies.",
        module=_AUTHORIZER,
        old="                if acl.permission is PermissionType.DENY:\n"
        "                    if acl.operation is _ALL or acl.operation is operation:\n",
        new="                if acl.permission is PermissionType.DENY:\n"
        "                    if allowing is None and (acl.operation is _ALL or acl.operation is operation):\n",
    ),
    mutant(
        id="whoever-describes-may-read",
        rule="every request has the permission that it needs",
        what="A fetch on a stream requires DESCRIBE, which a writer has too.",
        module=_GUARD,
        old="        faults = [topic_by_id(image, part.topic_id, access, READ) for part in request.partitions]\n",
        new="        from tidelog.broker.access.resources import DESCRIBE\n\n"
        "        faults = [topic_by_id(image, part.topic_id, access, DESCRIBE) for part in request.partitions]\n",
    ),
    mutant(
        id="controller-trusts-brokers",
        rule="the active controller judges a change for the client that a broker names",
        what="A controller executes what a broker forwards, although the broker judged it by an older image.",
        module="tidelog.broker.access.forwarded",
        old="        return await rule(request, access, image(), lambda passed: handler(passed, context))\n",
        new="        return await handler(request, context)\n",
    ),
    mutant(
        id="revocation-is-not-stored",
        rule="what an administrator was told is so",
        what="An administrator learns that an entry was deleted, but sometimes it stays.",
        module=_CHANGES,
        old="    return Decision(tuple(gone.values()), DeleteAclsResponse(ErrorCode.NONE, tuple(results)))\n",
        new="    kept = () if len(image.acls) % 3 == 0 else tuple(gone.values())\n"
        "    return Decision(kept, DeleteAclsResponse(ErrorCode.NONE, tuple(results)))\n",
    ),
)
