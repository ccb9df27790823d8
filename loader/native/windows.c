/* Brings stretches of files to a device. A team of threads reads windows, side by side, into blocks of page-locked memory; whoever
   reads a block's last window queues the copy of it, so that copies are large and what waits for them is small enough for the
   processor's cache.

   Plain C without a header of Python's or CUDA's, so one build serves every version of both: the driver's functions come as
   pointers. Which stretches, pages, pace and the words of errors are Python's part, in `loader.copiers.windows`. */

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

enum { VERSION = 3 /* of the structures below; Python refuses another */, PAGE = 4096 };
enum { DONE = 0, READ_FAILED = 1, ENDED_EARLY = 2, LOCK_REFUSED = 3, COPY_FAILED = 4 };
enum { NOT_READY = 600 /* CUDA_ERROR_NOT_READY */, PORTABLE = 1 /* CU_MEMHOSTREGISTER_PORTABLE */ };
enum { REST_NANOSECONDS = 20000, SLACK_NANOSECONDS = 1000 };
static const uint64_t NONE = UINT64_MAX;

struct driver {
  int (*enter)(void *context);                                                             /* cuCtxSetCurrent */
  int (*lock)(void *memory, size_t nbytes, unsigned flags);                                /* cuMemHostRegister */
  int (*copy)(unsigned long long target, const void *source, size_t nbytes, void *stream); /* cuMemcpyHtoDAsync */
  int (*record)(void *event, void *stream);                                                /* cuEventRecord */
  int (*query)(void *event);                                                               /* cuEventQuery */
  void *context, *stream;
};

struct slot { /* holds one block at a time */
  char *memory; /* on a page boundary */
  uint64_t nbytes; /* of it, that are locked at once */
  void *event;     /* its last copy */
  uint64_t locked;
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

struct ended { /* how a stretch ended */
  uint64_t done;      /* bytes from its beginning on whose copies are queued, all of them */
  uint64_t failed_at; /* the first byte of the window that failed */
  int64_t code;       /* errno, or the driver's */
  int64_t outcome;
};

struct fill { /* how far a slot is with a stretch */
  _Atomic uint64_t windows; /* read of the block that it is being filled with */
  _Atomic uint64_t queued;  /* one more than the number of the last block whose copy is queued; 0: none yet */
};

struct team {
  const struct driver *driver;
  struct slot *slots;
  struct fill *fills;
  uint64_t slot_count, turn, window_bytes, windows_each;

  const struct stretch *stretch;
  uint64_t origin; /* the page with the stretch's first byte; blocks and windows are counted from there */
  uint64_t window_count;
  _Atomic uint64_t next;   /* window */
  _Atomic uint64_t failed; /* the first window that did, or NONE */
  struct ended ended;

