"""The permission that each request needs, one row per request, in tables by subject. A request without a row cannot be
served.

Operations, resources and errors are Kafka's (``KafkaApis``, ``ControllerApis``). A topic that the sender may not
describe is indistinguishable from a missing one: by name both give TOPIC_AUTHORIZATION_FAILED, by id both give
UNKNOWN_TOPIC_ID.
"""

from __future__ import annotations

from typing import Any, Final

from tidelog.broker.access.cluster_permissions import CLUSTER
from tidelog.broker.access.group_permissions import GROUPS
from tidelog.broker.access.rules import Rule
from tidelog.broker.access.topic_permissions import TOPICS
from tidelog.broker.access.transaction_permissions import TRANSACTIONS
from tidelog.proto.calls.request import Request

PERMISSIONS: Final[dict[type[Request[Any]], Rule]] = {**CLUSTER, **TOPICS, **GROUPS, **TRANSACTIONS}
"""Requests by a broker's clients. For requests from brokers to controllers, see :mod:`tidelog.broker.access.nodes`."""
