/* Decides which decoded images stay in memory. It must not know how they are decoded. */
#include "cache.h"

#include <pthread.h>
#include <search.h>
#include <stdlib.h>
#include <string.h>

/* In the tree by path, and in the list by use. One that was replaced while in use is in neither,
 * and goes when it is given back. */
struct kept {
    struct amp_pixels pixels; /* first: what callers have */
    char *path;
    int least;
    size_t bytes;
    int users;
    bool replaced;
    struct kept *older, *newer;
};

struct amp_image_cache {
    pthread_mutex_t lock;
    size_t limit, used;
    void *tree; /* of tsearch */
    struct kept *oldest, *newest;
};

static int compare(const void *a, const void *b)
{
    return strcmp(((const struct kept *)a)->path, ((const struct kept *)b)->path);
}

/* Whether decoding with this `least` would give the same pixels. */
static bool is_read_with(const struct kept *e, int least)
{
    int w = e->pixels.full_w, h = e->pixels.full_h;
    return amp_jpeg_reduction(w, h, least) == amp_jpeg_reduction(w, h, e->least);
}

static struct kept *find(struct amp_image_cache *c, const char *path)
{
    struct kept key = {.path = (char *)path};
    struct kept **found = tfind(&key, &c->tree, compare);
    return found ? *found : NULL;
}

/* ---- the list ---- */

static void unlink_entry(struct amp_image_cache *c, struct kept *e)
{
    *(e->older ? &e->older->newer : &c->oldest) = e->newer;
    *(e->newer ? &e->newer->older : &c->newest) = e->older;
}

static void link_newest(struct amp_image_cache *c, struct kept *e)
{
    e->older = c->newest;
    e->newer = NULL;
    *(c->newest ? &c->newest->newer : &c->oldest) = e;
    c->newest = e;
}

/* ---- coming and going ---- */

static void free_entry(struct kept *e)
{
    free(e->pixels.bytes);
    free(e->path);
    free(e);
}

/* Its bytes no longer count; if somebody uses it, it is freed when it is given back. */
static void drop(struct amp_image_cache *c, struct kept *e)
{
    tdelete(e, &c->tree, compare);
    unlink_entry(c, e);
    c->used -= e->bytes;
    e->replaced = true;
    if (!e->users) free_entry(e);
}

static bool make_room(struct amp_image_cache *c, size_t bytes)
{
    for (struct kept *e = c->oldest, *newer; e && c->used + bytes > c->limit; e = newer) {
        newer = e->newer;
        if (!e->users) drop(c, e);
    }
    return c->used + bytes <= c->limit;
}

/* A copy; NULL: no memory. */
static struct kept *make_entry(const char *path, int least, const struct amp_pixels *pixels)
{
    struct kept *e = calloc(1, sizeof *e);
    if (!e) return NULL;
    size_t bytes = (size_t)pixels->w * (size_t)pixels->h * 3;
    e->path = strdup(path);
    e->least = least;
    e->pixels = *pixels;
    e->pixels.bytes = malloc(bytes);
    e->pixels.capacity = bytes;
    e->bytes = bytes + sizeof *e + strlen(path) + 1;
    if (e->path && e->pixels.bytes) {
        memcpy(e->pixels.bytes, pixels->bytes, bytes);
        return e;
    }
    free_entry(e);
    return NULL;
}

/* ---- what callers see ---- */

struct amp_image_cache *amp_image_cache_new(size_t bytes)
{
    struct amp_image_cache *c = calloc(1, sizeof *c);
    if (!c) return NULL;
    pthread_mutex_init(&c->lock, NULL);
    c->limit = bytes;
    return c;
}

void amp_image_cache_free(struct amp_image_cache *c)
{
    if (!c) return;
    while (c->oldest)
        drop(c, c->oldest);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

const struct amp_pixels *amp_image_cache_take(struct amp_image_cache *c, const char *path,
                                              int least)
{
    pthread_mutex_lock(&c->lock);
    struct kept *e = find(c, path);
    if (e && !is_read_with(e, least)) e = NULL;
    if (e) {
        e->users++;
        unlink_entry(c, e);
        link_newest(c, e);
    }
    pthread_mutex_unlock(&c->lock);
    return e ? &e->pixels : NULL;
}

void amp_image_cache_give(struct amp_image_cache *c, const struct amp_pixels *pixels)
{
    struct kept *e = (struct kept *)pixels;
    pthread_mutex_lock(&c->lock);
    bool last = --e->users == 0 && e->replaced;
    pthread_mutex_unlock(&c->lock);
    if (last) free_entry(e);
}

void amp_image_cache_keep(struct amp_image_cache *c, const char *path, int least,
                          const struct amp_pixels *pixels)
{
    struct kept *e = make_entry(path, least, pixels);
    if (!e) return;
    pthread_mutex_lock(&c->lock);
    struct kept *old = find(c, path);
    if (old) drop(c, old);
    bool kept = make_room(c, e->bytes) && tsearch(e, &c->tree, compare);
    if (kept) {
        link_newest(c, e);
        c->used += e->bytes;
    }
    pthread_mutex_unlock(&c->lock);
    if (!kept) free_entry(e);
}
