"""Decoding and hiding: foreign encoders as witnesses, hostile bytes within bounds, and no way around a mask."""

from __future__ import annotations

import base64
import io
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, timestamp_pb2
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.json_format import ParseDict
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.cli.failure import CommandFailed
from tidelog.console.access import access_of
from tidelog.console.schemas.avro import AvroSchema
from tidelog.console.schemas.masks import HIDDEN, PathWrong, hide
from tidelog.console.schemas.masks import Path as Mask
from tidelog.console.schemas.messagepack import MessagePack
from tidelog.console.schemas.protobuf import ProtobufSchema
from tidelog.console.schemas.registry import AWAY_S, FAILED_S, Registry
from tidelog.console.schemas.settings import Messages, load
from tidelog.console.schemas.structured import ITEMS_MAX, SchemaWrong, Undecodable
from tidelog.proto.records.decoder import Record
from tidelog.testing import Cluster

from .conftest import Console

fastavro = pytest.importorskip("fastavro", reason="fastavro is not there: ./dev setup brings it")
msgpack = pytest.importorskip("msgpack", reason="msgpack is not there: ./dev setup brings it")

ORDER: dict[str, Any] = {
    "type": "record", "name": "Order", "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "card", "type": ["null", {"type": "record", "name": "Card", "fields": [
            {"name": "number", "type": "string"}, {"name": "limit", "type": "double"},
        ]}]},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "counts", "type": {"type": "map", "values": "int"}},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}},
        {"name": "other", "type": ["null", "shop.Card", "boolean"]},
        {"name": "blob", "type": "bytes"},
    ],
}  # fmt: skip
CARD = st.fixed_dictionaries({"number": st.text(max_size=20), "limit": st.floats(allow_nan=False)})
ORDERS = st.fixed_dictionaries(
    {
        "id": st.integers(-(2**63), 2**63 - 1), "card": st.none() | CARD,
        "tags": st.lists(st.text(max_size=9), max_size=9),
        "counts": st.dictionaries(st.text(max_size=9), st.integers(-(2**31), 2**31 - 1), max_size=9),
        "state": st.sampled_from(["NEW", "PAID"]), "other": st.none() | st.booleans(), "blob": st.just(b"\x00\xff"),
    }
)  # fmt: skip


def by_fastavro(schema: object, value: object) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


@given(ORDERS)
@settings(max_examples=60, deadline=None)
def test_what_fastavro_writes_is_read(order: dict[str, Any]) -> None:
    found = AvroSchema(json.dumps(ORDER)).decode(by_fastavro(ORDER, order))
    assert found == {**order, "blob": "0x00ff"}


@pytest.mark.parametrize(
    ("kind", "raw", "shown"),
    [
        ({"type": "int", "logicalType": "date"}, 20_000, "2024-10-04"),
        ({"type": "long", "logicalType": "timestamp-millis"}, 1_700_000_000_123, "2023-11-14T22:13:20.123000+00:00"),
        ({"type": "long", "logicalType": "timestamp-micros"}, 2**62, 2**62),
        ({"type": "bytes", "logicalType": "decimal", "precision": 40, "scale": 2}, b"\xff\x38", "-2.00"),
        ({"type": "fixed", "name": "F", "size": 3}, b"abc", "abc"),
        ({"type": "string", "logicalType": "uuid"}, "u", "u"),
    ],
)
def test_what_a_number_means_is_shown(kind: Any, raw: Any, shown: Any) -> None:
    plain = {key: value for key, value in kind.items() if key != "logicalType"}
    assert AvroSchema(json.dumps(kind)).decode(by_fastavro(plain, raw)) == shown


TREE = {"type": "record", "name": "Tree", "fields": [{"name": "next", "type": ["null", "Tree"]}]}


@pytest.mark.parametrize(
    ("schema", "data", "said"),
    [
        ({"type": "array", "items": "null"}, b"\x82\xb5\x18\x00", f"at most {ITEMS_MAX:,} values"),
        (TREE, b"\x02" * 100_000 + b"\x00", "levels"),
        ("bytes", b"\xfe\xff\xff\xff\x0f", "expected 2,147,483,647 bytes"),
        ("bytes", b"\x01", "expected -1 bytes"),
        ("long", b"\xff" * 20, "10 bytes"),
        ("int", b"\x02\x02", "expected the end"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, b"\x04", "found number 2"),
        ("string", b"\x02\xff", "UTF-8"),
    ],
)  # fmt: skip
def test_hostile_avro_is_refused_within_bounds(schema: object, data: bytes, said: str) -> None:
    with pytest.raises(Undecodable, match=said):
        AvroSchema(json.dumps(schema)).decode(data)