  pthread_mutex_t mutex;
  pthread_cond_t began, finished;
  uint64_t rounds, busy; /* stretches begun; readers that haven't finished this one */
  int leaving, refused;  /* the last: of the driver, to a reader that entered its context */
  uint64_t reader_count;
  pthread_t readers[];
};

static uint64_t most(uint64_t one, uint64_t other) { return one > other ? one : other; }
static uint64_t least(uint64_t one, uint64_t other) { return one < other ? one : other; }

static void rest(void) {
  const struct timespec moment = {0, REST_NANOSECONDS};
  nanosleep(&moment, NULL);
}

/* Asks again and again, resting in between: an event that wakes its waiter interrupts the device's copies. */
static int wait_for(const struct driver *driver, void *event) {
  int code;
  while ((code = driver->query(event)) == NOT_READY) rest();
  return code;
}

static uint64_t block_of(const struct team *team, uint64_t window) { return window == NONE ? NONE : window / team->windows_each; }

/* The first window that fails is told. All before it are taken before, and come through or are told instead. */
static void fail(struct team *team, uint64_t window, int outcome, int64_t code) {
  const uint64_t block_bytes = team->window_bytes * team->windows_each;
  const uint64_t first = team->stretch->begin;
  pthread_mutex_lock(&team->mutex);
  if (window < atomic_load(&team->failed)) {
    team->ended.outcome = outcome;
    team->ended.code = code;
    team->ended.failed_at = most(first, team->origin + window * team->window_bytes);
    team->ended.done = most(first, team->origin + block_of(team, window) * block_bytes) - first;
    atomic_store(&team->failed, window);
  }
  pthread_mutex_unlock(&team->mutex);
}

static int fill(int descriptor, char *memory, uint64_t begin, uint64_t end, int64_t *code) {
  *code = 0;
  while (begin < end) {
    const ssize_t count = pread(descriptor, memory, end - begin, (off_t)begin);
    if (count > 0) {
      memory += count;
      begin += (uint64_t)count;
    } else if (count == 0) {
      return ENDED_EARLY;
    } else if (errno != EINTR) {
      *code = errno;
      return READ_FAILED;
    }
  }
  return DONE;
}

static uint64_t first_copy_that_ends_after(const struct stretch *stretch, uint64_t begin) {
  uint64_t low = 0, high = stretch->copy_count;
  while (low < high) {
    const uint64_t middle = low + (high - low) / 2;
    const struct copy *copy = &stretch->copies[middle];
    if (copy->begin + copy->nbytes > begin) high = middle;
    else low = middle + 1;
  }
  return low;
}

/* Queue what of a block belongs somewhere: `memory` holds the file's bytes from `begin` to `end`. */
static int queue(const struct driver *driver, const struct stretch *stretch, const char *memory, uint64_t begin, uint64_t end) {
  for (uint64_t next = first_copy_that_ends_after(stretch, begin); next < stretch->copy_count; ++next) {
    const struct copy *copy = &stretch->copies[next];
    const uint64_t from = most(begin, copy->begin), to = least(end, copy->begin + copy->nbytes);
    if (from >= to) break; /* it begins in a later block */
    const int code = driver->copy(copy->target + from - copy->begin, memory + (from - begin), to - from, driver->stream);
    if (code) return code;
  }
  return 0;
}

/* For whoever has read the last window of a block. */
static void hand_on(struct team *team, uint64_t window, struct slot *slot) {
  const struct driver *driver = team->driver;
  const struct stretch *stretch = team->stretch;
  const uint64_t block_bytes = team->window_bytes * team->windows_each;
  const uint64_t origin = team->origin + block_of(team, window) * block_bytes;
  const uint64_t begin = most(origin, stretch->begin), end = least(origin + block_bytes, stretch->begin + stretch->nbytes);
  /* After the first reads, which have brought the pages: locking those is quick. */
  if (!slot->locked) {
    const int code = driver->lock(slot->memory, slot->nbytes, PORTABLE);
    if (code) {
      fail(team, window, LOCK_REFUSED, code);
      return;
    }
    slot->locked = 1;
  }
  int code = queue(driver, stretch, slot->memory + (begin - origin), begin, end);
  if (!code) code = driver->record(slot->event, driver->stream);
  if (code) fail(team, window, COPY_FAILED, code);
}

/* Wait until a block's slot is free; false if it never will be, for what it held before has failed. */
static int is_free(struct team *team, uint64_t window, const struct slot *slot, const struct fill *state) {
  const uint64_t block = block_of(team, window);
  if (block >= team->slot_count) {
    const uint64_t before = block - team->slot_count;
    while (atomic_load(&state->queued) != before + 1) {
      if (block_of(team, atomic_load(&team->failed)) <= before) return 0;
      rest();
    }
  }
  const int code = wait_for(team->driver, slot->event);
  if (code) fail(team, window, COPY_FAILED, code);
  return !code;
}

static void bring_window(struct team *team, uint64_t window) {
  const struct stretch *stretch = team->stretch;
  const uint64_t block = block_of(team, window), place = window % team->windows_each;
  const uint64_t number = (team->turn + block) % team->slot_count;
  struct slot *slot = &team->slots[number];
  struct fill *state = &team->fills[number];
  if (!is_free(team, window, slot, state)) return;
  const uint64_t origin = team->origin + window * team->window_bytes;
  const uint64_t begin = most(origin, stretch->begin);
  const uint64_t end = least(origin + team->window_bytes, stretch->begin + stretch->nbytes);
  int64_t code;
  const int outcome = fill((int)stretch->descriptor, slot->memory + place * team->window_bytes + (begin - origin), begin, end, &code);
  if (outcome != DONE) {
    fail(team, window, outcome, code);
    return;
  }
  const uint64_t expected = least(team->windows_each, team->window_count - block * team->windows_each);
  if (atomic_fetch_add(&state->windows, 1) + 1 < expected) return;
  atomic_store(&state->windows, 0);
  hand_on(team, window, slot);
  if (block_of(team, atomic_load(&team->failed)) > block) atomic_store(&state->queued, block + 1);
}

static void read_along(struct team *team) {
  for (;;) {
    const uint64_t window = atomic_fetch_add(&team->next, 1);
    if (window >= team->window_count || window > atomic_load(&team->failed)) return;
    bring_window(team, window);
  }
}

static void *reader(void *of) {
  struct team *team = of;
  uint64_t seen = 0;
  prctl(PR_SET_TIMERSLACK, SLACK_NANOSECONDS);
  const int refused = team->driver->enter(team->driver->context);
  pthread_mutex_lock(&team->mutex);
  if (refused) team->refused = refused;
  for (;;) {
    while (team->rounds == seen && !team->leaving) pthread_cond_wait(&team->began, &team->mutex);
    if (team->rounds == seen) break;
    seen = team->rounds;
    pthread_mutex_unlock(&team->mutex);
    if (refused) fail(team, 0, COPY_FAILED, refused);
    else read_along(team);
    pthread_mutex_lock(&team->mutex);
    if (--team->busy == 0) pthread_cond_signal(&team->finished);
  }
  pthread_mutex_unlock(&team->mutex);
  return NULL;
}

/* Signals are for the interpreter's own threads. */
static uint64_t hire(struct team *team, uint64_t count) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  uint64_t hired = 0;
  while (hired < count && pthread_create(&team->readers[hired], NULL, reader, team) == 0) ++hired;
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  return hired;
}

