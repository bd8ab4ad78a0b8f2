#include "settings.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAMED(of) [of] = #of

static const char *const names[] = {
    NAMED(AMPK_CUDA_SIDE_STREAM),   NAMED(AMPK_CUDA_EPILOGUE_SUMS),  NAMED(AMPK_CUDA_GRADIENT_SUMS),
    NAMED(AMPK_CUDA_IMAGE_FORWARD), NAMED(AMPK_CUDA_IMAGE_GRADIENT), NAMED(AMPK_CUDA_SEARCH),
    NAMED(AMPK_CUDA_UNTIMED),       NAMED(AMPK_CUDA_UNRECORDED),
};

enum ampk_setting ampk_cuda_setting(enum ampk_switch of)
{
    static atomic_flag said = ATOMIC_FLAG_INIT;
    const char *value = getenv(names[of]);
    if (!value || !value[0]) return AMPK_UNSET;
    if (!strcmp(value, "0")) return AMPK_NEVER;
    if (!strcmp(value, "1")) return AMPK_ALWAYS;
    if (!atomic_flag_test_and_set(&said))
        fprintf(stderr, "darknet-amp: %s=%s in the environment: 0 or 1 are allowed; ignored\n",
                names[of], value);
    return AMPK_UNSET;
}
