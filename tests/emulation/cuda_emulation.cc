/* The scheduler of the emulation: fibers, barriers, warps. One launch at a time, also where several
 * threads of the host launch. */
#include "cuda_emulation.h"
#include "emulation.h"

#include <atomic>
#include <mutex>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
static const bool HAS_ASAN = true;
#else
static const bool HAS_ASAN = false;
static void __sanitizer_start_switch_fiber(void **, const void *, size_t) {}
static void __sanitizer_finish_switch_fiber(void *, const void **, size_t *) {}
#endif
#include "racecheck.h" /* TSan's header declares the two again */

dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace
{

const size_t STACK_BYTES = HAS_ASAN ? 256 << 10 : 64 << 10; /* touched pages only cost memory */
const unsigned WARP = 32, MOST_THREADS = 1024;
const size_t MOST_SHARED_BYTES = 48 << 10, MOST_ARGUMENT_BYTES = 4096;
/* ---- fibers ---- */

struct fiber {
    ucontext_t context; /* to start; later a system call each time would be slow */
    void *jump[5];      /* to go on */
    bool started;
    void *asan_stack;
    const void *stack;
    size_t stack_bytes;
    void *tsan;
};

/* The host's thread that launches; it runs as the first of all fibers. */
fiber host;

/* On a fiber that was switched to. The first to be there tells where it came from. */
void arrive(void *asan_stack)
{
    const void *stack = nullptr;
    size_t bytes = 0;
    __sanitizer_finish_switch_fiber(asan_stack, &stack, &bytes);
    if (host.stack) return;
    host.stack = stack;
    host.stack_bytes = bytes;
}

/* Goes on where `to` was left. */
void switch_fiber(fiber *from, fiber *to)
{
    __sanitizer_start_switch_fiber(&from->asan_stack, to->stack, to->stack_bytes);
    from->started = true;
    if (!__builtin_setjmp(from->jump)) {
        __tsan_switch_to_fiber(to->tsan, WITHOUT_ORDER);
        if (to->started) __builtin_longjmp(to->jump, 1);
        setcontext(&to->context);
    }
    arrive(from->asan_stack);
}

/* ---- the running launch ---- */

/* A place in a kernel where threads meet. */
struct place {
    const char *file; /* NULL: nowhere */
    int line;
};

bool operator==(place a, place b)
{
    return a.line == b.line && (a.file == b.file || !strcmp(a.file, b.file));
}

struct thread {
    dim3 index;
    fiber *on; /* NULL: not started */
    bool ended;
    place waits;     /* at a barrier or in a warp */
    bool at_barrier; /* of the block */
    unsigned mask;   /* of the warp's operation, and what this lane brings to it */
    emulation_operation operation;
    uint64_t value;
    unsigned from;
};

struct {
    const emulation_launch *launch;
    thread threads[MOST_THREADS];
    unsigned count, at_barrier;
    unsigned ready[MOST_THREADS], ready_count;
    thread *current;
    fiber *idle[MOST_THREADS]; /* parked in run_threads; in a racecheck those of the threads */
    unsigned idle_count;
    unsigned char *shared; /* of the launch's size, then the guard */
    unsigned barriers, warp_barriers[MOST_THREADS / WARP]; /* passed so far */
    unsigned in_warp[MOST_THREADS / WARP];                 /* the lanes that wait in an operation */
    uint64_t random, seed;
} block;

std::mutex launches;
std::atomic<size_t> launched;

/* xorshift64* */
unsigned random_below(unsigned n)
{
    block.random ^= block.random >> 12;
    block.random ^= block.random << 25;
    block.random ^= block.random >> 27;
    return (unsigned)((block.random * 0x2545f4914f6cdd1du >> 32) * n >> 32);
}

[[noreturn]] void die(const char *what)
{
    const emulation_launch *l = block.launch;
    fprintf(stderr, "CUDA emulation: %s\n  kernel %s, grid %u x %u x %u, block %u x %u x %u\n",
            what, l->kernel, l->grid.x, l->grid.y, l->grid.z, l->block.x, l->block.y, l->block.z);
    if (block.current) {
        dim3 t = block.current->index;
        fprintf(stderr, "  in block (%u, %u, %u), thread (%u, %u, %u); AMPK_EMULATION_SEED=%llu\n",
                blockIdx.x, blockIdx.y, blockIdx.z, t.x, t.y, t.z, (unsigned long long)block.seed);
    }
    abort();
}

/* No thread can go on: says where they are, one line for each place. */
[[noreturn]] void die_stuck()
{
    thread *first = nullptr;
    unsigned ended = 0;
    for (unsigned i = 0; i < block.count; i++) {
        ended += block.threads[i].ended;
        if (!first && !block.threads[i].ended) first = &block.threads[i];
    }
    for (unsigned i = 0; i < block.count; i++) {
        place p = block.threads[i].waits;
        unsigned there = 0;
        for (unsigned j = 0; !block.threads[i].ended && j < block.count; j++) {
            const thread *t = &block.threads[j];
            bool same = !t->ended && t->waits == p;
            if (same && j < i) break;
            there += same;
        }
        if (there)
            fprintf(stderr, "  %u threads, thread %u among them, wait at the %s in %s:%d\n", there,
                    i, block.threads[i].at_barrier ? "barrier" : "warp operation", p.file, p.line);
    }
    fprintf(stderr, "  %u threads have ended\n", ended);
    block.current = first;
    die(first->at_barrier ? "a barrier that not all threads of the block reach"
                          : "a warp operation whose mask has lanes that do not come to it");
}

/* The next thread to run, at random; NULL if there is none. */
thread *take_ready()
{
    if (!block.ready_count) return nullptr;
    unsigned i = random_below(block.ready_count), chosen = block.ready[i];
    block.ready[i] = block.ready[--block.ready_count];
    return &block.threads[chosen];
}

void make_ready(thread *t)
{
    t->waits = place{nullptr, 0};
    block.ready[block.ready_count++] = (unsigned)(t - block.threads);
}

void become(thread *t)
{
    block.current = t;
    threadIdx = t->index;
}

fiber *take_fiber(const thread *);

/* A fiber's life: threads one after another, each from start to end, until another fiber has to go
 * on. The current thread is this fiber's whenever it runs. */
void run_threads()
{
    arrive(nullptr);
    for (;;) {
        take(&tokens.launch);
        block.launch->run(block.launch->call);
        give(&tokens.end);
        fiber *own = block.current->on;
        block.current->ended = true;
        thread *next = take_ready();
        if (!RACECHECK && next && !next->on) {
            next->on = own;
            become(next);
            continue;
        }
        if (!RACECHECK) block.idle[block.idle_count++] = own;
        if (next && !next->on) next->on = take_fiber(next);
        if (next) become(next);
        switch_fiber(own, next ? next->on : &host);
    }
}

/* Its stack begins in another cache line of a page than its neighbours': with all of them in one
 * place of theirs, the cache would hold few at a time. */
fiber *new_fiber()
{
    static size_t fibers;
    fiber *f = new fiber();
    void *stack =
        mmap(nullptr, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (stack == MAP_FAILED) die("no memory for the stacks of threads");
    getcontext(&f->context);
    f->stack = stack;
    f->stack_bytes = STACK_BYTES - fibers++ % 64 * 64;
    f->context.uc_stack.ss_sp = stack;
    f->context.uc_stack.ss_size = f->stack_bytes;
    f->tsan = __tsan_create_fiber(0);
    makecontext(&f->context, run_threads, 0);
    return f;
}

fiber *take_fiber(const thread *t)
{
    if (RACECHECK) {
        fiber *&own = block.idle[t - block.threads];
        if (!own) own = new_fiber();
        return own;
    }
    return block.idle_count ? block.idle[--block.idle_count] : new_fiber();
}

/* Lets another thread run; returns when this one is chosen again. */
void give_way()
{
    thread *own = block.current, *next = take_ready();
    if (!next) die_stuck();
    if (next == own) return;
    if (!next->on) next->on = take_fiber(next);
    become(next);
    switch_fiber(own->on, next->on);
}

/* ---- a block ---- */

/* ASan guards what is exactly as long as asked for; else bytes behind it show who wrote. */
const size_t GUARD_BYTES = HAS_ASAN ? 0 : 256;

void allocate_shared()
{
    void *memory;
    size_t bytes = block.launch->shared_bytes + GUARD_BYTES;
    if (posix_memalign(&memory, 256, bytes ? bytes : 1)) die("no memory for shared memory");
    block.shared = static_cast<unsigned char *>(memory);
}

void fill_shared()
{
    memset(block.shared, 0xff, block.launch->shared_bytes + GUARD_BYTES); /* NaN */
}

void check_shared()
{
    const unsigned char *guard = block.shared + block.launch->shared_bytes;
    for (size_t i = 0; i < GUARD_BYTES; i++)
        if (guard[i] != 0xff) die("dynamic shared memory was written beyond what was asked for");
}

void start_thread(unsigned i)
{
    dim3 b = block.launch->block;
    thread *t = &block.threads[i];
    *t = thread();
    t->index = dim3(i % b.x, i / b.x % b.y, i / b.x / b.y);
    make_ready(t);
}

void run_block()
{
    fill_shared();
    give(&tokens.launch);
    block.ready_count = block.at_barrier = block.barriers = 0;
    memset(block.warp_barriers, 0, sizeof block.warp_barriers);
    memset(block.in_warp, 0, sizeof block.in_warp);
    for (unsigned i = 0; i < block.count; i++)
        start_thread(i);
    thread *first = take_ready();
    first->on = take_fiber(first);
    become(first);
    switch_fiber(&host, first->on);
    take(&tokens.end);
    for (unsigned i = 0; i < block.count; i++)
        if (!block.threads[i].ended) die_stuck();
    check_shared();
    block.current = nullptr;
}

void check_launch(const emulation_launch *l)
{
    if (!l->block.x || !l->block.y || !l->block.z ||
        (uint64_t)l->block.x * l->block.y * l->block.z > MOST_THREADS || l->block.z > 64)
        die("a block must have 1 to 1024 threads, at most 64 of them in z");
    if (!l->grid.x || !l->grid.y || !l->grid.z || l->grid.x > INT32_MAX || l->grid.y > 65535 ||
        l->grid.z > 65535)
        die("a grid must have 1 to 2^31-1 blocks in x, 1 to 65535 in y and z");
    if (l->shared_bytes > MOST_SHARED_BYTES) die("more than 48 KiB of dynamic shared memory");
    if (l->argument_bytes > MOST_ARGUMENT_BYTES) die("more than 4 KiB of arguments");
}

uint64_t greatest_common_divisor(uint64_t a, uint64_t b)
{
    return b ? greatest_common_divisor(b, a % b) : a;
}

/* Whether all lanes of the current thread's mask are in the same operation. */
bool warp_is_complete(const thread *own, const thread *warp)
{
    for (unsigned lane = 0; lane < WARP; lane++) {
        if (!(own->mask >> lane & 1)) continue;
        const thread *t = warp + lane;
        if (!(t->waits == own->waits) || t->mask != own->mask) return false;
    }
    return true;
}

uint64_t ballot(unsigned mask, const thread *warp)
{
    uint64_t lanes = 0;
    for (unsigned lane = 0; lane < WARP; lane++)
        if (mask >> lane & 1 && warp[lane].value) lanes |= 1u << lane;
    return lanes;
}

} /* namespace */

/* ---- what kernels and tests call ---- */

void emulation_seed(uint64_t seed)
{
    block.seed = seed;
    block.random = (seed + 1) * 0x9e3779b97f4a7c15u;
    if (!block.random) block.random = 1;
}

size_t emulation_launches(void)
{
    return launched;
}

void emulation_run(const emulation_launch *l)
{
    const std::lock_guard<std::mutex> one_at_a_time(launches);
    launched++;
    block.launch = l;
    host.stack = nullptr;
    host.tsan = __tsan_get_current_fiber();
    if (!block.random) {
        const char *seed = getenv("AMPK_EMULATION_SEED");
        emulation_seed(seed ? strtoull(seed, nullptr, 10) : 1);
    }
    check_launch(l);
    block.count = l->block.x * l->block.y * l->block.z;
    blockDim = l->block;
    gridDim = l->grid;
    allocate_shared();
    emulation_device_begin();
    /* every block once: i -> (i * step + start) modulo their number */
    uint64_t blocks = (uint64_t)l->grid.x * l->grid.y * l->grid.z;
    uint64_t start = random_below(INT32_MAX) % blocks, step;
    do
        step = 1 + random_below(INT32_MAX) % blocks;
    while (greatest_common_divisor(step, blocks) != 1);
    for (uint64_t i = 0, at = start; i < blocks; i++, at = (at + step) % blocks) {
        blockIdx.x = (unsigned)(at % l->grid.x);
        blockIdx.y = (unsigned)(at / l->grid.x % l->grid.y);
        blockIdx.z = (unsigned)(at / l->grid.x / l->grid.y);
        run_block();
    }
    emulation_device_end();
    free(block.shared);
}

void emulation_barrier(const char *file, int line)
{
    thread *own = block.current;
    const place here = {file, line};
    char *token = &tokens.barrier[block.barriers % 2];
    give(token);
    own->waits = here;
    own->at_barrier = true;
    if (++block.at_barrier == block.count) {
        block.barriers++;
        for (unsigned i = 0; i < block.count; i++) {
            if (!(block.threads[i].waits == here)) die_stuck();
            make_ready(&block.threads[i]);
            block.threads[i].at_barrier = false;
        }
        block.at_barrier = 0;
    }
    give_way();
    take(token);
}

uint64_t emulation_warp(emulation_operation operation, unsigned mask, uint64_t value, unsigned from,
                        const char *file, int line)
{
    thread *own = block.current;
    unsigned i = (unsigned)(own - block.threads), lane = i % WARP;
    thread *warp = own - lane;
    unsigned *barriers = &block.warp_barriers[i / WARP];
    bool orders = operation == EMULATION_SYNCWARP;
    char *token = orders ? &tokens.warp[i / WARP][*barriers % 2] : &tokens.own[i];
    give(token);
    own->waits = place{file, line};
    own->mask = mask;
    own->operation = operation;
    own->value = value;
    own->from = from;
    if (block.count - (i - lane) < WARP && mask >> (block.count - (i - lane)))
        die("the mask of a warp operation has lanes that the block does not have");
    if (!(mask >> lane & 1)) die("a lane that calls a warp operation is not in its mask");
    if (operation == EMULATION_SHUFFLE && !(mask >> from & 1))
        die("a shuffle takes the value of a lane that is not in its mask");
    unsigned *waiting = &block.in_warp[i / WARP];
    *waiting |= 1u << lane;
    if ((*waiting & mask) == mask && warp_is_complete(own, warp)) {
        *waiting &= ~mask;
        *barriers += orders;
        uint64_t values[WARP], votes = ballot(mask, warp);
        for (unsigned l = 0; l < WARP; l++)
            values[l] = mask >> l & 1 ? warp[l].value : 0;
        for (unsigned l = 0; l < WARP; l++)
            if (mask >> l & 1) {
                warp[l].value = operation == EMULATION_SHUFFLE ? values[warp[l].from] : votes;
                make_ready(warp + l);
            }
    }
    give_way();
    take(token);
    return own->value;
}

void *emulation_shared_memory(void)
{
    return block.shared;
}

void emulation_check_aligned(const void *p, size_t bytes)
{
    if ((uintptr_t)p % bytes == 0) return;
    fprintf(stderr, "  address %p, %zu bytes at once\n", p, bytes);
    die("a vector at an address that is not a multiple of its size");
}
