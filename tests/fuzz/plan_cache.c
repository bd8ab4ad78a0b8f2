/* A user's file of plans: read, added to, saved, and read again. */
#include "fuzz.h"
#include "kernels/cuda/libs/plan_cache.h"

static void add_and_save(struct ampk_plan_cache *cache)
{
    char err[1024] = "";
    ampk_plan_cache_add(cache, "a key", "a value");
    FUZZ_REQUIRE(ampk_plan_cache_save(cache, err, sizeof err));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char warning[1024] = "";
    fuzz_enter_folder();
    fuzz_write("plans", data, size);
    struct ampk_plan_cache *cache = ampk_plan_cache_open("plans", warning, sizeof warning);
    FUZZ_REQUIRE(cache);
    ampk_plan_cache_find(cache, "another key");
    add_and_save(cache);
    ampk_plan_cache_close(cache);

    *warning = 0;
    cache = ampk_plan_cache_open("plans", warning, sizeof warning);
    FUZZ_REQUIRE(cache && !*warning);
    const char *value = ampk_plan_cache_find(cache, "a key");
    FUZZ_REQUIRE(value && !strcmp(value, "a value"));
    ampk_plan_cache_close(cache);
    return 0;
}
