# Part of _codec.pyx: the compiled twin of tidelog.proto.records.row_writer.

cdef enum:  # tidelog.proto.records.sent_columns.Fault
    NO_FAULT = 0
    LAYOUT = 1
    NEGATIVE_PARTITION = 2
    UNKNOWN_PARTITION = 3
    NAMELESS_HEADER = 4
    NEGATIVE_TIMESTAMP = 5
    RECORD_TOO_LARGE = 6

cdef enum:  # what is reckoned for a record, as in the twin
    RECKONED = 12
    RECKONED_MAX = 21
    RECKONED_HEADER = 10

cdef struct View:
    const uint8_t *at
    int64_t size

cdef struct BlobView:
    bint there
    View ends
    View data
    const uint8_t *valid
    int64_t first
    bint wide

cdef struct NumberView:
    bint there
    View data
    const uint8_t *valid
    int64_t first

cdef struct HeaderView:
    bint there
    View ends
    const uint8_t *valid
    int64_t first
    bint wide
    int64_t pairs
    BlobView names
    BlobView contents
    const uint8_t *pairs_valid
    int64_t pairs_first

cdef struct Blob:
    const uint8_t *at
    int64_t size  # negative for null


cdef inline bint bit(const uint8_t *bits, int64_t at) noexcept nogil:
    return bits == NULL or bits[at >> 3] >> (at & 7) & 1


cdef inline int64_t number_at(const View *data, int64_t index, bint wide) noexcept nogil:
    cdef int64_t large
    cdef int32_t small
    if wide:
        memcpy(&large, data.at + 8 * index, 8)
        return large
    memcpy(&small, data.at + 4 * index, 4)
    return small


cdef inline bint find(const BlobView *column, int64_t row, Blob *blob) noexcept nogil:
    """False where its place in the buffers is none."""
    cdef int64_t start, stop
    blob.size = -1
    if not column.there or not bit(column.valid, column.first + row):
        return True
    start = number_at(&column.ends, column.first + row, column.wide)
    stop = number_at(&column.ends, column.first + row + 1, column.wide)
    if not 0 <= start <= stop <= column.data.size:
        return False
    blob.at = column.data.at + start
    blob.size = stop - start
    return True


cdef inline bint pairs_of(const HeaderView *headers, int64_t row, int64_t *start, int64_t *stop) noexcept nogil:
    start[0] = stop[0] = 0
    if not headers.there or not bit(headers.valid, headers.first + row):
        return True
    start[0] = number_at(&headers.ends, headers.first + row, headers.wide)
    stop[0] = number_at(&headers.ends, headers.first + row + 1, headers.wide)
    return 0 <= start[0] <= stop[0] <= headers.pairs


cdef inline int header_fault(const HeaderView *headers, int64_t pair, Blob *name, Blob *content) noexcept nogil:
    content.size = -1
    content.at = NULL
    if not find(&headers.names, pair, name) or not find(&headers.contents, pair, content):
        return LAYOUT
    if name.size < 0 or not bit(headers.pairs_valid, headers.pairs_first + pair):
        return NAMELESS_HEADER
    return NO_FAULT


cdef inline uint32_t murmur2(const uint8_t *data, int64_t length) noexcept nogil:
    """Kafka's ``Utils.murmur2``; little-endian whatever the machine is."""
    cdef uint32_t h = 0x9747B28CU ^ <uint32_t>length
    cdef uint32_t k
    cdef int64_t at
    cdef int64_t whole = length & ~3
    for at in range(0, whole, 4):
        k = data[at] | <uint32_t>data[at + 1] << 8 | <uint32_t>data[at + 2] << 16 | <uint32_t>data[at + 3] << 24
        k *= 0x5BD1E995U
        k ^= k >> 24
        k *= 0x5BD1E995U
        h = h * 0x5BD1E995U ^ k
    if length > whole:
        k = 0
        for at in range(length - 1, whole - 1, -1):
            k = k << 8 | data[at]
        h = (h ^ k) * 0x5BD1E995U
    h = (h ^ h >> 13) * 0x5BD1E995U
    return h ^ h >> 15


cdef inline int64_t blob_width(const Blob *blob) noexcept nogil:
    return 1 if blob.size < 0 else width(blob.size) + blob.size


