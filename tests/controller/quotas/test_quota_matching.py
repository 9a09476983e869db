"""Which quota bounds a client: held to the order of precedence that Kafka's documentation prints."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from tidelog.metadata_quorum.image.quota_matching import Bound, Quotas, bound_of, connection_rate_of
from tidelog.model.client_quotas import ClientQuotaEntity
from tidelog.proto.calls.quota_api import QuotaEntity, wire_entity

DOCUMENTED = """\
/config/users/<user>/clients/<client-id>
/config/users/<user>/clients/<default>
/config/users/<user>
/config/users/<default>/clients/<client-id>
/config/users/<default>/clients/<default>
/config/users/<default>
/config/clients/<client-id>
/config/clients/<default>
"""
"""As in "Quota Configuration" of Kafka's documentation (design, quotas)."""

NAMES = ("alice", "bob", "<default>", "")
KEYS = ("producer_byte_rate", "consumer_byte_rate")

entities = st.builds(
    ClientQuotaEntity,
    user=st.sampled_from([None, "", "alice", "bob", "<default>"]),
    client_id=st.sampled_from([None, "", "alice", "bob", "<default>"]),
).filter(lambda entity: entity != ClientQuotaEntity())
quotas_set = st.dictionaries(
    entities, st.dictionaries(st.sampled_from(KEYS), st.integers(1, 10**6).map(float), min_size=1), max_size=12
)


def documented(set_to: dict[ClientQuotaEntity, dict[str, float]], key: str, user: str, client: str) -> Bound | None:
    """Go down the documented list, word for word."""
    for line in DOCUMENTED.splitlines():
        found = re.fullmatch(r"/config(?:/users/(<\w+>))?(?:/clients/(<[\w-]+>))?", line)
        assert found is not None
        users, clients = found.groups()
        wanted = ClientQuotaEntity(
            None if users is None else "" if users == "<default>" else user,
            None if clients is None else "" if clients == "<default>" else client,
        )
        if clients is not None and not client:
            continue  # ClientQuotaManager: without a client id, no quota that is shared by client id applies
        if key in set_to.get(wanted, {}):
            return Bound(set_to[wanted][key], user if users else "", client if clients else "")
    return None


@given(quotas_set, st.sampled_from(KEYS), st.sampled_from(NAMES[:3]), st.sampled_from(NAMES))
def test_the_most_specific_quota_bounds(
    set_to: dict[ClientQuotaEntity, dict[str, float]], key: str, user: str, client: str
) -> None:
    image = {wire_entity(entity): values for entity, values in set_to.items()}
    assert bound_of(image, key, user, client) == documented(set_to, key, user, client)


def test_every_line_of_the_documentation_decides_once() -> None:
    """The quotas go one by one, from the top; each time the next line holds."""
    user, client = "alice", "app"
    lines = [
        ClientQuotaEntity(user, client),
        ClientQuotaEntity(user, ""),
        ClientQuotaEntity(user),
        ClientQuotaEntity("", client),
        ClientQuotaEntity("", ""),
        ClientQuotaEntity(""),
        ClientQuotaEntity(None, client),
        ClientQuotaEntity(None, ""),
    ]
    image = {wire_entity(entity): {KEYS[0]: float(number + 1)} for number, entity in enumerate(lines)}
    for number, entity in enumerate(lines):
        found = bound_of(image, KEYS[0], user, client)
        assert found is not None
        assert found.limit == number + 1
        del image[wire_entity(entity)]
    assert bound_of(image, KEYS[0], user, client) is None


def test_an_address_has_its_own_rate_or_the_default() -> None:
    quotas: Quotas = {
        (QuotaEntity("ip", "10.0.0.1"),): {"connection_creation_rate": 3.0},
        (QuotaEntity("ip", None),): {"connection_creation_rate": 7.0},
    }
    assert connection_rate_of(quotas, "10.0.0.1") == 3.0
    assert connection_rate_of(quotas, "10.0.0.2") == 7.0
    assert connection_rate_of({}, "10.0.0.2") is None
