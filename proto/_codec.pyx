# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Compiled twin of the record codec: the same records as bytes, several times as fast.

Optional: ``setup.py`` builds it where a compiler is, ``tidelog.proto.compiled_codec`` looks for it. What
is unusual (a damaged record, a value that is no ``bytes``, numbers near the edge of 64 bits) is not
judged here: the functions return None and the plain Python twin says what it is.
"""

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize, PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_SET_ITEM
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t, uint64_t
from libc.string cimport memcmp, memcpy, memset

cdef extern from "Python.h":
    ctypedef struct PyTypeObject:
        object (*tp_alloc)(PyTypeObject *, Py_ssize_t)
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL

VERSION = 2
"""Raised with each change of what Python code expects of this module; another one's build is not used."""

cdef enum:
    HEADER_SIZE = 61
    CAPACITY_FIRST = 1024
    FRAME_MAX = 40
cdef int64_t TIME_MAX = 1LL << 62
cdef const char *NOTHING = b"\0" * 16


cdef inline uint64_t zigzag(int64_t number) noexcept nogil:
    return (<uint64_t>number << 1) ^ <uint64_t>(number >> 63)


cdef inline uint8_t *put(uint8_t *at, int64_t number) noexcept nogil:
    cdef uint64_t rest = zigzag(number)
    while rest > 127:
        at[0] = <uint8_t>(rest & 127) | 128
        at += 1
        rest >>= 7
    at[0] = <uint8_t>rest
    return at + 1


cdef inline int width(int64_t number) noexcept nogil:
    cdef uint64_t rest = zigzag(number)
    cdef int found = 1
    while rest > 127:
        rest >>= 7
        found += 1
    return found


cdef inline uint8_t *put_bytes(uint8_t *at, object data) noexcept:
    """``data`` is None or exactly ``bytes``."""
    cdef Py_ssize_t size
    if data is None:
        at[0] = 1
        return at + 1
    size = PyBytes_GET_SIZE(data)
    at = put(at, size)
    memcpy(at, PyBytes_AS_STRING(data), size)
    return at + size


cdef inline Py_ssize_t bytes_width(object data) noexcept:
    if data is None:
        return 1
    return width(PyBytes_GET_SIZE(data)) + PyBytes_GET_SIZE(data)


cdef inline object exact(object data):
    """Return None or ``bytes``. Raises ``TypeError`` for what is no buffer."""
    if data is None or PyBytes_CheckExact(data):
        return data
    return bytes(memoryview(data))


