"""Which calls change the cluster, and what the audit log records about each: names, and names of errors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import zip_longest
from typing import Any, Final

from tidelog.broker.access.access import AccessControl
from tidelog.broker.services import Calls
from tidelog.metadata_quorum.image.image import MetadataImage
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import TopicId, id_text
from tidelog.model.sinks import is_sinks
from tidelog.proto.calls.acl_api import (
    AclEntry,
    AclEntryFilter,
    CreateAclsRequest,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from tidelog.proto.calls.api import (
    AlterReplicaLogDirsRequest,
    AlterResource,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteRecordsRequest,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    IncrementalAlterConfigsRequest,
    UnregisterBrokerRequest,
    UpdateFeaturesRequest,
)
from tidelog.proto.calls.backup_api import (
    AdvanceProducerIdsRequest,
    HoldTransactionsRequest,
    ImportRecordsRequest,
    ImportRecordsResponse,
)
from tidelog.proto.calls.connection_api import CloseConnectionsRequest
from tidelog.proto.calls.delegation_token_api import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)
from tidelog.proto.calls.group_api import DeleteGroupsRequest, OffsetCommitRequest, OffsetDeleteRequest
from tidelog.proto.calls.quota_api import AlterClientQuotasRequest, QuotaAlteration
from tidelog.proto.calls.reassignment_api import (
    AlterPartitionReassignmentsRequest,
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionReassignment,
)
from tidelog.proto.calls.request import Request
from tidelog.proto.calls.sink_api import AbortJobRequest, DeleteSinkRequest
from tidelog.proto.calls.transaction_api import (
    PrepareTransactionRequest,
    PrepareTransactionResponse,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from tidelog.proto.calls.user_api import AlterUserScramCredentialsRequest, AlterUserScramCredentialsResponse
from tidelog.proto.transport.network import CallContext, CallHandler
from tidelog.security.acls import CLUSTER_NAME
from tidelog.security.audit import Audit, AuditEvent, AuditKind, Touched

UNKNOWN: Final = "OUTCOME_UNKNOWN"
"""Used instead of an error name: the call was abandoned before its answer."""
_NAMES_MAX: Final = 20
"""Maximum names listed per change; further ones are counted."""

Image = Callable[[], MetadataImage]
TokenAnswer = RenewDelegationTokenResponse | ExpireDelegationTokenResponse
Says = Callable[[Any, Any, MetadataImage], Iterable[Touched]]
"""Returns the changes of a request, from the request, its answer (``None`` if it was abandoned) and the metadata before
it."""


def _error(found: object) -> str:
    """Return the name of the error in an answer or result; empty if there is none."""
    error = getattr(found, "error", ErrorCode.NONE)
    return "" if error is ErrorCode.NONE else error.name


def _each(
    items: str, answered: str, said: Callable[[Any, MetadataImage], Touched], whole: Callable[[Any], bool] | None = None
) -> Says:
    """Report one change for each item of the request's field. Its error is that of the whole answer, or of the result
    at the same position in the answer's field. ``whole``: whether the request is a change at all."""

    def says(request: object, answer: object, image: MetadataImage) -> Iterable[Touched]:
        if getattr(request, "validate_only", False) or (whole is not None and not whole(request)):
            return
        asked: Sequence[Any] = getattr(request, items)
        results: Sequence[Any] = getattr(answer, answered, ())
        for item, result in zip_longest(asked, results[: len(asked)]):
            error = UNKNOWN if answer is None else _error(answer) or _error(result)
            yield said(item, image)._replace(error=error)

    return says


def _one(said: Callable[[Any], Touched]) -> Says:
    """Report a request that is one change."""

    def says(request: object, answer: object, _: MetadataImage) -> Iterable[Touched]:
        yield said(request)._replace(error=UNKNOWN if answer is None else _error(answer))

    return says


