"""DescribeUserScramCredentials and AlterUserScramCredentials, translated (KIP-554)."""

from __future__ import annotations

from typing import Any, Final

from tidelog.broker.kafka.wire.apis import Answer, Api, KafkaContext
from tidelog.model.errors import ErrorCode
from tidelog.proto.calls.user_api import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    ScramDeletion,
    ScramUpsertion,
)


async def describe_users(request: Any, _: int, context: KafkaContext) -> Answer:
    names = tuple(user.name for user in request.users or ())
    answer: DescribeUserScramCredentialsResponse = await context.call(DescribeUserScramCredentialsRequest(names))
    return {
        "error_code": answer.error,
        "error_message": answer.error_message or None,
        "results": [
            {
                "user": found.user,
                "error_code": found.error,
                "error_message": found.error_message or None,
                "credential_infos": [
                    {"mechanism": each.mechanism, "iterations": each.iterations} for each in found.credentials
                ],
            }
            for found in answer.users
        ],
    }


async def alter_users(request: Any, _: int, context: KafkaContext) -> Answer:
    asked = AlterUserScramCredentialsRequest(
        tuple(ScramDeletion(each.name, each.mechanism) for each in request.deletions),
        tuple(
            ScramUpsertion(each.name, each.mechanism, each.iterations, bytes(each.salt), bytes(each.salted_password))
            for each in request.upsertions
        ),
    )
    answer: AlterUserScramCredentialsResponse = await context.call(asked)
    if answer.error is ErrorCode.NONE:
        results = [(found.user, found.error, found.error_message) for found in answer.results]
    else:  # Kafka's answer repeats for each user what ours says for the whole call
        results = [(name, answer.error, answer.error_message) for name in asked.users]
    return {
        "results": [{"user": user, "error_code": error, "error_message": text or None} for user, error, text in results]
    }


APIS: Final = (Api(50, 0, 0, describe_users), Api(51, 0, 0, alter_users))