@pytest.mark.parametrize(
    "text", ["{", '"nothing"', '{"type": "record"}', "[" * 5_000, '{"type": "fixed", "name": "F", "size": -1}']
)
def test_a_schema_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(SchemaWrong):
        AvroSchema(text)


LETTERS = st.text(st.characters(categories=("L", "N")), max_size=40)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | LETTERS,
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(LETTERS, inner, max_size=20),
    max_leaves=30,
)


@given(VALUES)
@settings(max_examples=50, deadline=None)
def test_what_msgpack_writes_is_read(value: object) -> None:
    assert MessagePack().decode(msgpack.packb(value)) == value


@given(st.binary(max_size=200))
@settings(max_examples=300, deadline=None)
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for schema in (MessagePack(), AvroSchema(json.dumps(ORDER)), AvroSchema(json.dumps(TREE))):
        try:
            json.dumps(schema.decode(data))
        except Undecodable:
            pass


def test_deep_messagepack_is_refused() -> None:
    with pytest.raises(Undecodable, match="levels"):
        MessagePack().decode(b"\x91" * 10_000 + b"\xc0")


# --- Protobuf -------------------------------------------------------------------------------------------


def payment_file() -> descriptor_pb2.FileDescriptorProto:
    """As ``protoc`` describes ``message Payment { message Part { int64 cents = 1; } string card = 1;
    repeated Part parts = 2; google.protobuf.Timestamp at = 3; }``."""
    kind = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="pay.proto", package="shop", syntax="proto3", dependency=["google/protobuf/timestamp.proto"]
    )
    payment = file.message_type.add(name="Payment")
    payment.nested_type.add(name="Part").field.add(
        name="cents", number=1, type=kind.TYPE_INT64, label=kind.LABEL_OPTIONAL
    )
    payment.field.add(name="card", number=1, type=kind.TYPE_STRING, label=kind.LABEL_OPTIONAL)
    payment.field.add(
        name="parts", number=2, type=kind.TYPE_MESSAGE, type_name=".shop.Payment.Part", label=kind.LABEL_REPEATED
    )
    payment.field.add(
        name="at", number=3, type=kind.TYPE_MESSAGE, type_name=".google.protobuf.Timestamp", label=kind.LABEL_OPTIONAL
    )
    return file


PAYMENT = {"card": "4111", "parts": [{"cents": "7"}, {"cents": "8"}], "at": "2026-01-02T03:04:05Z"}


def payment_bytes() -> bytes:
    pool = DescriptorPool()
    pool.Add(descriptor_pb2.FileDescriptorProto.FromString(timestamp_pb2.DESCRIPTOR.serialized_pb))
    pool.Add(payment_file())
    kind = GetMessageClass(pool.FindMessageTypeByName("shop.Payment"))
    made: bytes = ParseDict(PAYMENT, kind(), descriptor_pool=pool).SerializeToString()
    return made


def test_protobuf_is_read_by_the_descriptors_that_protoc_writes() -> None:
    files = descriptor_pb2.FileDescriptorSet()
    files.file.append(descriptor_pb2.FileDescriptorProto.FromString(timestamp_pb2.DESCRIPTOR.serialized_pb))
    files.file.append(payment_file())
    schema = ProtobufSchema.of_set(files.SerializeToString(), "shop.Payment")
    assert schema.decode(payment_bytes()) == PAYMENT
    with pytest.raises(Undecodable, match=r"expected a shop\.Payment"):
        schema.decode(b"\x0a\xff")
    with pytest.raises(SchemaWrong, match=r"shop\.Other"):
        ProtobufSchema.of_set(files.SerializeToString(), "shop.Other")
    with pytest.raises(SchemaWrong, match="include_imports"):
        ProtobufSchema.of_set(b"no such thing", "shop.Payment")


# --- A registry -----------------------------------------------------------------------------------------