cdef class RecordBuffer:
    """See ``tidelog.proto.record_buffer.RecordBuffer``."""

    cdef bytearray _buffer
    cdef Py_ssize_t _capacity
    cdef Py_ssize_t _bytes_max
    cdef readonly Py_ssize_t size
    cdef readonly Py_ssize_t count
    cdef readonly int64_t base_timestamp
    cdef readonly int64_t max_timestamp

    def __cinit__(self, *arguments, **named):
        self._buffer = PyByteArray_FromStringAndSize(NULL, CAPACITY_FIRST)
        memset(PyByteArray_AS_STRING(self._buffer), 0, HEADER_SIZE)
        self._capacity = CAPACITY_FIRST
        self._bytes_max = 1LL << 62
        self.size = HEADER_SIZE
        self.count = 0
        self.base_timestamp = -1
        self.max_timestamp = -1

    def __init__(self, bytes_max=None):
        if bytes_max is not None:
            self._bytes_max = min(max(bytes_max, 0), 1 << 62)

    def append(self, timestamp, key, value, headers=()):
        cdef int64_t time, delta
        cdef uint64_t distance
        cdef Py_ssize_t count = self.count  # the code of a header's iterator could add records meanwhile
        cdef Py_ssize_t body, size, name_size, index
        cdef Py_ssize_t header_count = 0
        cdef uint8_t *at
        cdef list parts = None
        cdef const char *name_bytes
        time = timestamp
        if not count:
            if not -TIME_MAX < time < TIME_MAX:
                raise OverflowError(f"expected a time within 2**62 ms, found {timestamp}")
            self.base_timestamp = self.max_timestamp = time
        distance = <uint64_t>time - <uint64_t>self.base_timestamp
        if time < self.base_timestamp:
            distance = 0 - distance
        if distance >= <uint64_t>TIME_MAX:
            raise OverflowError(f"expected a time within 2**62 ms of the first record's, found {timestamp}")
        delta = time - self.base_timestamp
        key = exact(key)
        value = exact(value)
        body = 1 + width(delta) + width(count) + bytes_width(key) + bytes_width(value)
        if headers:
            parts = []
            for name, content in headers:
                PyUnicode_AsUTF8AndSize(name, &name_size)
                content = exact(content)
                body += width(name_size) + name_size + bytes_width(content)
                parts.append(name)
                parts.append(content)
                header_count += 1
        body += width(header_count)
        size = self.size + width(body) + body
        if size > self._bytes_max and count:
            return -1
        if body > INT32_MAX:
            raise OverflowError(f"expected a record below 2 GiB, found {body} bytes")
        if size > self._capacity:
            self._capacity = max(size, self._capacity * 2)
            PyByteArray_Resize(self._buffer, self._capacity)
        at = <uint8_t *>PyByteArray_AS_STRING(self._buffer) + self.size
        at = put(at, body)
        at[0] = 0
        at = put(at + 1, delta)
        at = put(at, count)
        at = put_bytes(at, key)
        at = put_bytes(at, value)
        at = put(at, header_count)
        if parts is not None:
            for index in range(0, 2 * header_count, 2):
                name_bytes = PyUnicode_AsUTF8AndSize(parts[index], &name_size)
                at = put(at, name_size)
                memcpy(at, name_bytes, name_size)
                at = put_bytes(at + name_size, parts[index + 1])
        if time > self.max_timestamp:
            self.max_timestamp = time
        self.count = count + 1
        self.size = size
        return size

    def taken(self):
        """Return 61 zero bytes and the records, as a copy."""
        return self._buffer[:self.size]


def values_body(list values):
    """Return 61 zero bytes and a record for each value, without keys, headers and time deltas."""
    cdef Py_ssize_t total = HEADER_SIZE
    cdef Py_ssize_t size, body, number = 0
    cdef bytearray out
    cdef uint8_t *at
    for value in values:
        if not PyBytes_CheckExact(value):
            return None
        total += PyBytes_GET_SIZE(value) + FRAME_MAX
    out = PyByteArray_FromStringAndSize(NULL, total)
    at = <uint8_t *>PyByteArray_AS_STRING(out)
    memset(at, 0, HEADER_SIZE)
    at += HEADER_SIZE
    for value in values:
        size = PyBytes_GET_SIZE(value)
        body = 4 + width(number) + width(size) + size
        if body > INT32_MAX:
            return None
        at = put(at, body)
        at[0] = 0
        at[1] = 0
        at = put(at + 2, number)
        at[0] = 1
        at = put_bytes(at + 1, value)
        at[0] = 0
        at += 1
        number += 1
    PyByteArray_Resize(out, <Py_ssize_t>(at - <uint8_t *>PyByteArray_AS_STRING(out)))
    return out


cdef inline int get(const uint8_t **position, const uint8_t *end, int bits, int64_t *number) noexcept nogil:
    """Read a varint; 0 when it is cut off or longer than ``bits`` allow."""
    cdef const uint8_t *at = position[0]
    cdef uint64_t found = 0
    cdef uint8_t byte
    cdef int shift = 0
    while shift < bits:
        if at >= end:
            return 0
        byte = at[0]
        at += 1
        found |= <uint64_t>(byte & 127) << shift
        if byte < 128:
            if bits == 32:
                found &= 0xFFFFFFFFU
            number[0] = <int64_t>(found >> 1) ^ -<int64_t>(found & 1)
            position[0] = at
            return 1
        shift += 7
    return 0


