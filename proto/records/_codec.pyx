# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Compiled twin of the record codec: the same records as bytes, several times as fast.

It is optional: ``setup.py`` builds it if there is a compiler, and ``tidelog.proto.records.compiled_codec`` looks for
it. It does not judge unusual cases (a damaged record, a value that is not ``bytes``, numbers near the limits of 64
bits): the functions return None, and the plain Python twin decides.
"""

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize, PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_SET_ITEM
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport INT32_MAX, INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcmp, memcpy, memset

cdef extern from "Python.h":
    ctypedef struct PyTypeObject:
        object (*tp_alloc)(PyTypeObject *, Py_ssize_t)
    void PyObject_GC_UnTrack(PyObject *item)
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL

VERSION = 5
"""Incremented whenever Python code expects something else of this module; builds with another version are not used."""

cdef enum:
    HEADER_SIZE = 61
    CAPACITY_FIRST = 1024
    FRAME_MAX = 40

cdef enum:  # the outcome of adding a record to columns
    DONE = 0
    UNUSUAL = 1
    TOO_LARGE = 2
    NO_MEMORY = 3
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
    """Return None or ``bytes``. Raises ``TypeError`` if ``data`` is not a buffer."""
    if data is None or PyBytes_CheckExact(data):
        return data
    return bytes(memoryview(data))


cdef class RecordBuffer:
    """See ``tidelog.proto.records.buffer.RecordBuffer``."""

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
    """Read a varint; return 0 if it is truncated or longer than ``bits`` allow."""
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
    """Find a sized byte string; its size is negative for null. Return 0 if it is truncated."""
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


def decode(
    bytes body, int64_t base_offset, int64_t base_timestamp, fixed_timestamp, int32_t count, int32_t last_delta, kind, tuple tail=()
):
    """Return a list with one ``kind`` (tuple or a subclass without its own fields) per record, with the items of
    ``tail`` at its end, or with only the values if ``kind`` is None. Return None if the Python twin must judge.

    The cyclic collector does not track the returned records: a record holds nothing that could refer back to it, unless
    ``tail`` does. Otherwise a consumer that keeps 100,000 records would spend more time in the collector than here.
    """
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
    cdef Py_ssize_t tail_size = len(tail)
    cdef Py_ssize_t extra
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
        item = kind_type.tp_alloc(kind_type, 5 + tail_size)
        fill(item, 0, offset)
        fill(item, 1, stamp)
        fill(item, 2, made(key, key_size))
        fill(item, 3, made(value, value_size))
        fill(item, 4, headers)
        for extra in range(tail_size):
            fill(item, 5 + extra, tail[extra])
        PyObject_GC_UnTrack(<PyObject *>item)
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
    """See ``tidelog.proto.records.spans.record_spans``; None if the Python twin must judge."""
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
    """See ``tidelog.proto.records.spans.keyless_record``; None if the Python twin must judge."""
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


cdef struct Grow:
    uint8_t *at
    Py_ssize_t size
    Py_ssize_t room


cdef inline bint reserve(Grow *buffer, Py_ssize_t more) noexcept nogil:
    cdef Py_ssize_t room = buffer.size + more
    cdef uint8_t *moved
    if room <= buffer.room:
        return True
    room = max(room, 2 * buffer.room, <Py_ssize_t>CAPACITY_FIRST)
    moved = <uint8_t *>realloc(buffer.at, room)
    if moved == NULL:
        return False
    buffer.at = moved
    buffer.room = room
    return True


cdef inline void put_bit(Grow *bitmap, Py_ssize_t index, bint on) noexcept nogil:
    """Set a bit; the caller has reserved the room."""
    if index & 7 == 0:
        bitmap.at[index >> 3] = 0
        bitmap.size = (index >> 3) + 1
    if on:
        bitmap.at[index >> 3] |= <uint8_t>(1 << (index & 7))
    else:
        bitmap.at[index >> 3] &= <uint8_t>~(1 << (index & 7))


cdef struct Blobs:
    Grow data
    Grow ends
    Grow valid
    Py_ssize_t count
    Py_ssize_t nulls


cdef inline int put_blob(Blobs *column, const uint8_t *data, int64_t size) noexcept nogil:
    """Add a value; ``size`` is negative for null. Return a status of ``ColumnBuffer.add``."""
    cdef int64_t length = size if size > 0 else 0
    if column.data.size + length > INT32_MAX:
        return TOO_LARGE
    if not (reserve(&column.data, length) and reserve(&column.ends, 4) and reserve(&column.valid, 1)):
        return NO_MEMORY
    if length:
        memcpy(column.data.at + column.data.size, data, length)
        column.data.size += length
    put_bit(&column.valid, column.count, size >= 0)
    column.nulls += size < 0
    column.count += 1
    (<int32_t *>(column.ends.at + column.ends.size))[0] = <int32_t>column.data.size
    column.ends.size += 4
    return DONE


cdef inline int put_object(Blobs *column, bytes data):
    if data is None:
        return put_blob(column, NULL, -1)
    return put_blob(column, <const uint8_t *>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))


cdef inline bint begin(Grow *ends) noexcept nogil:
    """Write the zero with which a column of ends starts."""
    if not reserve(ends, 4):
        return False
    (<int32_t *>ends.at)[0] = 0
    ends.size = 4
    return True


cdef inline object taken_bytes(Grow *buffer):
    cdef object found = PyBytes_FromStringAndSize(<const char *>buffer.at, buffer.size)
    buffer.size = 0
    return found


cdef inline tuple taken_blobs(Blobs *column):
    cdef tuple found
    cdef object valid = None
    if column.nulls:
        valid = PyBytes_FromStringAndSize(<const char *>column.valid.at, column.valid.size)
    found = (column.count, column.nulls, valid, taken_bytes(&column.ends), taken_bytes(&column.data))
    column.valid.size = column.count = column.nulls = 0
    begin(&column.ends)
    return found


cdef inline void cut_blobs(Blobs *column, Py_ssize_t count, Py_ssize_t nulls) noexcept nogil:
    column.count = count
    column.nulls = nulls
    column.ends.size = 4 * (count + 1)
    column.data.size = (<int32_t *>column.ends.at)[count]
    cut_bits(&column.valid, count)


cdef inline void cut_bits(Grow *bitmap, Py_ssize_t count) noexcept nogil:
    bitmap.size = (count + 7) >> 3
    if count & 7:
        bitmap.at[count >> 3] &= <uint8_t>((1 << (count & 7)) - 1)


cdef inline void free_blobs(Blobs *column) noexcept nogil:
    free(column.data.at)
    free(column.ends.at)
    free(column.valid.at)


cdef inline int64_t micros(int64_t stamp) noexcept nogil:
    if stamp > INT64_MAX // 1000:
        return INT64_MAX
    if stamp < INT64_MIN // 1000:
        return INT64_MIN
    return stamp * 1000


cdef class ColumnBuffer:
    """See ``tidelog.proto.records.columns.ColumnBuffer``."""

    cdef Grow _offsets
    cdef Grow _times
    cdef Grow _kinds
    cdef Grow _header_ends
    cdef Grow _header_valid
    cdef Blobs _keys
    cdef Blobs _values
    cdef Blobs _names
    cdef Blobs _contents
    cdef Py_ssize_t _without
    cdef bint _headers
    cdef readonly Py_ssize_t count

    def __cinit__(self, *, bint headers=False):
        self._headers = headers
        if not (
            begin(&self._keys.ends)
            and begin(&self._values.ends)
            and begin(&self._names.ends)
            and begin(&self._contents.ends)
            and begin(&self._header_ends)
        ):
            raise MemoryError

    def __dealloc__(self):
        free_blobs(&self._keys)
        free_blobs(&self._values)
        free_blobs(&self._names)
        free_blobs(&self._contents)
        free(self._offsets.at)
        free(self._times.at)
        free(self._kinds.at)
        free(self._header_ends.at)
        free(self._header_valid.at)

    @property
    def size(self):
        return self._keys.data.size + self._values.data.size + self._names.data.size + self._contents.data.size

    def add(self, bytes body, int64_t base_offset, int64_t base_timestamp, fixed_timestamp, int32_t count,
            int32_t last_delta, int64_t first, int64_t end):
        """Add a batch's records with offsets from ``first`` to before ``end``. Return False, with nothing changed, if
        the Python twin must judge."""
        cdef bint fixed = fixed_timestamp is not None
        cdef int64_t stamp = fixed_timestamp if fixed else base_timestamp
        cdef const uint8_t *start = <const uint8_t *>PyBytes_AS_STRING(body)
        cdef const uint8_t *stop = start + PyBytes_GET_SIZE(body)
        cdef Py_ssize_t rows = self.count, without = self._without, names = self._names.count
        cdef Py_ssize_t null_keys = self._keys.nulls, null_values = self._values.nulls
        cdef Py_ssize_t null_contents = self._contents.nulls
        cdef int status
        if not -TIME_MAX < base_timestamp < TIME_MAX or not 0 <= base_offset < TIME_MAX:
            return False
        with nogil:
            status = self._add(start, stop, base_offset, stamp, fixed, count, last_delta, first, end)
            if status != DONE:
                self.count = rows
                self._without = without
                cut_blobs(&self._keys, rows, null_keys)
                cut_blobs(&self._values, rows, null_values)
                cut_blobs(&self._names, names, 0)
                cut_blobs(&self._contents, names, null_contents)
                self._offsets.size = self._times.size = 8 * rows
                self._kinds.size = 4 * rows
                if self._headers:
                    self._header_ends.size = 4 * (rows + 1)
                    cut_bits(&self._header_valid, rows)
        return judged(status)

    cdef int _add(self, const uint8_t *at, const uint8_t *end_of_body, int64_t base_offset, int64_t base_timestamp,
                  bint fixed, int32_t count, int32_t last_delta, int64_t first, int64_t end) noexcept nogil:
        cdef const uint8_t *stop
        cdef const uint8_t *key = NULL
        cdef const uint8_t *value = NULL
        cdef int64_t length, time, delta, key_size, value_size, header_count
        cdef int64_t previous = -1
        cdef int32_t number
        cdef bint wanted
        cdef int status
        for number in range(count):
            if not get(&at, end_of_body, 32, &length) or length < 1 or length > end_of_body - at:
                return UNUSUAL
            stop = at + length
            at += 1
            if not get(&at, stop, 64, &time) or not -TIME_MAX < time < TIME_MAX:
                return UNUSUAL
            if not get(&at, stop, 32, &delta) or delta <= previous:
                return UNUSUAL
            previous = delta
            if not get_bytes(&at, stop, &key, &key_size) or not get_bytes(&at, stop, &value, &value_size):
                return UNUSUAL
            if not get(&at, stop, 32, &header_count) or header_count < 0 or header_count > stop - at:
                return UNUSUAL
            wanted = first <= base_offset + delta < end
            if header_count:
                status = self._add_headers(&at, stop, header_count, wanted and self._headers)
                if status != DONE:
                    return status
            if at != stop:
                return UNUSUAL
            if wanted:
                if not fixed:
                    time += base_timestamp
                else:
                    time = base_timestamp
                status = self._add_row(base_offset + delta, micros(time), fixed, key, key_size, value, value_size,
                                       header_count)
                if status != DONE:
                    return status
        if at != end_of_body or (count and previous > last_delta):
            return UNUSUAL
        return DONE

    cdef inline int _add_headers(self, const uint8_t **position, const uint8_t *stop, int64_t count,
                                 bint wanted) noexcept nogil:
        cdef const uint8_t *name = NULL
        cdef const uint8_t *content = NULL
        cdef int64_t name_size, content_size, number, index
        cdef int status
        for number in range(count):
            if not get_bytes(position, stop, &name, &name_size) or name_size < 0:
                return UNUSUAL
            if not get_bytes(position, stop, &content, &content_size):
                return UNUSUAL
            if not wanted:
                continue
            for index in range(name_size):
                if name[index] > 127:
                    return UNUSUAL  # it may not be UTF-8
            status = put_blob(&self._names, name, name_size)
            if status == DONE:
                status = put_blob(&self._contents, content, content_size)
            if status != DONE:
                return status
        return DONE

    cdef inline int _add_row(self, int64_t offset, int64_t time, int32_t kind, const uint8_t *key, int64_t key_size,
                             const uint8_t *value, int64_t value_size, int64_t header_count) noexcept nogil:
        """Add a row whose headers were already added."""
        cdef Py_ssize_t row = self.count
        cdef int status
        if not (reserve(&self._offsets, 8) and reserve(&self._times, 8) and reserve(&self._kinds, 4)):
            return NO_MEMORY
        if self._headers:
            if not (reserve(&self._header_ends, 4) and reserve(&self._header_valid, 1)):
                return NO_MEMORY
            (<int32_t *>self._header_ends.at)[row + 1] = <int32_t>self._names.count
            self._header_ends.size = 4 * (row + 2)
            put_bit(&self._header_valid, row, header_count > 0)
            self._without += header_count == 0
        status = put_blob(&self._keys, key, key_size)
        if status == DONE:
            status = put_blob(&self._values, value, value_size)
        if status != DONE:
            return status
        (<int64_t *>self._offsets.at)[row] = offset
        (<int64_t *>self._times.at)[row] = time
        (<int32_t *>self._kinds.at)[row] = kind
        self._offsets.size = self._times.size = 8 * (row + 1)
        self._kinds.size = 4 * (row + 1)
        self.count = row + 1
        return DONE

    def append(self, int64_t offset, int64_t stamp, int32_t kind, bytes key, bytes value, tuple headers):
        """Add one decoded record; see the twin."""
        cdef int status = DONE
        cdef const char *name_bytes
        cdef Py_ssize_t name_size
        if self._headers:
            for name, content in headers:
                name_bytes = PyUnicode_AsUTF8AndSize(name, &name_size)
                status = status or put_blob(&self._names, <const uint8_t *>name_bytes, name_size)
                status = status or put_object(&self._contents, content)
        if status == DONE:
            status = self._add_row(
                offset, micros(stamp), kind, <const uint8_t *>(NULL if key is None else PyBytes_AS_STRING(key)),
                -1 if key is None else PyBytes_GET_SIZE(key),
                <const uint8_t *>(NULL if value is None else PyBytes_AS_STRING(value)),
                -1 if value is None else PyBytes_GET_SIZE(value), len(headers),
            )
        if not judged(status):
            raise OverflowError("expected a column below 2 GiB, found more")

    def take(self):
        """Return the columns and start over; see the twin."""
        cdef object valid = None
        cdef tuple headers = None
        cdef tuple found
        if self._headers:
            if self._without:
                valid = PyBytes_FromStringAndSize(<const char *>self._header_valid.at, self._header_valid.size)
            headers = (
                self._without, valid, taken_bytes(&self._header_ends), taken_blobs(&self._names),
                taken_blobs(&self._contents),
            )
            begin(&self._header_ends)
        found = (
            self.count, taken_bytes(&self._offsets), taken_bytes(&self._times), taken_bytes(&self._kinds),
            taken_blobs(&self._keys), taken_blobs(&self._values), headers,
        )
        self.count = self._without = self._header_valid.size = 0
        return found


cdef bint judged(int status) except -1:
    if status == NO_MEMORY:
        raise MemoryError
    return status == DONE


include "_rows.pxi"