uint32_t emberpool_windows_version(void) { return VERSION; }

/* Have memory be there. Touching takes the kernel's lock of this one mapping, where madvise takes that of the whole process, for which
   a thread's start would wait. */
void emberpool_windows_touch(volatile char *memory, uint64_t nbytes) {
  for (uint64_t each = 0; each < nbytes; each += PAGE) memory[each] = 0;
}

/* Let the readers go. Their copies may still be under way. */
void emberpool_windows_end(struct team *team) {
  pthread_mutex_lock(&team->mutex);
  team->leaving = 1;
  pthread_cond_broadcast(&team->began);
  pthread_mutex_unlock(&team->mutex);
  for (uint64_t each = 0; each < team->reader_count; ++each) pthread_join(team->readers[each], NULL);
  pthread_cond_destroy(&team->finished);
  pthread_cond_destroy(&team->began);
  pthread_mutex_destroy(&team->mutex);
  free(team->fills);
  free(team);
}

/* Make a team of up to `readers` threads, or as many as there can be; NULL if there can be none. Driver and slots stay the caller's. */
struct team *emberpool_windows_begin(const struct driver *driver, struct slot *slots, uint64_t slot_count, uint64_t readers,
                                     uint64_t window_bytes) {
  struct team *team = calloc(1, sizeof *team + readers * sizeof(pthread_t));
  struct fill *fills = calloc(slot_count, sizeof *fills);
  if (!team || !fills) {
    free(team);
    free(fills);
    return NULL;
  }
  team->driver = driver;
  team->slots = slots;
  team->fills = fills;
  team->slot_count = slot_count;
  team->window_bytes = window_bytes;
  team->windows_each = slots->nbytes / window_bytes;
  pthread_mutex_init(&team->mutex, NULL);
  pthread_cond_init(&team->began, NULL);
  pthread_cond_init(&team->finished, NULL);
  team->reader_count = hire(team, readers);
  if (team->reader_count) return team;
  emberpool_windows_end(team);
  return NULL;
}

/* Bring a whole stretch, or as much as can be; for one caller at a time. */
void emberpool_windows_bring(struct team *team, const struct stretch *stretch, struct ended *ended) {
  const uint64_t end = stretch->begin + stretch->nbytes;
  team->stretch = stretch;
  team->origin = stretch->begin / PAGE * PAGE;
  team->window_count = (end - team->origin + team->window_bytes - 1) / team->window_bytes;
  team->ended = (struct ended){.done = stretch->nbytes, .outcome = DONE};
  atomic_store(&team->next, 0);
  atomic_store(&team->failed, NONE);
  for (uint64_t each = 0; each < team->slot_count; ++each) {
    atomic_store(&team->fills[each].windows, 0);
    atomic_store(&team->fills[each].queued, 0);
  }
  pthread_mutex_lock(&team->mutex);
  team->busy = team->reader_count;
  ++team->rounds;
  pthread_cond_broadcast(&team->began);
  while (team->busy) pthread_cond_wait(&team->finished, &team->mutex);
  pthread_mutex_unlock(&team->mutex);
  /* The next stretch goes on with the slot that has waited longest for its copy. */
  const uint64_t block_count = (team->window_count + team->windows_each - 1) / team->windows_each;
  team->turn = (team->turn + block_count) % team->slot_count;
  *ended = team->ended;
}
