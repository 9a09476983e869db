# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Compiled twin of ``client/fast_path.py``'s work for each record, several times as fast.

Nothing here lets another thread run between the first read of an open batch and the last change to it: the code calls
no Python code and creates nothing that could trigger the cyclic collector. So holding the interpreter's lock and seeing
that the producer's own lock is free is as good as taking it.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_GetItem
from cpython.list cimport PyList_Append
from cpython.object cimport PyObject
from cpython.unicode cimport PyUnicode_CheckExact
from libc.stdint cimport int64_t, uint8_t, uint32_t
from posix.time cimport CLOCK_REALTIME, clock_gettime, timespec

cimport cython

import functools
import time

cdef extern from "Python.h":
    ctypedef struct PyTypeObject:
        object (*tp_new)(PyTypeObject *, PyObject *, PyObject *)

VERSION = 1
"""Incremented whenever Python code expects something else of this module; builds with another version are not used."""

cdef enum:
    RECORD_OVERHEAD = 12

cdef tuple NOTHING = ()


@cython.no_gc
cdef class Handle:
    cdef readonly object _delivery
    cdef readonly int64_t _index

    def __init__(self, delivery, int64_t index):
        self._delivery = delivery
        self._index = index


cdef class OpenColumns:
    cdef public object delivery
    cdef public list keys, values
    cdef public int64_t count, room, tick_ns, keyed_tick_ns


cdef class OpenBatches:
    cdef public dict open
    cdef public OpenColumns open_sticky
    cdef public int64_t partition_count


cdef class Taking:
    cdef public dict plain_topics, keyed_topics
    cdef object _is_locked, _now_ns
    cdef type _made
    cdef bint _own_clock

    def __init__(self, is_locked, now_ns, type made):
        self.plain_topics = {}
        self.keyed_topics = {}
        self._is_locked = is_locked
        self._now_ns = now_ns
        self._own_clock = now_ns is time.time_ns
        self._made = made

    cdef object quick(self, object topic, object value, object key):
        """Add a record to an open batch and return its future; None if that needs the slow path."""
        cdef PyObject *found
        cdef OpenBatches queues
        cdef OpenColumns batch
        cdef int64_t size, now
        cdef timespec spec
        cdef Handle made
        if not PyBytes_CheckExact(value) or not PyUnicode_CheckExact(topic):
            return None
        if self._own_clock:
            clock_gettime(CLOCK_REALTIME, &spec)
            now = <int64_t>spec.tv_sec * 1_000_000_000 + spec.tv_nsec
        else:
            now = self._now_ns()
        if self._is_locked():
            return None
        size = PyBytes_GET_SIZE(value) + RECORD_OVERHEAD
        if key is None:
            found = PyDict_GetItem(self.plain_topics, topic)
            if found is NULL:
                return None
            batch = (<OpenBatches>found).open_sticky
            if batch is None or batch.room < size or now >= batch.tick_ns:
                return None
        elif PyBytes_CheckExact(key):
            found = PyDict_GetItem(self.keyed_topics, topic)
            if found is NULL:
                return None
            queues = <OpenBatches>found
            found = PyDict_GetItem(queues.open, chosen(key, queues.partition_count))
            if found is NULL:
                return None
            batch = <OpenColumns>found
            size += PyBytes_GET_SIZE(key)
            if batch.room < size or now >= batch.keyed_tick_ns:
                return None
            batch.keys.append(key)
        else:
            return None
        batch.values.append(value)
        made = <Handle>(<PyTypeObject *>self._made).tp_new(<PyTypeObject *>self._made, <PyObject *>NOTHING, NULL)
        made._delivery = batch.delivery
        made._index = batch.count
        batch.count += 1
        batch.room -= size
        return made

    def take(self, topic, value, key):
        future = self.quick(topic, value, key)
        return self.take_locked(topic, value, key) if future is None else future


cdef inline int64_t chosen(bytes key, int64_t partition_count) noexcept:
    return <int64_t>(hashed(<const uint8_t *>PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key)) & 0x7FFF_FFFF) % partition_count


cdef uint32_t hashed(const uint8_t *data, Py_ssize_t length) noexcept nogil:
    cdef uint32_t m = 0x5BD1E995
    cdef uint32_t h = 0x9747B28CU ^ <uint32_t>length
    cdef uint32_t k
    cdef Py_ssize_t whole = length & ~3
    cdef Py_ssize_t at = 0
    while at < whole:
        k = data[at] | <uint32_t>data[at + 1] << 8 | <uint32_t>data[at + 2] << 16 | <uint32_t>data[at + 3] << 24
        k *= m
        k ^= k >> 24
        k *= m
        h = h * m ^ k
        at += 4
    if length > whole:
        k = data[whole]
        if length > whole + 1:
            k |= <uint32_t>data[whole + 1] << 8
        if length > whole + 2:
            k |= <uint32_t>data[whole + 2] << 16
        h = (h ^ k) * m
    h = (h ^ h >> 13) * m
    return h ^ h >> 15


def murmur2(bytes data):
    return hashed(<const uint8_t *>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))


def fast_send(slow):
    @functools.wraps(slow)
    def send(
        self, topic, value=None, key=None, *, headers=None, partition=None, timestamp_ms=None, on_delivery=None
    ):
        if headers is None and partition is None and timestamp_ms is None and on_delivery is None:
            future = (<Taking?>self._taking).quick(topic, value, key)
            if future is not None:
                return future
        return slow(
            self,
            topic,
            value,
            key,
            headers=headers,
            partition=partition,
            timestamp_ms=timestamp_ms,
            on_delivery=on_delivery,
        )

    return send
