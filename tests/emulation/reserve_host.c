/* kernels/cuda/reserve.h in the host's memory. */
#include "kernels/cuda/reserve.h"

#include <string.h>
#include <sys/mman.h>

void *ampk_reserve(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

bool ampk_commit(void *range, size_t bytes, const void *initial)
{
    if (mprotect(range, bytes, PROT_READ | PROT_WRITE)) return false;
    if (initial) memcpy(range, initial, bytes);
    return true;
}

void ampk_unreserve(void *range, size_t bytes, bool committed)
{
    (void)committed;
    munmap(range, bytes);
}
