/* Faults of one process's disk and wall clock, loaded before libc (LD_PRELOAD).

   TIDELOG_FAULTS_ROOT     the directory that is "the disk", as realpath(3) returns it; nothing outside it is affected
   TIDELOG_FAULTS_CONTROL  the control file with the words below, mapped and shared: another process writes, we obey

   A full disk gives ENOSPC to writes that grow a file beyond its last block of 4 KiB, once the blocks in `room` are
   used up: the write that reaches the end is short, as in write(2). Writes that do not grow a file pass, and so does
   the creation of an empty file (on ext4 the inode is there); a directory needs a block and is refused. Space reserved
   by fallocate(2) is ignored: such a write is refused here, and would pass on a real disk.

   The wall clock is the result of clock_gettime(CLOCK_REALTIME), gettimeofday, time and timespec_get; deadlines by
   that clock are moved back by the same amount before the kernel gets them. The monotonic clock is never changed.

   With every word 0 a call costs a few loads more than without the shim. */

#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

_Static_assert(sizeof(off_t) == 8 && sizeof(long) == 8, "a 64-bit system is expected");

#define MAGIC 0x3153544c55414654 /* "TFAULTS1" */

/* The order is that of faults.py. Times are in milliseconds, `room` in bytes, `clock_ns` in nanoseconds; `…_errno`
   is what the calls of that kind give, 0 for success. The last five count the calls that were hit. */
struct words {
    int64_t magic;
    int64_t full, room;
    int64_t write_errno, sync_errno, read_errno;
    int64_t write_ms, sync_ms, read_ms;
    int64_t stalled;
    int64_t clock_ns;
    int64_t attached;
    int64_t refused, shortened, failed, delayed, held;
};

enum kind { WRITE, SYNC, READ };

static struct words *words;
static char root[PATH_MAX];
static size_t root_size;

