#include "nvtx_stand_in.h"

#include <stdio.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

EXPORT int nvtxRangePushA(const char *name);
EXPORT int nvtxRangePop(void);
EXPORT const char *nvtx_stand_in_take(void);

static char text[4096], taken[4096];
static int depth;

static void add(const char *name, const char *bracket)
{
    size_t used = strlen(text);
    snprintf(text + used, sizeof text - used, "%s%s", name, bracket);
}

int nvtxRangePushA(const char *name)
{
    add(name, "{");
    return depth++;
}

int nvtxRangePop(void)
{
    add("", "}");
    return --depth;
}

const char *nvtx_stand_in_take(void)
{
    strcpy(taken, text);
    text[0] = 0;
    return taken;
}
