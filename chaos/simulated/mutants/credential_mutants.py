"""Patches of what decides whether credentials are good. Each breaks a promise of ``docs/security.md``."""

from __future__ import annotations

from functools import partial
from typing import Final

from tidelog.chaos.simulated.mutants.mutant import Edit, Mutant

_CHANGE: Final = "tidelog.metadata_quorum.image.change"
_LASTING: Final = "tidelog.proto.transport.lasting"
_LOGINS: Final = "tidelog.broker.access.logins"
_ROLE: Final = "tidelog.broker.node.broker_role"
_TOKENS: Final = "tidelog.security.delegation_tokens"
_TOKEN_CHANGES: Final = "tidelog.metadata_quorum.controller.token_changes"

mutant: Final = partial(Mutant, scenario="credentials")

MUTANTS: Final = (
    mutant(
        id="deleted-user-goes-on",
        rule="a deleted user is out with its next request",
        what="A user who logged in with a password is served until the login ends, even after the user was deleted.",
        module=_LOGINS,
        old="        return self._users.watch(accepted.name)\n",
        new="        return lambda: True\n",
    ),
    mutant(
        id="users-are-looked-for-once",
        rule="a deleted user is out with its next request",
        what="A login whose user was found once is served on, however the users have changed since.",
        module=_LOGINS,
        old="            if users is not seen:\n",
        new="            if seen is None:\n",
    ),
    mutant(
        id="password-is-remembered",
        rule="a changed password holds for the next login",
        what="A node accepts the first password that it ever saw of a user.",
        module=_LOGINS,
        old="        return self._image().users.get((name, mechanism)) or decoy\n",
        new="        found = self._image().users.get((name, mechanism))\n"
        "        if found is not None:\n"
        "            found = self._remembered.setdefault((name, mechanism), found)\n"
        "        return found or decoy\n",
        more=(
            Edit(
                _LOGINS,
                "        self._own_secret = secrets.token_bytes(_SALT_BYTES)\n",
                "        self._own_secret = secrets.token_bytes(_SALT_BYTES)\n        self._remembered = {}\n",
            ),
        ),
    ),
    mutant(
        id="logins-by-an-older-image",
        rule="credentials are good as the image in force says",
        what="Logins and their users are judged by the image that was in force a few checks ago.",
        module=_ROLE,
        old="        self._logins = NodeLogins(config, lambda: view.image, clock)\n",
        new="        old = [view.image]\n"
        "        self._logins = NodeLogins(config, lambda: (old.append(view.image), old[-20:][0])[1], clock)\n",
    ),
    mutant(
        id="expired-token-goes-on",
        rule="nobody logs in by an expired token",
        what="A token remains valid until somebody removes it.",
        module=_TOKENS,
        old="        return None if token is None or is_expired(token, self._now_ms()) else token\n",
        new="        return token\n",
    ),
    mutant(
        id="removed-token-goes-on",
        rule="a removed token is out with its next request",
        what="A user who logged in with a token is served until the login ends, even after the token was removed.",
        module=_LOGINS,
        old="return lambda: tokens.is_valid(accepted.delegation_token)",
        new="return lambda: True",
    ),
    mutant(
        id="image-keeps-a-removed-token",
        rule="expired tokens are swept away",
        what="An image keeps a token that the log removes.",
        module=_CHANGE,
        old="                self._delegation_tokens.drop(record.token_id)\n",
        new="                pass\n",
    ),
    mutant(
        id="login-without-end",
        rule="after connections.max.reauth.ms nothing is served under a login (KIP-368)",
        what="A login lasts until its user is deleted.",
        module=_LOGINS,
        old="        return (self.ends_s is not None and now_s > self.ends_s) or not self.still()\n",
        new="        return not self.still()\n",
    ),
    mutant(
        id="stream-outlives-its-login",
        rule="a stream ends with the login behind it",
        what="A stream's frames are served even after the login under which it was opened has ended.",
        module=_LASTING,
        old="        if not self._lasts():\n",
        new="        if False:\n",
    ),
    mutant(
        id="renewal-beyond-the-longest-life",
        rule="a token lives no longer than delegation.token.max.lifetime.ms, renewals included",
        what="Each renewal counts from now, whatever the token's maximum lifetime.",
        module=_TOKEN_CHANGES,
        old="        until_ms = min(now_ms + period_ms, found.max_timestamp_ms)\n",
        new="        until_ms = now_ms + period_ms\n",
    ),
    mutant(
        id="expired-token-is-renewed",
        rule="nobody renews an expired token",
        what="The controller renews any token that still exists.",
        module=_TOKEN_CHANGES,
        old="            # In this order, as in Kafka; to expire one it is the other way round.\n"
        "            found = _unless_expired(found, now_ms)\n",
        new="            pass\n",
    ),
)
