/* Teams of readers before a device that copies whenever it likes: a slot that is read into too early shows as wrong bytes.

   Prints one line for each stretch that came out wrong; its exit status is 1 then. Built and run by test_windows_stress.py. */

#include "windows.c" /* with what is static in it */

#include <fcntl.h>
#include <stdio.h>
#include <string.h>

enum { EVENTS = 4, FILE_BYTES = 1 << 20, STRETCHES = 4, REFUSED = 719 };

struct order { /* a copy, or an event that is reached */
  unsigned long long target;
  const void *source;
  size_t nbytes;
  void *event;
};

static struct {
  pthread_mutex_t mutex;
  struct order orders[4096];
  _Atomic uint64_t given, done, recorded[EVENTS], reached[EVENTS];
  _Atomic int closing, copies_left; /* before it refuses one; below 0: it never does */
} device = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static uint64_t capacity(void) { return sizeof device.orders / sizeof *device.orders; }

static void give(struct order order) {
  pthread_mutex_lock(&device.mutex);
  const uint64_t given = device.given;
  while (given - device.done >= capacity()) rest();
  device.orders[given % capacity()] = order;
  if (order.event) atomic_fetch_add(&device.recorded[(uintptr_t)order.event], 1);
  device.given = given + 1;
  pthread_mutex_unlock(&device.mutex);
}

static int enter_context(void *context) { return context != NULL; }
static int lock_pages(void *memory, size_t nbytes, unsigned flags) { return memory == NULL || nbytes == 0 || flags != PORTABLE; }

static int copy_later(unsigned long long target, const void *source, size_t nbytes, void *stream) {
  (void)stream;
  if (device.copies_left >= 0 && atomic_fetch_sub(&device.copies_left, 1) == 0) return REFUSED;
  give((struct order){target, source, nbytes, NULL});
  return 0;
}

static int record_event(void *event, void *stream) {
  (void)stream;
  give((struct order){.event = event});
  return 0;
}

static int query_event(void *event) {
  return device.reached[(uintptr_t)event] == device.recorded[(uintptr_t)event] ? 0 : NOT_READY;
}

static void *carry_out(void *nothing) {
  unsigned dice = 1;
  while (!device.closing || device.done != device.given) {
    if (device.done == device.given) {
      rest();
      continue;
    }
    const struct order *order = &device.orders[device.done % capacity()];
    if (order->event) {
      atomic_fetch_add(&device.reached[(uintptr_t)order->event], 1);
    } else {
      if (rand_r(&dice) % 4 == 0) rest();
      memcpy((void *)(uintptr_t)order->target, order->source, order->nbytes);
    }
    ++device.done;
  }
  return nothing;
}

static uint64_t below(unsigned *dice, uint64_t bound) { return (uint64_t)rand_r(dice) % bound; }

/* One stretch of a file that may be too short, on a device that may refuse; 1 if what is told of it isn't so. */
static int bring_one(struct team *team, int descriptor, const char *data, char *target, unsigned *dice) {
  const uint64_t begin = below(dice, 9000), nbytes = 1 + below(dice, FILE_BYTES - 9000);
  const uint64_t half = nbytes / 2, cut = below(dice, 3) ? 0 : begin + below(dice, nbytes);
  const struct copy copies[2] = {{(uintptr_t)(target + begin), begin, half},
                                 {(uintptr_t)(target + begin + half), begin + half, nbytes - half}};
  const struct stretch stretch = {begin, nbytes, copies, 2, descriptor};
  struct ended ended;
  memset(target, 0, FILE_BYTES);
  if (cut && ftruncate(descriptor, (off_t)cut)) return 1;
  device.copies_left = below(dice, 5) ? -1 : (int)below(dice, 6);
  emberpool_windows_bring(team, &stretch, &ended);
  while (device.done != device.given) rest();
  if (cut && pwrite(descriptor, data, FILE_BYTES, 0) != FILE_BYTES) return 1;
  if (memcmp(target + begin, data + begin, ended.done)) return 1;
  if (ended.outcome == DONE) return cut || ended.done != nbytes;
  if (ended.outcome == COPY_FAILED) return ended.code != REFUSED;
  const uint64_t window_end = (ended.failed_at / PAGE * PAGE) + team->window_bytes;
  return ended.outcome != ENDED_EARLY || ended.failed_at > most(cut, begin) || window_end < cut;
}

int main(int count, char **arguments) {
  if (count != 4) return 2;
  unsigned dice = (unsigned)atoi(arguments[1]);
  const int rounds = atoi(arguments[2]), descriptor = open(arguments[3], O_RDWR | O_CREAT | O_TRUNC, 0600);
  static char data[FILE_BYTES], target[FILE_BYTES];
  for (size_t each = 0; each < FILE_BYTES; ++each) data[each] = (char)rand_r(&dice);
  if (descriptor < 0 || pwrite(descriptor, data, FILE_BYTES, 0) != FILE_BYTES) return 2;
  pthread_t copier;
  if (pthread_create(&copier, NULL, carry_out, NULL)) return 2;
  const struct driver driver = {enter_context, lock_pages, copy_later, record_event, query_event, NULL, NULL};
  int wrong = 0;
  for (int round = 0; round < rounds; ++round) {
    const uint64_t window = PAGE * (1 + below(&dice, 4)), block = window * (1 + below(&dice, 4)), slot_count = 1 + below(&dice, 3);
    struct slot slots[EVENTS];
    for (uint64_t each = 0; each < slot_count; ++each)
      slots[each] = (struct slot){aligned_alloc(PAGE, block), block, (void *)(uintptr_t)(each + 1), 0};
    struct team *team = emberpool_windows_begin(&driver, slots, slot_count, 1 + below(&dice, 8), window);
    for (int each = 0; team && each < STRETCHES; ++each) {
      if (!bring_one(team, descriptor, data, target, &dice)) continue;
      printf("round %d, stretch %d came out wrong\n", round, each);
      wrong = 1;
    }
    if (team) emberpool_windows_end(team);
    for (uint64_t each = 0; each < slot_count; ++each) free(slots[each].memory);
  }
  device.closing = 1;
  pthread_join(copier, NULL);
  return wrong;
}