def _named(change: str = "") -> Callable[[Any, MetadataImage], Touched]:
    return lambda item, _: Touched("topic", item.name, change)


def _deleted_topics(
    request: DeleteTopicsRequest, answer: DeleteTopicsResponse | None, image: MetadataImage
) -> Iterable[Touched]:
    def name(topic_id: TopicId) -> str:
        topic = image.topics.get(topic_id)
        return id_text(topic_id) if topic is None else topic.name

    names = (*request.names, *map(name, request.topic_ids))
    results = () if answer is None else answer.topics
    for found, result in zip_longest(names, results[: len(names)]):
        yield Touched("topic", found, "", UNKNOWN if answer is None else _error(result))


def _settings(item: AlterResource, _: MetadataImage) -> Touched:
    named = [f"{each.operation} {each.name}" for each in item.changes[:_NAMES_MAX]]
    if len(item.changes) > _NAMES_MAX:
        named.append(f"{len(item.changes) - _NAMES_MAX} more")
    return Touched(item.resource.resource_type, item.resource.name, ", ".join(named))


def _quotas(item: QuotaAlteration, _: MetadataImage) -> Touched:
    parts = [
        f"{part.entity_type}={'<default>' if part.entity_name is None else part.entity_name}" for part in item.entity
    ]
    changes = [("delete " if each.value is None else "set ") + each.key for each in item.changes[:_NAMES_MAX]]
    return Touched("quota", ",".join(parts), ", ".join(changes))


def _users(
    request: AlterUserScramCredentialsRequest, answer: AlterUserScramCredentialsResponse | None, _: MetadataImage
) -> Iterable[Touched]:
    errors = {} if answer is None else {result.user: _error(result) for result in answer.results}
    whole = UNKNOWN if answer is None else _error(answer)
    changes = [(each.user, "delete the password") for each in request.deletions]
    changes += [(each.user, "set the password") for each in request.upsertions]
    for user, change in changes:
        yield Touched("user", user, change, whole or errors.get(user, ""))


def _new_token(
    request: CreateDelegationTokenRequest, answer: CreateDelegationTokenResponse | None, _: MetadataImage
) -> Iterable[Touched]:
    made = None if answer is None else answer.token
    owner = "the caller" if request.owner is None else request.owner
    error = UNKNOWN if answer is None else _error(answer)
    yield Touched("delegation_token", "" if made is None else made.token_id, f"create for {owner}", error)


def _old_token(change: str) -> Says:
    """Report a change of a token that is named by its secret; the answer contains its id."""

    def says(_: object, answer: TokenAnswer | None, __: MetadataImage) -> Iterable[Touched]:
        token_id = "" if answer is None else answer.token_id
        yield Touched("delegation_token", token_id, change, UNKNOWN if answer is None else _error(answer))

    return says


def _entry(entry: AclEntry | AclEntryFilter) -> Touched:
    change = f"{entry.permission} {entry.principal} from {entry.host}: {entry.operation} ({entry.pattern_type})"
    return Touched(entry.resource_type, entry.resource_name or "*", change)


def _deleted_entries(
    request: DeleteAclsRequest, answer: DeleteAclsResponse | None, _: MetadataImage
) -> Iterable[Touched]:
    """Report the deleted entries or, if a filter failed, the filter."""
    results = () if answer is None else answer.results
    for wanted, result in zip_longest(request.filters, results[: len(request.filters)]):
        error = UNKNOWN if answer is None else _error(answer) or _error(result)
        gone = () if result is None else result.entries
        yield from map(_entry, gone) if not error else (_entry(wanted)._replace(error=error),)


def _placed(item: PartitionReassignment, _: MetadataImage) -> Touched:
    to = "cancel" if item.cancel else f"to {','.join(map(str, item.replicas))}"
    return Touched("topic", item.topic, f"partition {item.partition} {to}")


