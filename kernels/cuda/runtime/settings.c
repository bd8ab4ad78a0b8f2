/* Reads the backend's switches from the environment. Says once for each switch that its value is
 * not allowed. Must not decide what a switch means. */
#include "settings.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAMED(of) [of] = #of

static const char *const names[] = {
    NAMED(AMPK_CUDA_SIDE_STREAM),   NAMED(AMPK_CUDA_EPILOGUE_SUMS),  NAMED(AMPK_CUDA_GRADIENT_SUMS),
    NAMED(AMPK_CUDA_IMAGE_FORWARD), NAMED(AMPK_CUDA_IMAGE_GRADIENT), NAMED(AMPK_CUDA_SEARCH),
    NAMED(AMPK_CUDA_UNTIMED),       NAMED(AMPK_CUDA_UNRECORDED),
};

static atomic_bool
    said[sizeof names / sizeof *names]; /* whether the message about a bad value was printed */

enum ampk_setting ampk_cuda_setting(enum ampk_switch of)
{
    const char *value = getenv(names[of]);
    if (!value || !value[0]) return AMPK_UNSET;
    if (!strcmp(value, "0")) return AMPK_NEVER;
    if (!strcmp(value, "1")) return AMPK_ALWAYS;
    if (!atomic_exchange(&said[of], true))
        fprintf(stderr, "darknet-amp: %s=%s in the environment: 0 or 1 are allowed; ignored\n",
                names[of], value);
    return AMPK_UNSET;
}
