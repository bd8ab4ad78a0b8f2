/* The cache of decoded images: what it keeps, what goes first, and that pixels stay where they are
 * while somebody reads them. */
#include "tests/rig/harness.h"

#include <pthread.h>

#include "plugin/images/cache.h"

enum { SIDE = 10, BYTES = SIDE * SIDE * 3 };

/* An image whose bytes are all the same. */
static void keep(struct amp_image_cache *c, const char *path, int least, uint8_t value)
{
    uint8_t bytes[BYTES];
    memset(bytes, value, sizeof bytes);
    struct amp_pixels p = {
        .bytes = bytes, .w = SIDE, .h = SIDE, .full_w = 800, .full_h = 1000 + value};
    amp_image_cache_keep(c, path, least, &p);
}

/* The value of its bytes; -1: it is not kept. */
static int look(struct amp_image_cache *c, const char *path, int least)
{
    const struct amp_pixels *p = amp_image_cache_take(c, path, least);
    if (!p) return -1;
    int value = p->bytes[0];
    CHECK(p->w == SIDE && p->h == SIDE && p->full_w == 800 && p->full_h == 1000 + value);
    for (int i = 0; i < BYTES; i++)
        if (p->bytes[i] != value) value = -2;
    amp_image_cache_give(c, p);
    return value;
}

AMP_TEST(the_one_not_used_for_longest_goes)
{
    struct amp_image_cache *c = amp_image_cache_new(3 * BYTES + 3 * BYTES / 2);
    REQUIRE(c);
    keep(c, "a", 0, 1);
    keep(c, "b", 0, 2);
    keep(c, "c", 0, 3);
    CHECK_INT(look(c, "a", 0), 1);
    keep(c, "d", 0, 4);
    CHECK_INT(look(c, "b", 0), -1);
    CHECK_INT(look(c, "a", 0), 1);
    CHECK_INT(look(c, "c", 0), 3);
    CHECK_INT(look(c, "d", 0), 4);
    amp_image_cache_free(c);
}

/* Reduced otherwise it is another image, and takes the place of the first. */
AMP_TEST(a_file_is_kept_once)
{
    struct amp_image_cache *c = amp_image_cache_new(100 * BYTES);
    REQUIRE(c);
    keep(c, "a", 0, 1);
    CHECK_INT(look(c, "a", 200), -1);
    keep(c, "a", 200, 2); /* a quarter */
    CHECK_INT(look(c, "a", 0), -1);
    CHECK_INT(look(c, "a", 100), -1);
    CHECK_INT(look(c, "a", 101), 2);
    CHECK_INT(look(c, "a", 200), 2);
    amp_image_cache_free(c);
}

AMP_TEST(what_is_in_use_stays)
{
    struct amp_image_cache *c = amp_image_cache_new(BYTES + BYTES / 2);
    REQUIRE(c);
    keep(c, "a", 0, 1);
    const struct amp_pixels *held = amp_image_cache_take(c, "a", 0);
    REQUIRE(held);
    keep(c, "b", 0, 2); /* there is no room */
    CHECK_INT(look(c, "b", 0), -1);
    keep(c, "a", 0, 3); /* replaced under the reader */
    CHECK_INT(held->bytes[BYTES - 1], 1);
    CHECK_INT(look(c, "a", 0), 3);
    amp_image_cache_give(c, held);
    amp_image_cache_free(c);
}

AMP_TEST(an_image_larger_than_the_cache_is_not_kept)
{
    struct amp_image_cache *c = amp_image_cache_new(BYTES / 2);
    REQUIRE(c);
    keep(c, "a", 0, 1);
    CHECK_INT(look(c, "a", 0), -1);
    amp_image_cache_free(c);
}

/* ---- threads ---- */

enum { THREADS = 4, FILES = 8, ROUNDS = 3000 };

struct reader {
    struct amp_image_cache *cache;
    uint64_t state;
    long found, wrong;
};

static void *read_and_keep(void *argument)
{
    struct reader *r = argument;
    for (int i = 0; i < ROUNDS; i++) {
        r->state = r->state * 6364136223846793005u + 1442695040888963407u;
        int file = (int)(r->state >> 40) % FILES;
        char path[2] = {(char)('a' + file), 0};
        const struct amp_pixels *p = amp_image_cache_take(r->cache, path, 0);
        if (!p) {
            keep(r->cache, path, 0, (uint8_t)file);
            continue;
        }
        r->found++;
        r->wrong += p->bytes[0] != file || p->bytes[BYTES - 1] != file;
        amp_image_cache_give(r->cache, p);
    }
    return NULL;
}

AMP_TEST(threads_share_it)
{
    struct amp_image_cache *c = amp_image_cache_new(5 * BYTES);
    struct reader readers[THREADS];
    pthread_t threads[THREADS];
    long found = 0;
    REQUIRE(c);
    for (int i = 0; i < THREADS; i++) {
        readers[i] = (struct reader){.cache = c, .state = test_random()};
        REQUIRE(!pthread_create(&threads[i], NULL, read_and_keep, &readers[i]));
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        CHECK_INT(readers[i].wrong, 0);
        found += readers[i].found;
    }
    CHECK(found > 0);
    amp_image_cache_free(c);
}

AMP_TEST_MAIN
