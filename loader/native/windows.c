/* Brings a stretch of a file to a device, window after window: read into a page-locked slot, queue the copies, take the next slot.

   Plain C without a header of Python's or CUDA's, so one build serves every version of both: the driver's functions come as
   pointers. Threads, pages, pace and the words of errors are Python's part, in `loader.copiers.windows`. */

#include <errno.h>
#include <stdint.h>
#include <time.h>
#include <unistd.h>

enum { VERSION = 1 /* of the structures below; Python refuses another */, PAGE = 4096 };
enum { DONE = 0, READ_FAILED = 1, ENDED_EARLY = 2, LOCK_REFUSED = 3, COPY_FAILED = 4 };
enum { NOT_READY = 600 /* CUDA_ERROR_NOT_READY */, PORTABLE = 1 /* CU_MEMHOSTREGISTER_PORTABLE */, REST_NANOSECONDS = 20000 };

struct driver {
  int (*lock)(void *memory, size_t nbytes, unsigned flags);                                   /* cuMemHostRegister */
  int (*copy)(unsigned long long target, const void *source, size_t nbytes, void *stream);    /* cuMemcpyHtoDAsync */
  int (*record)(void *event, void *stream);                                                   /* cuEventRecord */
  int (*query)(void *event);                                                                  /* cuEventQuery */
  void *stream;
};

struct slot {
  char *memory;
  uint64_t nbytes; /* of it, that are locked at once */
  void *event;     /* its last copy */
  uint64_t locked;
};

struct worker { /* one thread's own */
  const struct driver *driver;
  struct slot *slots;
  uint64_t slot_count, turn, window_bytes;
  uint64_t done; /* bytes of the stretch whose copies are queued */
  int64_t code;  /* errno, or the driver's */
};

struct copy { /* bytes of the file from `begin` on belong at `target` */
  uint64_t target, begin, nbytes;
};

struct stretch {
  uint64_t begin, nbytes; /* of the file */
  const struct copy *copies; /* by `begin`; none overlap, all lie inside */
  uint64_t copy_count;
  int64_t descriptor;
};

static int failed(struct worker *worker, int64_t code, int outcome) {
  worker->code = code;
  return outcome;
}

/* Asks again and again, resting in between: an event that wakes its waiter interrupts the device's copies. */
static int wait_for(const struct driver *driver, void *event) {
  const struct timespec rest = {0, REST_NANOSECONDS};
  int code;
  while ((code = driver->query(event)) == NOT_READY) nanosleep(&rest, NULL);
  return code;
}

static int fill(struct worker *worker, int descriptor, char *memory, uint64_t begin, uint64_t end) {
  while (begin < end) {
    const ssize_t count = pread(descriptor, memory, end - begin, (off_t)begin);
    if (count > 0) {
      memory += count;
      begin += (uint64_t)count;
    } else if (count == 0) {
      return failed(worker, 0, ENDED_EARLY);
    } else if (errno != EINTR) {
      return failed(worker, errno, READ_FAILED);
    }
  }
  return DONE;
}

static int lock(struct worker *worker, struct slot *slot) {
  if (slot->locked) return DONE;
  const int code = worker->driver->lock(slot->memory, slot->nbytes, PORTABLE);
  if (code) return failed(worker, code, LOCK_REFUSED);
  slot->locked = 1;
  return DONE;
}

static uint64_t most(uint64_t one, uint64_t other) { return one > other ? one : other; }
static uint64_t least(uint64_t one, uint64_t other) { return one < other ? one : other; }

/* Queue what of the window belongs somewhere; `next` is the first copy that may reach into it, and moves on. */
static int queue(struct worker *worker, const struct stretch *stretch, const char *memory, uint64_t begin, uint64_t end,
                 uint64_t *next) {
  const struct driver *driver = worker->driver;
  for (; *next < stretch->copy_count; ++*next) {
    const struct copy *copy = &stretch->copies[*next];
    const uint64_t from = most(begin, copy->begin), to = least(end, copy->begin + copy->nbytes);
    if (from < to) {
      const int code = driver->copy(copy->target + from - copy->begin, memory + (from - begin), to - from, driver->stream);
      if (code) return failed(worker, code, COPY_FAILED);
    }
    if (copy->begin + copy->nbytes > end) break; /* the next window has its rest */
  }
  return DONE;
}

static int bring(struct worker *worker, const struct stretch *stretch, uint64_t begin, uint64_t end, uint64_t *next) {
  struct slot *slot = &worker->slots[worker->turn];
  worker->turn = (worker->turn + 1) % worker->slot_count;
  int code = wait_for(worker->driver, slot->event);
  if (code) return failed(worker, code, COPY_FAILED);
  int outcome = fill(worker, (int)stretch->descriptor, slot->memory, begin, end);
  /* After the first read, which has brought the pages: locking those is quick, and the others read meanwhile. */
  if (outcome == DONE) outcome = lock(worker, slot);
  if (outcome == DONE) outcome = queue(worker, stretch, slot->memory, begin, end, next);
  if (outcome != DONE) return outcome;
  code = worker->driver->record(slot->event, worker->driver->stream);
  return code ? failed(worker, code, COPY_FAILED) : DONE;
}

uint32_t emberpool_windows_version(void) { return VERSION; }

/* Bring a whole stretch; where it fails, `done` and `code` say how far it came and why. */
int emberpool_windows_bring(struct worker *worker, const struct stretch *stretch) {
  const uint64_t end = stretch->begin + stretch->nbytes;
  uint64_t begin = stretch->begin, next = 0;
  worker->done = 0;
  while (begin < end) {
    /* Windows end on pages, which are copied out of the page cache faster than parts of pages. */
    const uint64_t stop = least(end, (begin + worker->window_bytes) / PAGE * PAGE);
    const int outcome = bring(worker, stretch, begin, stop, &next);
    if (outcome != DONE) return outcome;
    worker->done = stop - stretch->begin;
    begin = stop;
  }
  return DONE;
}
