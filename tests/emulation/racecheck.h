/* What ThreadSanitizer is told of a kernel's threads. In its builds every thread of a block is a
 * fiber of its own, which TSan takes for a thread; to switch between them orders nothing. These do:
 *  - a launch comes before its threads, and they before what the host does next
 *  - the threads of a block come before those of the block that runs after it
 *  - __syncthreads, and __syncwarp in its warp; not shuffles, votes and matrix products: CUDA
 *    promises no order of memory there
 *  - atomics, as cuda_emulation.h says
 * So threads of one block that use the same memory without such an order are reported by file and
 * line, also where the order in which they ran gave the right result. What blocks do to each other
 * is not seen. The scheduler itself is compiled without TSan, which would report it.
 *
 * In all other builds these functions are empty. */
#ifndef EMULATION_RACECHECK_H
#define EMULATION_RACECHECK_H

#ifdef EMULATION_RACECHECK
#include <sanitizer/tsan_interface.h>
static const bool RACECHECK = true;
#else
static const bool RACECHECK = false;
static void *__tsan_create_fiber(unsigned)
{
    return nullptr;
}
static void *__tsan_get_current_fiber()
{
    return nullptr;
}
static void __tsan_switch_to_fiber(void *, unsigned) {}
static void __tsan_acquire(void *) {}
static void __tsan_release(void *) {}
#endif

/* For __tsan_switch_to_fiber. */
static const unsigned WITHOUT_ORDER = 1;

/* Whoever takes a token comes behind all who gave it before. Places where threads meet again and
 * again have two in turns: nobody gives the next one before all have taken the last. */
struct race_tokens {
    char launch, end, untaken;
    char barrier[2], warp[32][2];
    char own[1024]; /* of each thread, which no other takes */
};
static race_tokens tokens;

static inline void give(char *token)
{
    __tsan_release(token);
}

/* The second call orders nothing. TSan has 255 clocks, which its threads lend each other, and
 * writes down whose a clock is only when something is given; without that it finds no stack for
 * what a thread of a larger block did next, and says nothing of its race. A race of a single pair
 * of 1024 threads it may still miss, when the second has the clock that the first had. */
static inline void take(char *token)
{
    __tsan_acquire(token);
    __tsan_release(&tokens.untaken);
}

#endif