#define GET(word) __atomic_load_n(&words->word, __ATOMIC_ACQUIRE)
#define COUNT(word) __atomic_add_fetch(&words->word, 1, __ATOMIC_RELAXED)
#define NEXT(name)                                                                                                     \
    ({                                                                                                                 \
        static __typeof__(&name) found_;                                                                               \
        if (!found_) found_ = (__typeof__(&name))dlsym(RTLD_NEXT, #name);                                              \
        found_;                                                                                                        \
    })

static void refuse(const char *what) {
    fprintf(stderr, "fault shim: %s: expected a mapped control file and a directory, found: %s\n", what,
            strerror(errno));
    _exit(70);
}

/* A process that loaded the shim but cannot use it would make every fault a lie, so it exits. */
__attribute__((constructor)) static void attach(void) {
    const char *control = getenv("TIDELOG_FAULTS_CONTROL"), *place = getenv("TIDELOG_FAULTS_ROOT");
    if (!control || !place) {
        errno = EINVAL;
        refuse("TIDELOG_FAULTS_CONTROL and TIDELOG_FAULTS_ROOT");
    }
    root_size = strlen(place);
    if (root_size == 0 || root_size >= sizeof root || place[0] != '/') {
        errno = EINVAL;
        refuse("TIDELOG_FAULTS_ROOT");
    }
    memcpy(root, place, root_size + 1);
    struct stat found;
    int fd = NEXT(open)(control, O_RDWR | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &found) != 0) refuse(control);
    if (found.st_size < (off_t)sizeof(struct words)) {
        errno = EINVAL;
        refuse(control);
    }
    struct words *mapped = mmap(NULL, sizeof *words, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (mapped == MAP_FAILED) refuse(control);
    close(fd);
    if (mapped->magic != MAGIC) {
        errno = EINVAL;
        refuse(control);
    }
    words = mapped;
    COUNT(attached);
}

/* --- Is the call ours -------------------------------------------------------------------------------------------- */

static int armed(void) {
    return words && (GET(full) | GET(write_errno) | GET(sync_errno) | GET(read_errno) | GET(write_ms) | GET(sync_ms) |
                     GET(read_ms) | GET(stalled));
}

static int below(const char *path, size_t size) {
    return size >= root_size && memcmp(path, root, root_size) == 0 && (size == root_size || path[root_size] == '/');
}

static int path_of(int fd, char *path) {
    char name[32];
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(name, path, PATH_MAX - 1);
    if (size > 0) path[size] = 0;
    return (int)size;
}

static int mine(int fd) {
    char path[PATH_MAX];
    int kept = errno, size = path_of(fd, path);
    errno = kept;
    return size > 0 && below(path, size);
}

static int mine_at(int directory, const char *path) {
    char whole[PATH_MAX];
    if (path[0] == '/') return below(path, strlen(path));
    int kept = errno;
    if (directory != AT_FDCWD) {
        int hit = mine(directory);
        errno = kept;
        return hit;
    }
    int hit = getcwd(whole, sizeof whole) != NULL && below(whole, strlen(whole));
    errno = kept;
    return hit;
}

/* --- What happens to it ------------------------------------------------------------------------------------------ */

static void wait_ms(int64_t ms) {
    struct timespec left = {ms / 1000, ms % 1000 * 1000000};
    while (nanosleep(&left, &left) != 0 && errno == EINTR) continue;
}

/* Wait as the control file says; return 0, or -1 with errno if the call fails. */
static int enter(enum kind kind) {
    int kept = errno;
    if (GET(stalled)) {
        COUNT(held);
        while (GET(stalled)) wait_ms(2);
    }
    int64_t ms = kind == WRITE ? GET(write_ms) : kind == SYNC ? GET(sync_ms) : GET(read_ms);
    if (ms > 0) {
        COUNT(delayed);
        wait_ms(ms);
    }
    int64_t number = kind == WRITE ? GET(write_errno) : kind == SYNC ? GET(sync_errno) : GET(read_errno);
    errno = kept;
    if (number == 0) return 0;
    COUNT(failed);
    errno = (int)number;
    return -1;
}

#define BLOCK 4096

static int64_t in_blocks(int64_t size) {
    return (size + BLOCK - 1) / BLOCK * BLOCK;
}

/* Take whole blocks: the number wanted, or as many as are left. */
static int64_t take_room(int64_t wanted) {
    int64_t room = GET(room), taken;
    do {
        taken = room <= 0 ? 0 : wanted < room ? wanted : room / BLOCK * BLOCK;
    } while (!__atomic_compare_exchange_n(&words->room, &room, room - taken, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE));
    return taken;
}

/* Return how many of `size` bytes at `at` (-1: the current position) fit on the disk; -1 with errno for none. */
static ssize_t admit(int fd, size_t size, off_t at) {
    if (enter(WRITE) != 0) return -1;
    if (!GET(full) || size == 0) return (ssize_t)size;
    struct stat found;
    if (fstat(fd, &found) != 0) return -1;
    if (at < 0) at = fcntl(fd, F_GETFL) & O_APPEND ? found.st_size : lseek(fd, 0, SEEK_CUR);
    int64_t held = in_blocks(found.st_size), end = at + (int64_t)size;
    if (end <= held) return (ssize_t)size;
    if (at > held) held = at / BLOCK * BLOCK; /* a hole takes none */
    held += take_room(in_blocks(end) - held);
    if (end <= held) return (ssize_t)size;
    if (at >= held) {
        COUNT(refused);
        errno = ENOSPC;
        return -1;
    }
    COUNT(shortened);
    return held - at;
}

static size_t sum(const struct iovec *parts, int count) {
    size_t size = 0;
    for (int i = 0; i < count; i++) size += parts[i].iov_len;
    return size;
}

/* Describe the first `size` bytes of `parts` in `cut`, which has room for IOV_MAX. */
static int shorten(const struct iovec *parts, int count, size_t size, struct iovec *cut) {
    int used = 0;
    for (; used < count && size > 0; used++) {
        cut[used] = parts[used];
        if (cut[used].iov_len > size) cut[used].iov_len = size;
        size -= cut[used].iov_len;
    }
    return used;
}

/* --- Writing ----------------------------------------------------------------------------------------------------- */

ssize_t write(int fd, const void *data, size_t size) {
    if (armed() && mine(fd)) {
        ssize_t pass = admit(fd, size, -1);
        if (pass < 0) return -1;
        size = (size_t)pass;
    }
    return NEXT(write)(fd, data, size);
}

#define PWRITE(name)                                                                                                   \
    ssize_t name(int fd, const void *data, size_t size, off_t at) {                                                    \
        if (armed() && mine(fd)) {                                                                                     \
            ssize_t pass = admit(fd, size, at);                                                                        \
            if (pass < 0) return -1;                                                                                   \
            size = (size_t)pass;                                                                                       \
        }                                                                                                              \
        return NEXT(name)(fd, data, size, at);                                                                         \
    }
PWRITE(pwrite)
PWRITE(pwrite64)

#define VECTORED(name, parameters, at, ...)                                                                            \
    ssize_t name parameters {                                                                                          \
        struct iovec cut[IOV_MAX];                                                                                     \
        if (armed() && count >= 0 && count <= IOV_MAX && mine(fd)) {                                                   \
            size_t size = sum(parts, count);                                                                           \
            ssize_t pass = admit(fd, size, at);                                                                        \
            if (pass < 0) return -1;                                                                                   \
            if ((size_t)pass < size) {                                                                                 \
                count = shorten(parts, count, (size_t)pass, cut);                                                      \
                parts = cut;                                                                                           \
            }                                                                                                          \
        }                                                                                                              \
        return NEXT(name)(__VA_ARGS__);                                                                                \
    }
VECTORED(writev, (int fd, const struct iovec *parts, int count), -1, fd, parts, count)
VECTORED(pwritev, (int fd, const struct iovec *parts, int count, off_t offset), offset, fd, parts, count, offset)
VECTORED(pwritev2, (int fd, const struct iovec *parts, int count, off_t offset, int flags), offset, fd, parts, count,
         offset, flags)
#ifdef __GLIBC__
VECTORED(pwritev64, (int fd, const struct iovec *parts, int count, off_t offset), offset, fd, parts, count, offset)
VECTORED(pwritev64v2, (int fd, const struct iovec *parts, int count, off_t offset, int flags), offset, fd, parts,
         count, offset, flags)
#endif

/* Reserved blocks count as written. */
static int reserve(int fd, off_t end) {
    struct stat found;
    if (enter(WRITE) != 0) return -1;
    if (!GET(full) || fstat(fd, &found) != 0) return 0;
    int64_t wanted = in_blocks(end) - in_blocks(found.st_size);
    if (wanted <= 0 || take_room(wanted) == wanted) return 0;
    COUNT(refused);
    errno = ENOSPC;
    return -1;
}

#define FALLOCATE(name)                                                                                                \
    int name(int fd, int mode, off_t at, off_t size) {                                                                 \
        if (armed() && mine(fd) && reserve(fd, at + size) != 0) return -1;                                             \
        return NEXT(name)(fd, mode, at, size);                                                                         \
    }
FALLOCATE(fallocate)
FALLOCATE(fallocate64)

#define POSIX_FALLOCATE(name)                                                                                          \
    int name(int fd, off_t at, off_t size) {                                                                           \
        if (armed() && mine(fd)) {                                                                                     \
            int kept = errno;                                                                                          \
            if (reserve(fd, at + size) != 0) {                                                                         \
                int number = errno;                                                                                    \
                errno = kept;                                                                                          \
                return number;                                                                                         \
            }                                                                                                          \
        }                                                                                                              \
        return NEXT(name)(fd, at, size);                                                                               \
    }
POSIX_FALLOCATE(posix_fallocate)
POSIX_FALLOCATE(posix_fallocate64)

#define FTRUNCATE(name)                                                                                                \
    int name(int fd, off_t size) {                                                                                     \
        if (armed() && mine(fd) && enter(WRITE) != 0) return -1;                                                       \
        return NEXT(name)(fd, size);                                                                                   \
    }
FTRUNCATE(ftruncate)
FTRUNCATE(ftruncate64)

/* --- Making durable ---------------------------------------------------------------------------------------------- */

#define SYNCS(name)                                                                                                    \
    int name(int fd) {                                                                                                 \
        if (armed() && mine(fd) && enter(SYNC) != 0) return -1;                                                        \
        return NEXT(name)(fd);                                                                                         \
    }
SYNCS(fsync)
SYNCS(fdatasync)
SYNCS(syncfs)

/* --- Reading ----------------------------------------------------------------------------------------------------- */

#define READS(name, parameters, from, ...)                                                                             \
    ssize_t name parameters {                                                                                          \
        if (armed() && mine(from) && enter(READ) != 0) return -1;                                                      \
        return NEXT(name)(__VA_ARGS__);                                                                                \
    }
READS(read, (int fd, void *data, size_t size), fd, fd, data, size)
READS(pread, (int fd, void *data, size_t size, off_t at), fd, fd, data, size, at)
READS(pread64, (int fd, void *data, size_t size, off_t at), fd, fd, data, size, at)
READS(readv, (int fd, const struct iovec *parts, int count), fd, fd, parts, count)
READS(preadv, (int fd, const struct iovec *parts, int count, off_t at), fd, fd, parts, count, at)
READS(preadv2, (int fd, const struct iovec *parts, int count, off_t at, int flags), fd, fd, parts, count, at, flags)
#ifdef __GLIBC__
READS(preadv64, (int fd, const struct iovec *parts, int count, off_t at), fd, fd, parts, count, at)
READS(preadv64v2, (int fd, const struct iovec *parts, int count, off_t at, int flags), fd, fd, parts, count, at, flags)
#endif
READS(sendfile, (int to, int fd, off_t *at, size_t size), fd, to, fd, at, size)
READS(sendfile64, (int to, int fd, off_t *at, size_t size), fd, to, fd, at, size)

/* --- Names ------------------------------------------------------------------------------------------------------- */

/* Only creating a file is a write; opening one waits on a stalled disk, and reads nothing. */
static int opens(int directory, const char *path, int flags) {
    if (!armed() || !mine_at(directory, path)) return 0;
    struct stat found;
    int kept = errno, makes = flags & O_CREAT && fstatat(directory, path, &found, 0) != 0;
    errno = kept;
    if (makes || flags & O_TRUNC) return enter(WRITE);
    if (GET(stalled)) COUNT(held);
    while (GET(stalled)) wait_ms(2);
    errno = kept;
    return 0;
}

#define MODE(last)                                                                                                     \
    mode_t mode = 0;                                                                                                   \
    if (flags & O_CREAT || (flags & O_TMPFILE) == O_TMPFILE) {                                                         \
        va_list more;                                                                                                  \
        va_start(more, last);                                                                                          \
        mode = va_arg(more, mode_t);                                                                                   \
        va_end(more);                                                                                                  \
    }

#define OPEN(name)                                                                                                     \
    int name(const char *path, int flags, ...) {                                                                       \
        MODE(flags)                                                                                                    \
        return opens(AT_FDCWD, path, flags) != 0 ? -1 : NEXT(name)(path, flags, mode);                                 \
    }
OPEN(open)
OPEN(open64)

#define OPENAT(name)                                                                                                   \
    int name(int directory, const char *path, int flags, ...) {                                                        \
        MODE(flags)                                                                                                    \
        return opens(directory, path, flags) != 0 ? -1 : NEXT(name)(directory, path, flags, mode);                     \
    }
OPENAT(openat)
OPENAT(openat64)

static int changes(int directory, const char *path) {
    return armed() && mine_at(directory, path) ? enter(WRITE) : 0;
}

static int makes_directory(int directory, const char *path) {
    struct stat found;
    if (!armed() || !mine_at(directory, path)) return 0;
    if (enter(WRITE) != 0) return -1;
    if (!GET(full) || fstatat(directory, path, &found, 0) == 0 || take_room(BLOCK) == BLOCK) return 0;
    COUNT(refused);
    errno = ENOSPC;
    return -1;
}

int mkdir(const char *path, mode_t mode) {
    return makes_directory(AT_FDCWD, path) != 0 ? -1 : NEXT(mkdir)(path, mode);
}

int mkdirat(int directory, const char *path, mode_t mode) {
    return makes_directory(directory, path) != 0 ? -1 : NEXT(mkdirat)(directory, path, mode);
}

int rename(const char *from, const char *to) {
    return changes(AT_FDCWD, to) != 0 ? -1 : NEXT(rename)(from, to);
}

int renameat(int from_directory, const char *from, int to_directory, const char *to) {
    return changes(to_directory, to) != 0 ? -1 : NEXT(renameat)(from_directory, from, to_directory, to);
}

int unlink(const char *path) {
    return changes(AT_FDCWD, path) != 0 ? -1 : NEXT(unlink)(path);
}

int unlinkat(int directory, const char *path, int flags) {
    return changes(directory, path) != 0 ? -1 : NEXT(unlinkat)(directory, path, flags);
}

/* --- The wall clock ---------------------------------------------------------------------------------------------- */

#define BILLION 1000000000
/* No machine runs for that long: a deadline beyond it is by the wall clock. */
#define WALL_S 1000000000

static struct timespec moved(struct timespec at, int64_t by_ns) {
    int64_t ns = at.tv_nsec + by_ns % BILLION;
    at.tv_sec += by_ns / BILLION + (ns < 0 ? -1 : ns >= BILLION ? 1 : 0);
    at.tv_nsec = ns < 0 ? ns + BILLION : ns >= BILLION ? ns - BILLION : ns;
    return at;
}

static int64_t ahead_ns(void) {
    return words ? GET(clock_ns) : 0;
}

/* The kernel's wall clock, for measurements; nanoseconds since the epoch. */
int64_t tidelog_faults_real_ns(void) {
    struct timespec now;
    NEXT(clock_gettime)(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * BILLION + now.tv_nsec;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int done = NEXT(clock_gettime)(clock, now);
    if (done == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE || clock == CLOCK_TAI))
        *now = moved(*now, ahead_ns());
    return done;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec exact;
    int done = NEXT(gettimeofday)(now, zone);
    if (done == 0 && now != NULL && ahead_ns() != 0) {
        clock_gettime(CLOCK_REALTIME, &exact);
        now->tv_sec = exact.tv_sec;
        now->tv_usec = exact.tv_nsec / 1000;
    }
    return done;
}

time_t time(time_t *into) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (into) *into = now.tv_sec;
    return now.tv_sec;
}