def _partition(change: str) -> Callable[[Any, MetadataImage], Touched]:
    return lambda item, _: Touched("topic", item.topic, f"partition {item.partition}: {change}")


def _elected(
    request: ElectLeadersRequest, answer: ElectLeadersResponse | None, image: MetadataImage
) -> Iterable[Touched]:
    if request.all_partitions:
        error = UNKNOWN if answer is None else _error(answer)
        return (Touched("cluster", CLUSTER_NAME, f"{request.election} election of all leaders", error),)
    return _each("partitions", "partitions", _partition(f"{request.election} election"))(request, answer, image)


def _of_group(change: str, concerns: Callable[[Any], bool] = lambda _: True) -> Says:
    """Report a change of a group's offsets: how many partitions, and the first error."""

    def says(request: Any, answer: Any, _: MetadataImage) -> Iterable[Touched]:
        if not concerns(request):
            return
        topics = sorted({item.topic for item in request.partitions})
        told = ", ".join(topics[:_NAMES_MAX]) + (", …" if len(topics) > _NAMES_MAX else "")
        errors = filter(None, map(_error, () if answer is None else (answer, *answer.results)))
        error = UNKNOWN if answer is None else next(errors, "")
        yield Touched("group", request.group_id, f"{change} of {len(request.partitions)} partitions: {told}", error)

    return says


def _imported(
    request: ImportRecordsRequest, answer: ImportRecordsResponse | None, image: MetadataImage
) -> Iterable[Touched]:
    if request.link:  # many per second; the audit log records when the link's topics are created and promoted
        return ()
    topic = image.topics.get(request.topic_id)
    name = request.topic_id.hex() if topic is None else topic.name
    found = f"from {request.place}" if request.place else f"from offset {request.log_end_offset} on"
    what = f"partition {request.partition}: records restored {found}"
    return (Touched("topic", name, what, UNKNOWN if answer is None else _error(answer)),)


def _markers(
    request: WriteTxnMarkersRequest, answer: WriteTxnMarkersResponse | None, _: MetadataImage
) -> Iterable[Touched]:
    answered = () if answer is None else answer.markers
    for marker, written in zip_longest(request.markers, answered[: len(request.markers)]):
        errors = {} if written is None else {(at.topic, at.partition): _error(at) for at in written.results}
        for at in marker.partitions:
            what = f"partition {at.partition}: {'commit' if marker.committed else 'abort'} {marker.producer_id}"
            error = UNKNOWN if answer is None else errors.get((at.topic, at.partition), "")
            yield Touched("topic", at.topic, what, error)


def _prepared(
    request: PrepareTransactionRequest, answer: PrepareTransactionResponse | None, _: MetadataImage
) -> Iterable[Touched]:
    if not is_sinks(request.transactional_id):
        error = UNKNOWN if answer is None else _error(answer)
        yield Touched("transactional_id", request.transactional_id, "prepare", error)


