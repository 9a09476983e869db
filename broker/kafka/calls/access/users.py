"""DescribeUserScramCredentials and AlterUserScramCredentials, translated (KIP-554)."""

from __future__ import annotations

from typing import Any, Final

from tidelog.broker.kafka.calls.common.translation import answered, asked, outcome
from tidelog.broker.kafka.wire.apis import Answer, Api, KafkaContext
from tidelog.model.errors import ErrorCode
from tidelog.proto.calls.user_api import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    DescribeUserScramCredentialsRequest,
    ScramDeletion,
    ScramUpsertion,
)


async def describe_users(request: Any, _: int, context: KafkaContext) -> Answer:
    names = tuple(user.name for user in request.users or ())
    answer = await context.call(DescribeUserScramCredentialsRequest(names))
    return answered(answer, users="results", credentials="credential_infos")


async def alter_users(request: Any, _: int, context: KafkaContext) -> Answer:
    wanted = AlterUserScramCredentialsRequest(
        tuple(asked(ScramDeletion, each, user=each.name) for each in request.deletions),
        tuple(asked(ScramUpsertion, each, user=each.name) for each in request.upsertions),
    )
    answer: AlterUserScramCredentialsResponse = await context.call(wanted)
    if answer.error is ErrorCode.NONE:
        return answered(answer)
    # Kafka's answer repeats for each user what ours says for the whole call.
    return {"results": [{"user": name, **outcome(answer)} for name in wanted.users]}


APIS: Final = (Api(50, 0, 0, describe_users), Api(51, 0, 0, alter_users))