int timespec_get(struct timespec *now, int base) {
    if (base != TIME_UTC) return 0;
    return clock_gettime(CLOCK_REALTIME, now) == 0 ? base : 0;
}

/* Convert a deadline to the kernel's clock. */
static const struct timespec *taken_back(const struct timespec *deadline, struct timespec *kept) {
    if (deadline == NULL || deadline->tv_sec < WALL_S || ahead_ns() == 0) return deadline;
    *kept = moved(*deadline, -ahead_ns());
    return kept;
}

#define UNTIL(name, parameters, ...)                                                                                   \
    int name parameters {                                                                                              \
        struct timespec kept;                                                                                          \
        deadline = taken_back(deadline, &kept);                                                                        \
        return NEXT(name)(__VA_ARGS__);                                                                                \
    }
UNTIL(sem_timedwait, (sem_t *restrict it, const struct timespec *restrict deadline), it, deadline)
UNTIL(pthread_mutex_timedlock, (pthread_mutex_t *restrict it, const struct timespec *restrict deadline), it, deadline)

#ifdef __GLIBC__
/* This symbol has two versions, and dlsym(3) may return the one for very old programs. */
int pthread_cond_timedwait(pthread_cond_t *restrict it, pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict deadline) {
    static __typeof__(&pthread_cond_timedwait) found;
    struct timespec kept;
    if (!found) found = (__typeof__(found))dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
    if (!found) found = (__typeof__(found))dlsym(RTLD_NEXT, "pthread_cond_timedwait");
    return found(it, mutex, taken_back(deadline, &kept));
}
#else
UNTIL(pthread_cond_timedwait,
      (pthread_cond_t *restrict it, pthread_mutex_t *restrict mutex, const struct timespec *restrict deadline), it,
      mutex, deadline)
#endif

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *deadline, struct timespec *left) {
    struct timespec kept;
    if (flags & TIMER_ABSTIME && clock == CLOCK_REALTIME) deadline = taken_back(deadline, &kept);
    return NEXT(clock_nanosleep)(clock, flags, deadline, left);
}

/* Abseil, and with it gRPC, waits on futexes by itself. */
long syscall(long number, ...) {
    long given[6];
    struct timespec kept;
    va_list more;
    va_start(more, number);
    for (int i = 0; i < 6; i++) given[i] = va_arg(more, long);
    va_end(more);
    if (number == SYS_futex && given[1] & FUTEX_CLOCK_REALTIME && (given[1] & FUTEX_CMD_MASK) == FUTEX_WAIT_BITSET)
        given[3] = (long)taken_back((const struct timespec *)given[3], &kept);
    return NEXT(syscall)(number, given[0], given[1], given[2], given[3], given[4], given[5]);
}
