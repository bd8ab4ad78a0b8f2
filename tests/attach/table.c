/* plugin/attach/interposed.h is the only list: libdarknet_amp.so defines what it names, and
 * scripts/amp-ldflags wraps exactly that. */

#include "tests/rig/harness.h"

#include "plugin/attach/interposed.h"

#define _GNU_SOURCE
#include <dlfcn.h>

#define NAME(name) #name,
static const char *const interposed[] = {AMP_INTERPOSED(NAME)};
static const int count = sizeof(interposed) / sizeof(interposed[0]);

AMP_TEST(library_defines_every_interposed_function)
{
    void *library = dlopen(AMP_LIBRARY, RTLD_LAZY | RTLD_LOCAL);
    REQUIRE(library);
    for (int i = 0; i < count; i++) {
        void *address = dlsym(library, interposed[i]);
        if (!address) TEST_FAIL("%s does not define %s", AMP_LIBRARY, interposed[i]);
    }
}

/* The functions that amp-ldflags wraps: how many, and whether name is one of them. */
static int wrapped(const char *flags, const char *name)
{
    static const char option[] = "-Wl,--wrap=";
    int found = 0;
    for (const char *p = flags; (p = strstr(p, option)); p++) {
        const char *start = p + strlen(option);
        size_t length = strcspn(start, " \n");
        found += !name || (length == strlen(name) && strncmp(start, name, length) == 0);
    }
    return found;
}

AMP_TEST(ldflags_wrap_exactly_the_interposed_functions)
{
    static char flags[1 << 16];
    FILE *f = popen(AMP_LDFLAGS, "r");
    REQUIRE(f);
    size_t length = fread(flags, 1, sizeof(flags) - 1, f);
    CHECK_INT(pclose(f), 0);
    REQUIRE(length > 0 && length < sizeof(flags) - 1);
    for (int i = 0; i < count; i++) {
        if (wrapped(flags, interposed[i]) != 1) TEST_FAIL("no --wrap=%s", interposed[i]);
    }
    CHECK_INT(wrapped(flags, NULL), count);
}

AMP_TEST_MAIN