@pytest.fixture
def registry() -> Iterator[tuple[str, dict[str, Any], list[str]]]:
    """An HTTP server that answers as a registry does, from a table; every path that it was asked for."""
    answers: dict[str, Any] = {}
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            found = answers.get(self.path)
            body = json.dumps(found or {"error_code": 40403}).encode()
            self.send_response(200 if found else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    serving.start()
    yield f"http://127.0.0.1:{server.server_port}", answers, asked
    server.shutdown()
    server.server_close()
    serving.join()


def framed(number: int, data: bytes) -> bytes:
    return b"\0" + number.to_bytes(4, "big") + data


def test_a_registry_is_asked_once_for_each_schema(registry: tuple[str, dict[str, Any], list[str]]) -> None:
    url, answers, asked = registry
    card = {"type": "record", "name": "Card", "namespace": "shop", "fields": [{"name": "number", "type": "string"}]}
    answers["/schemas/ids/7"] = {
        "schema": json.dumps({"type": "record", "name": "Pay", "fields": [{"name": "card", "type": "shop.Card"}]}),
        "references": [{"name": "shop.Card", "subject": "shop/card", "version": 3}],
    }
    answers["/subjects/shop%2Fcard/versions/3"] = {"schema": json.dumps(card)}
    answers["/schemas/ids/8"] = {"schemaType": "PROTOBUF", "schema": "syntax …"}
    serialized = base64.b64encode(payment_file().SerializeToString()).decode()
    answers["/schemas/ids/8?format=serialized"] = {"schemaType": "PROTOBUF", "schema": serialized}
    answers["/schemas/ids/9"] = {"schemaType": "JSON", "schema": "{}"}
    now = [0.0]
    found = Registry(url, clock=lambda: now[0])
    for _ in range(3):
        shown = found.decode(framed(7, b"\x0a4111 "))
        assert (shown.kind, shown.schema, shown.value) == ("avro", "#7 Pay", {"card": {"number": "4111 "}})
    assert asked.count("/schemas/ids/7") == 1
    shown = found.decode(framed(8, b"\x00" + payment_bytes()))
    assert (shown.kind, shown.schema, shown.value) == ("protobuf", "#8 shop.Payment", PAYMENT)
    inner = found.decode(framed(8, b"\x04\x00\x00" + b"\x08\x05"))
    assert (inner.schema, inner.value) == ("#8 shop.Payment.Part", {"cents": "5"})
    assert found.decode(framed(9, b'{"a": 1}')).value == {"a": 1}
    for _ in range(2):
        with pytest.raises(SchemaWrong, match="no schema 99"):
            found.decode(framed(99, b""))
    assert asked.count("/schemas/ids/99") == 1, "what is not there is not asked for again and again"
    now[0] += FAILED_S
    answers["/schemas/ids/99"] = {"schema": '"int"'}
    assert found.decode(framed(99, b"\x02")).value == 1


def test_a_registry_that_is_away_is_left_alone_for_a_while() -> None:
    now = [0.0]
    found = Registry("http://127.0.0.1:1", clock=lambda: now[0])
    with pytest.raises(Undecodable, match="does not answer"):
        found.decode(framed(1, b""))

    before = found._away
    with pytest.raises(Undecodable, match="does not answer"):
        found.decode(framed(2, b""))
    assert found._away == before, "not asked"
    now[0] += AWAY_S
    with pytest.raises(Undecodable):
        found.decode(framed(2, b""))
    assert found._away != before, "asked again"


# --- Masks ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("$", HIDDEN),
        ("$.a", {"a": HIDDEN, "b": [{"c": 2, "a": 3}], "d": {"a": {"a": 4}}}),
        ("$.b[*].c", {"a": 1, "b": [{"c": HIDDEN, "a": 3}], "d": {"a": {"a": 4}}}),
        ("$..a", {"a": HIDDEN, "b": [{"c": 2, "a": HIDDEN}], "d": {"a": HIDDEN}}),
        ("$..d.a", {"a": 1, "b": [{"c": 2, "a": 3}], "d": {"a": HIDDEN}}),
        ("$.nowhere.a", {"a": 1, "b": [{"c": 2, "a": 3}], "d": {"a": {"a": 4}}}),
    ],
)
def test_paths_hide_what_they_lead_to(path: str, expected: object) -> None:
    assert hide({"a": 1, "b": [{"c": 2, "a": 3}], "d": {"a": {"a": 4}}}, [Mask.of(path)]) == expected


@pytest.mark.parametrize("text", ["a", "$.", "$[0]", "$.a..", "$a"])
def test_a_path_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(PathWrong):
        Mask.of(text)


MESSAGES = """
[topics.orders]
value = { avro = "order.avsc" }

[[hidden]]
topics = ["orders", "pay*"]
key = ["$"]
value = ["$..card"]
headers = ["auth"]
except_for = ["admin"]
"""