cdef inline int get_bytes(const uint8_t **position, const uint8_t *end, const uint8_t **data, int64_t *size) noexcept nogil:
    """Find a sized byte string; its size is negative for null. 0 when it is cut off."""
    if not get(position, end, 32, size):
        return 0
    data[0] = position[0]
    if size[0] > 0:
        if size[0] > end - position[0]:
            return 0
        position[0] += size[0]
    return 1


cdef inline object made(const uint8_t *data, int64_t size):
    if size < 0:
        return None
    return PyBytes_FromStringAndSize(<const char *>data, size)


def decode(bytes body, int64_t base_offset, int64_t base_timestamp, fixed_timestamp, int32_t count, int32_t last_delta, kind):
    """Return a list of one ``kind`` (tuple or a subclass without fields of its own) a record, of the values
    alone where ``kind`` is None; None for what the Python twin must judge."""
    cdef const uint8_t *at = <const uint8_t *>PyBytes_AS_STRING(body)
    cdef const uint8_t *end = at + PyBytes_GET_SIZE(body)
    cdef const uint8_t *stop
    cdef const uint8_t *key = NULL
    cdef const uint8_t *value = NULL
    cdef int64_t length, time, delta, key_size, value_size, header_count
    cdef int64_t previous = -1
    cdef int32_t number
    cdef bint fields = kind is not None
    cdef PyTypeObject *kind_type = <PyTypeObject *>kind if fields else NULL
    cdef list out = []
    cdef tuple headers
    cdef bint plain = kind is tuple
    cdef object item, offset, stamp
    if not -TIME_MAX < base_timestamp < TIME_MAX or not 0 <= base_offset < TIME_MAX:
        return None
    for number in range(count):
        if not get(&at, end, 32, &length) or length < 1 or length > end - at:
            return None
        stop = at + length
        at += 1
        if not get(&at, stop, 64, &time) or not -TIME_MAX < time < TIME_MAX:
            return None
        if not get(&at, stop, 32, &delta) or delta <= previous:
            return None
        previous = delta
        if not get_bytes(&at, stop, &key, &key_size) or not get_bytes(&at, stop, &value, &value_size):
            return None
        if not get(&at, stop, 32, &header_count):
            return None
        headers = ()
        if header_count:
            if header_count < 0 or header_count > stop - at:
                return None
            headers = read_headers(&at, stop, header_count)
            if headers is None:
                return None
        if at != stop:
            return None
        if not fields:
            out.append(made(value, value_size))
            continue
        offset = base_offset + delta
        stamp = base_timestamp + time if fixed_timestamp is None else fixed_timestamp
        if plain:
            out.append((offset, stamp, made(key, key_size), made(value, value_size), headers))
            continue
        item = kind_type.tp_alloc(kind_type, 5)
        fill(item, 0, offset)
        fill(item, 1, stamp)
        fill(item, 2, made(key, key_size))
        fill(item, 3, made(value, value_size))
        fill(item, 4, headers)
        out.append(item)
    if at != end or previous > last_delta and count:
        return None
    return out


cdef inline int fill(object item, Py_ssize_t index, object content) except -1:
    Py_INCREF(content)
    PyTuple_SET_ITEM(item, index, content)
    return 0


cdef tuple read_headers(const uint8_t **position, const uint8_t *stop, int64_t count):
    cdef const uint8_t *name = NULL
    cdef const uint8_t *value = NULL
    cdef int64_t name_size, value_size
    cdef int64_t number
    cdef list out = []
    for number in range(count):
        if not get_bytes(position, stop, &name, &name_size) or name_size < 0:
            return None
        if not get_bytes(position, stop, &value, &value_size):
            return None
        out.append((PyUnicode_DecodeUTF8(<const char *>name, name_size, b"replace"), made(value, value_size)))
    return tuple(out)