CHANGES: Final[dict[type[Request[Any]], Says]] = {
    CreateTopicsRequest: _each("topics", "topics", _named()),
    DeleteTopicsRequest: _deleted_topics,
    CreatePartitionsRequest: _each(
        "topics", "topics", lambda item, _: Touched("topic", item.name, f"{item.count} partitions")
    ),
    IncrementalAlterConfigsRequest: _each("resources", "resources", _settings),
    UpdateFeaturesRequest: _each("features", "", lambda item, _: Touched("feature", item.name, f"level {item.level}")),
    UnregisterBrokerRequest: _one(lambda request: Touched("broker", str(request.node_id), "unregister")),
    CloseConnectionsRequest: _one(
        lambda request: Touched(
            "connection", request.principal or "*", f"close those from {request.host or '*'}:{request.port or '*'}"
        )
    ),
    AlterReplicaLogDirsRequest: _each("replicas", "replicas", _partition("move to a log directory")),
    AlterPartitionReassignmentsRequest: _each("partitions", "partitions", _placed),
    ElectLeadersRequest: _elected,
    AlterClientQuotasRequest: _each("entries", "entries", _quotas),
    AlterUserScramCredentialsRequest: _users,
    CreateDelegationTokenRequest: _new_token,
    RenewDelegationTokenRequest: _old_token("renew"),
    ExpireDelegationTokenRequest: _old_token("expire"),
    CreateAclsRequest: _each("entries", "results", lambda item, _: _entry(item)),
    DeleteAclsRequest: _deleted_entries,
    DeleteRecordsRequest: _each("partitions", "results", _partition("delete records")),
    DeleteGroupsRequest: _each("group_ids", "results", lambda item, _: Touched("group", item, "delete")),
    OffsetDeleteRequest: _of_group("delete offsets"),
    # Without a generation, it comes from an administrator or a consumer without a group, not from a member.
    OffsetCommitRequest: _of_group("set offsets", lambda request: request.generation_id < 0),
    WriteTxnMarkersRequest: _markers,
    # A sink prepares one for each batch, and they end by themselves.
    PrepareTransactionRequest: _prepared,
    AbortJobRequest: _one(lambda request: Touched("sink", request.sink, f"abort batch {request.batch}")),
    DeleteSinkRequest: _one(lambda request: Touched("sink", request.sink, "delete")),
    HoldTransactionsRequest: _one(
        lambda request: Touched("cluster", CLUSTER_NAME, f"transactions held for {request.hold_ms} ms")
    ),
    ImportRecordsRequest: _imported,
    AdvanceProducerIdsRequest: _one(
        lambda request: Touched("cluster", CLUSTER_NAME, f"producer ids beyond {request.beyond}")
    ),
}


def audited(calls: Calls, control: AccessControl, image: Image, *, forwarded: bool = False) -> Calls:
    """Wrap the calls so that those that change the cluster are recorded in the audit log once their outcome is known.
    ``forwarded``: whether the senders are nodes, which may name their clients."""
    audit = control.audit
    if audit is None or not audit.wants(AuditKind.CHANGE):
        return calls

    def wrapped(request_type: type[Request[Any]], handler: CallHandler, audit: Audit) -> CallHandler:
        says = CHANGES.get(request_type)
        if says is None:
            return handler

        async def serve(request: object, context: CallContext) -> Any:
            if request_type is WriteTxnMarkersRequest and context.listener in control.node_listeners:
                return await handler(request, context)  # from each transaction's coordinator
            answer, before = None, image()
            try:
                answer = await handler(request, context)
            finally:
                touched = tuple(says(request, answer, before))
                if touched:
                    sender = control.who(context)
                    done = not any(each.error for each in touched)
                    name = api_of(request_type)
                    client = getattr(request, "forwarded", None) if forwarded else None
                    event = AuditEvent(AuditKind.CHANGE, *sender, context.listener, done, name, "", touched)
                    if client is not None:
                        event = event._replace(
                            principal=client.principal,
                            host=client.host,
                            listener=client.listener,
                            forwarded_by=sender.principal,
                        )
                    audit.note(event, reserved=audit.refuses and not forwarded)
            return answer

        return serve

    return {request_type: wrapped(request_type, handler, audit) for request_type, handler in calls.items()}


def made_by_use(control: AccessControl, topic: str, sender: CallContext, error: ErrorCode) -> None:
    """Record in the audit log that using a topic created it."""
    if control.audit is not None:
        touched = Touched("topic", topic, "by use", "" if error is ErrorCode.NONE else error.name)
        name = api_of(CreateTopicsRequest)
        done = error is ErrorCode.NONE
        who = control.who(sender)
        control.audit.note(AuditEvent(AuditKind.CHANGE, *who, sender.listener, done, name, "", (touched,)))


def api_of(request_type: type[Request[Any]]) -> str:
    """Return Kafka's name for a call."""
    return request_type.__name__.removesuffix("Request")