@pytest.fixture
def messages(tmp_path: Path) -> Messages:
    (tmp_path / "order.avsc").write_text(json.dumps(ORDER))
    (tmp_path / "messages.toml").write_text(MESSAGES)
    return load(tmp_path / "messages.toml")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x", "expected a TOML file"),
        ("[other]", "expected only registry, topics, hidden, found 'other'"),
        ('[topics.a]\nvalue = "xml"', "expected \"json\", \"messagepack\""),
        ('[topics.a]\nvalue = { avro = "nowhere" }', "nowhere: No such file"),
        ('[topics.a]\nvalue = { avro = "m.toml" }', "m.toml: expected an Avro schema"),
        ('[[hidden]]\ntopics = ["a"]\nvalue = ["card"]', "expected a path such as"),
        ('[[hidden]]\ntopics = ["a"]', "topics, and what is hidden"),
        ('[registry]\nurl = "http://elsewhere.example"', "expected https://"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_refused_with_the_reason(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "m.toml").write_text(text)
    with pytest.raises(CommandFailed, match=said):
        load(tmp_path / "m.toml")


SECRET = "4111-1111"


def test_a_search_looks_at_what_is_not_hidden(messages: Messages) -> None:
    value = b'{"card": "%s", "id": 5}' % SECRET.encode()
    record = Record(0, 0, SECRET.encode(), value, (("auth", SECRET.encode()), ("more", b"x")))
    seen = messages.view("payments", None).searched(record)
    assert SECRET.encode() not in repr(seen).encode()
    assert json.loads(seen.value or b"") == {"card": HIDDEN, "id": 5}
    assert messages.view("payments", "admin").searched(record) is record


def test_what_is_hidden_leaves_the_console_by_no_way(messages: Messages) -> None:
    """Rows, a tail, one record whole, previews and searches; records that cannot be read are hidden whole."""
    order = {
        "id": 1, "card": {"number": SECRET, "limit": 1.0}, "tags": ["a"], "counts": {}, "state": "NEW", "other": None,
        "blob": b"",
    }  # fmt: skip
    with Cluster(1, transport="grpc") as cluster:
        cluster.create_topic("orders")
        cluster.create_topic("pay-json")
        headers = [("auth", SECRET.encode()), ("other", b"seen")]
        with cluster.producer() as producer:
            producer.send("orders", by_fastavro(ORDER, order), SECRET.encode(), headers=headers)
            producer.send("orders", b"\xff" + SECRET.encode(), SECRET.encode())
            producer.send("orders", None, SECRET.encode())
            producer.send("pay-json", b'{"x": [{"card": "%s"}], "id": 5}' % SECRET.encode())
            producer.send("pay-json", SECRET.encode() + b"x" * 1_000_000)
            producer.flush()
        console = Console(cluster.bootstrap, access_of({}), messages=messages)
        try:
            person = console.person()
            person.enter()

            def rows(path: str) -> list[dict[str, Any]]:
                events = person.events(path, lambda kind, _: kind in ("done", "trouble"))
                assert events[-1][0] == "done", events
                assert SECRET not in json.dumps(events)
                assert SECRET.encode().hex() not in json.dumps(events)
                return [one for kind, data in events if kind == "rows" for one in data["rows"]]

            shown = rows("/api/topics/orders/messages?from=oldest")
            assert json.loads(shown[0]["value"]["decoded"])["card"] == HIDDEN
            assert (shown[0]["value"]["as"], shown[0]["value"]["schema"]) == ("avro", "Order")
            assert shown[0]["key"]["decoded"] == HIDDEN
            assert [part.get("text") for _, part in shown[0]["headers"]] == [None, "seen"]
            assert shown[1]["value"]["decoded"] == HIDDEN
            assert "could not be read" in shown[1]["value"]["why"]
            assert shown[2]["value"] is None
            shown = rows("/api/topics/pay-json/messages?from=oldest")
            assert json.loads(shown[0]["value"]["decoded"]) == {"x": [{"card": HIDDEN}], "id": 5}
            assert shown[1]["value"]["decoded"] == HIDDEN
            for topic in ("orders", "pay-json"):
                for field in ("key", "value", "header"):
                    assert rows(f"/api/topics/{topic}/messages?from=oldest&{field}={SECRET[:4]}") == [], (topic, field)
            assert len(rows("/api/topics/pay-json/messages?from=oldest&value=%22id%22:%205")) == 1, (
                "the rest can be searched"
            )
            for topic, offset in (("orders", 0), ("orders", 1), ("pay-json", 0), ("pay-json", 1)):
                whole = person.get(f"/api/topics/{topic}/records/0/{offset}")
                assert whole.status == 200
                assert SECRET.encode() not in whole.body
            seen: list[Any] = []

            def came(kind: str, data: Any) -> bool:
                if kind == "rows" and not seen:
                    with cluster.producer() as producer:
                        producer.send("pay-json", b'{"card": "%s"}' % SECRET.encode()).result()
                seen.append(data)
                return bool(data.get("rows"))

            person.events("/api/topics/pay-json/tail", came)
            assert HIDDEN in json.dumps(seen[-1])
            assert SECRET not in json.dumps(seen)
        finally:
            console.close()


def test_some_see_everything(messages: Messages) -> None:
    assert not messages.view("orders", "admin").mask
    for user in (None, "mallory", "Admin"):
        assert messages.view("orders", user).mask
        assert messages.view("payments", user).mask
        assert not messages.view("others", user).mask