def spans(bytes body, int64_t base_offset, int64_t base_timestamp, fixed_timestamp, int32_t count, int32_t last_delta):
    """See ``tidelog.proto.record_spans.record_spans``; None for what the Python twin must judge."""
    cdef const uint8_t *start = <const uint8_t *>PyBytes_AS_STRING(body)
    cdef const uint8_t *at = start
    cdef const uint8_t *end = at + PyBytes_GET_SIZE(body)
    cdef const uint8_t *first
    cdef const uint8_t *stop
    cdef const uint8_t *key = NULL
    cdef const uint8_t *value = NULL
    cdef int64_t length, time, delta, key_size, value_size
    cdef int64_t previous = -1
    cdef int32_t number
    cdef list out = []
    if not -TIME_MAX < base_timestamp < TIME_MAX or not 0 <= base_offset < TIME_MAX:
        return None
    for number in range(count):
        first = at
        if not get(&at, end, 32, &length) or length < 1 or length > end - at:
            return None
        stop = at + length
        at += 1
        if not get(&at, stop, 64, &time) or not -TIME_MAX < time < TIME_MAX:
            return None
        if not get(&at, stop, 32, &delta) or delta <= previous:
            return None
        previous = delta
        if not get_bytes(&at, stop, &key, &key_size) or not get_bytes(&at, stop, &value, &value_size) or at >= stop:
            return None
        at = stop
        out.append((
            base_offset + delta,
            base_timestamp + time if fixed_timestamp is None else fixed_timestamp,
            made(key, key_size),
            value_size >= 0,
            <Py_ssize_t>(first - start),
            <Py_ssize_t>(stop - start),
        ))
    if at != end or previous > last_delta and count:
        return None
    return out


def keyless(bytes body, int32_t count, int32_t last_delta):
    """See ``tidelog.proto.record_spans.keyless_record``; None for what the Python twin must judge."""
    cdef const uint8_t *at = <const uint8_t *>PyBytes_AS_STRING(body)
    cdef const uint8_t *end = at + PyBytes_GET_SIZE(body)
    cdef const uint8_t *stop
    cdef const uint8_t *data = NULL
    cdef int64_t length, time, delta, key_size, value_size
    cdef int64_t previous = -1
    cdef int32_t number
    cdef int32_t found = -1
    for number in range(count):
        if not get(&at, end, 32, &length) or length < 1 or length > end - at:
            return None
        stop = at + length
        at += 1
        if not get(&at, stop, 64, &time) or not get(&at, stop, 32, &delta) or delta <= previous:
            return None
        previous = delta
        if not get_bytes(&at, stop, &data, &key_size) or not get_bytes(&at, stop, &data, &value_size) or at >= stop:
            return None
        if key_size < 0 and found < 0:
            found = number
        at = stop
    if at != end or previous > last_delta and count:
        return None
    return found


def probe(const uint8_t[::1] table, int64_t slots, bytes digest):
    """See ``tidelog.storage.cleaner.offset_map.probe``."""
    cdef const uint8_t *entries = &table[0]
    cdef const uint8_t *wanted = <const uint8_t *>PyBytes_AS_STRING(digest)
    cdef const uint8_t *entry
    cdef int64_t attempt, position, more
    cdef int at
    if PyBytes_GET_SIZE(digest) != 16 or slots < 1 or table.shape[0] < slots * 24:
        raise ValueError("expected a table of 24 bytes a slot and a digest of 16")
    for attempt in range(slots + 13):
        at = <int>(attempt if attempt < 12 else 12)
        more = attempt - 12 if attempt > 12 else 0
        position = (
            (<int64_t>wanted[at] << 24 | <int64_t>wanted[at + 1] << 16 | <int64_t>wanted[at + 2] << 8 | wanted[at + 3])
            + more
        ) % slots * 24
        entry = entries + position
        if memcmp(entry, wanted, 16) == 0:
            return position
        if memcmp(entry, NOTHING, 16) == 0:
            return -1 - position
    return None
