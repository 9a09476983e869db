"""Kafka's settings that no node here has, and why."""

from __future__ import annotations

from typing import Final

NOT_YET: Final = {
    "sasl.oauthbearer.": "docs/settings.md has the settings of OAUTHBEARER",
    "sasl.kerberos.": "GSSAPI is not offered",
    "sasl.login.": "nodes log in nowhere: they prove who they are by certificates",
    "sasl.": "no class or mechanism can be added to those in sasl.enabled.mechanisms",
    "zookeeper.": "there is no ZooKeeper; the metadata quorum takes its place",
    "remote.log.": "tiered storage is not there yet",
    "group.consumer.": "docs/groups.md says which settings the consumer protocol has",
    "group.share.": "share groups are not there yet",
    "group.streams.": "KIP-1071's groups are not there yet",
}


WITHOUT_COUNTERPART: Final = {
    "group.coordinator.append.linger.ms": "a coordinator appends at once",
    "group.coordinator.rebalance.protocols": "the feature group.version decides",
    "group.coordinator.threads": "a node serves on one event loop",
    "offsets.topic.compression.codec": "a group's records are not compressed",
    "transaction.state.log.compression.codec": "a transaction coordinator's records are not compressed",
    "add.partitions.to.txn.retry.backoff.ms": "a transaction's coordinator lets such requests wait",
    "add.partitions.to.txn.retry.backoff.max.ms": "a transaction's coordinator lets such requests wait",
    "log.flush.start.offset.checkpoint.interval.ms": "log.flush.offset.checkpoint.interval.ms covers both checkpoints",
    "max.request.partition.size.limit": "metadata is answered whole",
    "num.io.threads": "a node serves on one event loop",
    "num.network.threads": "a node serves on one event loop",
    "num.replica.fetchers": "a node has one fetch stream to each leader",
    "sasl.oauthbearer.scope.claim.name": "access control lists decide, not a token's scopes",
    "sasl.oauthbearer.allow.unverified.issuer": "a token's issuer is always verified",
    "sasl.oauthbearer.allow.unverified.audience": "a token's audience is always verified",
    "sasl.jaas.config": "users are in the metadata log, `tidelog users` makes them",
    "sasl.mechanism.inter.broker.protocol": "nodes prove who they are by certificates",
    "sasl.mechanism.controller.protocol": "nodes prove who they are by certificates",
    "security.inter.broker.protocol": "inter.broker.listener.name names the listener, and with it its protocol",
    "ssl.key.password": "the key must not be encrypted: `openssl pkey -in encrypted.pem -out key.pem` decrypts it",
    "ssl.keystore.password": "PEM files have no password",
    "ssl.truststore.password": "PEM files have no password",
    "ssl.protocol": "ssl.enabled.protocols says all",
    "ssl.provider": "TLS is OpenSSL's",
    "ssl.cipher.suites": "OpenSSL's own choice holds",
    "ssl.keymanager.algorithm": "TLS is OpenSSL's",
    "ssl.trustmanager.algorithm": "TLS is OpenSSL's",
    "ssl.secure.random.implementation": "TLS is OpenSSL's",
    "ssl.engine.factory.class": "TLS is OpenSSL's",
    "socket.send.buffer.bytes": "the transport sizes its own buffers",
    "socket.receive.buffer.bytes": "the transport sizes its own buffers",
}
"""Kafka's settings that would have no effect here, and why."""
