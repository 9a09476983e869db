from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class Forwarded(_message.Message):
    __slots__ = ("principal", "host", "listener")
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    LISTENER_FIELD_NUMBER: _ClassVar[int]
    principal: str
    host: str
    listener: str
    def __init__(self, principal: _Optional[str] = ..., host: _Optional[str] = ..., listener: _Optional[str] = ...) -> None: ...