cdef inline uint8_t *put_view(uint8_t *at, const Blob *blob) noexcept nogil:
    at = put(at, blob.size)
    if blob.size > 0:
        memcpy(at, blob.at, blob.size)
        at += blob.size
    return at


cdef class RowWriter:
    """See ``tidelog.proto.records.row_writer.RowWriter``; takes what ``flattened`` gives."""

    cdef list _held  # keeps the buffers where they are
    cdef int64_t _rows
    cdef int64_t _partition_count
    cdef BlobView _values
    cdef BlobView _keys
    cdef HeaderView _headers
    cdef NumberView _partitions
    cdef NumberView _times
    cdef int32_t *_targets  # of a plan without faults, else NULL
    cdef int64_t *_sizes
    cdef int32_t *_order  # of rows that were grouped, else NULL

    def __cinit__(self, rows, values, keys, headers, partitions, timestamps):
        self._held = []
        if not 0 <= rows <= INT32_MAX:
            raise ValueError(f"rows: expected 0 to {INT32_MAX}, found {rows}")
        self._rows = rows
        if not rows:
            return
        self._blobs(&self._values, values, rows)
        self._blobs(&self._keys, keys, rows)
        self._find_headers(headers)
        self._numbers(&self._partitions, partitions, 4)
        self._numbers(&self._times, timestamps, 8)

    def __dealloc__(self):
        free(self._targets)
        free(self._sizes)
        free(self._order)

    cdef int _view(self, View *into, buffer) except -1:
        cdef const uint8_t[::1] view = buffer
        self._held.append(buffer)
        into.size = view.shape[0]
        into.at = &view[0] if into.size else <const uint8_t *>NOTHING
        return 0

    cdef int _bits(self, const uint8_t **into, buffer, int64_t first, int64_t count) except -1:
        cdef View view
        into[0] = NULL
        if buffer is None:
            return 0
        self._view(&view, buffer)
        if first < 0 or 8 * view.size - count < first:
            raise ValueError(f"expected a bitmap of {count} from {first} on, found {view.size} bytes")
        into[0] = view.at
        return 0

    cdef int _room(self, const View *view, int64_t first, int64_t count, int64_t size) except -1:
        if count and (first < 0 or view.size // size - count < first):
            raise ValueError(f"expected {count} numbers of {size} bytes from {first} on, found {view.size} bytes")
        return 0

    cdef int _blobs(self, BlobView *into, column, int64_t rows) except -1:
        into.there = column is not None and rows
        if not into.there:
            return 0
        ends, data, valid, first, wide = column
        into.first = first
        into.wide = wide
        self._view(&into.ends, ends)
        self._room(&into.ends, into.first, rows + 1, 8 if into.wide else 4)
        self._view(&into.data, data)
        self._bits(&into.valid, valid, into.first, rows)
        return 0

    cdef int _numbers(self, NumberView *into, column, int64_t size) except -1:
        into.there = column is not None
        if not into.there:
            return 0
        data, valid, first = column
        into.first = first
        self._view(&into.data, data)
        self._room(&into.data, into.first, self._rows, size)
        self._bits(&into.valid, valid, into.first, self._rows)
        return 0

    cdef int _find_headers(self, column) except -1:
        cdef HeaderView *into = &self._headers
        into.there = column is not None
        if not into.there:
            return 0
        ends, valid, first, wide, names, contents, pairs_valid, pairs_first = column
        into.first = first
        into.wide = wide
        self._view(&into.ends, ends)
        self._room(&into.ends, into.first, self._rows + 1, 8 if into.wide else 4)
        self._bits(&into.valid, valid, into.first, self._rows)
        into.pairs = max(number_at(&into.ends, into.first + self._rows, into.wide), 0)
        self._blobs(&into.names, names, into.pairs)
        self._blobs(&into.contents, contents, into.pairs)
        into.pairs_first = pairs_first
        self._bits(&into.pairs_valid, pairs_valid, into.pairs_first, into.pairs)
        return 0

    def plan(self, int32_t partition_count, int32_t partition, bint ignore_keys, int64_t size_max):
        """See the twin."""
        cdef int64_t row = 0, found = 0
        cdef int32_t *targets
        cdef int fault
        free(self._order)
        self._order = NULL
        if partition_count < 1:
            raise ValueError(f"partition_count: expected 1 or more, found {partition_count}")
        targets = <int32_t *>realloc(self._targets, 4 * self._rows + 1)
        if targets == NULL:
            raise MemoryError
        self._targets = targets
        sizes = <int64_t *>realloc(self._sizes, 8 * self._rows + 1)
        if sizes == NULL:
            raise MemoryError
        self._sizes = sizes
        self._partition_count = partition_count
        with nogil:
            fault = self._plan(partition_count, partition, ignore_keys, size_max, &row, &found)
        if fault:
            free(self._targets)
            self._targets = NULL
            return fault, row, found
        return NO_FAULT, 0, found

    cdef int _plan(self, int64_t partition_count, int64_t partition, bint ignore_keys, int64_t size_max,
                   int64_t *bad, int64_t *found) noexcept nogil:
        cdef Blob key, value, name, content
        cdef int64_t row, target, time, size, pair, stop, spare = 0
        cdef int fault
        for row in range(self._rows):
            bad[0] = row
            if not find(&self._values, row, &value) or not find(&self._keys, row, &key):
                return LAYOUT
            target = partition
            if partition < 0 and self._partitions.there and bit(self._partitions.valid, self._partitions.first + row):
                target = number_at(&self._partitions.data, self._partitions.first + row, False)
                found[0] = target
                if target < 0:
                    return NEGATIVE_PARTITION
            if target < 0 and key.size >= 0 and not ignore_keys:
                target = (murmur2(key.at, key.size) & 0x7FFFFFFFU) % partition_count
            if target >= partition_count:
                found[0] = target
                return UNKNOWN_PARTITION
            if self._times.there and bit(self._times.valid, self._times.first + row):
                time = number_at(&self._times.data, self._times.first + row, True)
                if time < 0:
                    found[0] = time
                    return NEGATIVE_TIMESTAMP
            size = max(key.size, 0) + max(value.size, 0)
            if self._headers.there:
                found[0] = 0
                if not pairs_of(&self._headers, row, &pair, &stop):
                    return LAYOUT
                while pair < stop:
                    fault = header_fault(&self._headers, pair, &name, &content)
                    if fault:
                        return fault
                    size += name.size + max(content.size, 0) + RECKONED_HEADER
                    pair += 1
            found[0] = size + HEADER_SIZE + RECKONED_MAX
            if found[0] > size_max:
                return RECORD_TOO_LARGE
            if target < 0:
                spare += size + RECKONED
            self._targets[row] = <int32_t>target
            self._sizes[row] = size + RECKONED
            found[0] = 0
        found[0] = spare
        return NO_FAULT

    def group(self, picks, int64_t step):
        """See the twin."""
        cdef int64_t count = len(picks)
        cdef int64_t index, row, target, spare = 0, last = count - 1, total = 0
        cdef int32_t *chosen
        cdef int64_t *places
        cdef list found = []
        if self._targets == NULL:
            raise ValueError("group() before a plan without faults")
        if step < 1:
            raise ValueError(f"step: expected 1 or more, found {step}")
        chosen = <int32_t *>realloc(NULL, 4 * count + 1)
        places = <int64_t *>realloc(NULL, 8 * (self._partition_count + 1))
        free(self._order)
        self._order = <int32_t *>realloc(NULL, 4 * self._rows + 1)
        try:
            if chosen == NULL or places == NULL or self._order == NULL:
                raise MemoryError
            for index in range(count):
                target = picks[index]
                if not 0 <= target < self._partition_count:
                    raise ValueError(f"expected a partition of 0 to {self._partition_count - 1}, found {target}")
                chosen[index] = <int32_t>target
            memset(places, 0, 8 * (self._partition_count + 1))
            for row in range(self._rows):
                target = self._targets[row]
                if target < 0:
                    if not count:
                        raise ValueError("expected a partition for free rows, found none")
                    target = chosen[min(spare // step, last)]
                    spare += self._sizes[row]
                places[target + 1] += 1
            for target in range(self._partition_count):
                if places[target + 1]:
                    found.append((target, total, total + places[target + 1]))
                    total += places[target + 1]
                places[target + 1] = total
            spare = 0
            with nogil:
                for row in range(self._rows):
                    target = self._targets[row]
                    if target < 0:
                        target = chosen[min(spare // step, last)]
                        spare += self._sizes[row]
                    self._order[places[target]] = <int32_t>row
                    places[target] += 1
        except BaseException:
            free(self._order)
            self._order = NULL
            raise
        finally:
            free(chosen)
            free(places)
        return found

    def write(self, int64_t start, int64_t stop, int64_t bytes_max, int64_t now_ms):
        """See the twin."""
        cdef int64_t at = start, base = 0, highest = 0, total = HEADER_SIZE
        cdef bytearray out
        cdef uint8_t *place
        cdef bint sound
        if self._order == NULL or not 0 <= start < stop <= self._rows:
            raise ValueError(f"expected places of rows that were grouped, found {start} to {stop}")
        if not 0 <= now_ms < TIME_MAX:
            raise ValueError(f"now_ms: expected 0 to 2**62, found {now_ms}")
        with nogil:
            sound = self._measure(start, stop, bytes_max, now_ms, &at, &total, &base, &highest)
        if sound:
            out = PyByteArray_FromStringAndSize(NULL, total)
            place = <uint8_t *>PyByteArray_AS_STRING(out)
            with nogil:
                memset(place, 0, HEADER_SIZE)
                sound = self._put_rows(start, at, now_ms, base, place + HEADER_SIZE, place + total)
        if not sound:
            raise ValueError("expected the columns that were planned, found others")
        return out, at, base, highest

    cdef inline int64_t _time(self, int64_t row, int64_t now_ms) noexcept nogil:
        if self._times.there and bit(self._times.valid, self._times.first + row):
            return number_at(&self._times.data, self._times.first + row, True) // 1000
        return now_ms

    cdef inline int64_t _body(self, int64_t row, int64_t later, int64_t number, Blob *key, Blob *value, int64_t *pair,
                              int64_t *stop) noexcept nogil:
        """Bytes of a record but for its length; -1 where its columns are not sound."""
        cdef Blob name, content
        cdef int64_t size, index
        if not find(&self._values, row, value) or not find(&self._keys, row, key):
            return -1
        if not pairs_of(&self._headers, row, pair, stop):
            return -1
        size = 1 + width(later) + width(number) + blob_width(key) + blob_width(value) + width(stop[0] - pair[0])
        for index in range(pair[0], stop[0]):
            if header_fault(&self._headers, index, &name, &content):
                return -1
            size += blob_width(&name) + blob_width(&content)
        return size if size <= INT32_MAX else -1

    cdef bint _measure(self, int64_t start, int64_t stop, int64_t bytes_max, int64_t now_ms, int64_t *after,
                       int64_t *total, int64_t *base, int64_t *highest) noexcept nogil:
        cdef Blob key, value
        cdef int64_t at, row, time, body, pair, last
        for at in range(start, stop):
            row = self._order[at]
            time = self._time(row, now_ms)
            if at == start:
                base[0] = highest[0] = time
            body = self._body(row, time - base[0], at - start, &key, &value, &pair, &last)
            if body < 0:
                return False
            if at > start and total[0] + width(body) + body > bytes_max:
                return True
            total[0] += width(body) + body
            if time > highest[0]:
                highest[0] = time
            after[0] = at + 1
        return True

    cdef bint _put_rows(self, int64_t start, int64_t stop, int64_t now_ms, int64_t base, uint8_t *place,
                        const uint8_t *end) noexcept nogil:
        cdef Blob key, value, name, content
        cdef int64_t at, row, later, body, pair, last
        for at in range(start, stop):
            row = self._order[at]
            later = self._time(row, now_ms) - base
            body = self._body(row, later, at - start, &key, &value, &pair, &last)
            if body < 0 or width(body) + body > end - place:
                return False
            place = put(place, body)
            place[0] = 0
            place = put(place + 1, later)
            place = put(place, at - start)
            place = put_view(place, &key)
            place = put_view(place, &value)
            place = put(place, last - pair)
            while pair < last:
                if header_fault(&self._headers, pair, &name, &content):
                    return False
                place = put_view(place, &name)
                place = put_view(place, &content)
                pair += 1
        return place == end
