/* Decides where a picture's pixels come from. It must not know what becomes of them. */
#include "pictures.h"

#include "images.h"
#include "plugin/attach/fail.h"
#include "plugin/attach/interposed.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>

/* Threads end with their batch; the memory that they decode in is kept for the next one. */
struct amp_picture_memory {
    struct amp_picture_memory *next;
    struct amp_jpeg_memory jpeg;
};

static struct {
    pthread_mutex_t lock;
    struct amp_picture_memory *first;
} unused = {.lock = PTHREAD_MUTEX_INITIALIZER};

static struct amp_picture_memory *take_memory(void)
{
    pthread_mutex_lock(&unused.lock);
    struct amp_picture_memory *m = unused.first;
    if (m) unused.first = m->next;
    pthread_mutex_unlock(&unused.lock);
    if (!m) m = calloc(1, sizeof *m);
    if (!m) amp_fail("out of memory while loading a batch: lower batch");
    return m;
}

static void give_memory(struct amp_picture_memory *m)
{
    pthread_mutex_lock(&unused.lock);
    m->next = unused.first;
    unused.first = m;
    pthread_mutex_unlock(&unused.lock);
}

void amp_picture_tell(const struct amp_image_loader *l, enum amp_load_part done)
{
    if (l->done) l->done(done, l->user);
}

static const struct amp_pixels *read_jpeg(const struct amp_image_loader *l, char *path, int least,
                                          struct amp_jpeg_memory *memory)
{
    if (!amp_jpeg_file(path, memory)) return NULL;
    amp_picture_tell(l, AMP_LOAD_READ);
    const struct amp_pixels *image = amp_image_decode_jpeg(path, least, memory);
    amp_picture_tell(l, AMP_LOAD_DECODE);
    return image;
}

bool amp_picture_read(const struct amp_image_loader *l, char *path, int least,
                      struct amp_picture *p)
{
    *p = (struct amp_picture){.pixels =
                                  l->cache ? amp_image_cache_take(l->cache, path, least) : NULL};
    if (p->pixels) return true;
    p->memory = take_memory();
    p->pixels = read_jpeg(l, path, least, &p->memory->jpeg);
    if (p->pixels && l->cache) amp_image_cache_keep(l->cache, path, least, p->pixels);
    if (!p->pixels) give_memory(p->memory);
    return p->pixels != NULL;
}

/* Darknet has made fractions of 255 of the bytes, in planes of red, green and blue. */
static void take_pixels(image from, struct amp_pixels *to)
{
    size_t plane = (size_t)from.w * (size_t)from.h;
    if (!amp_pixels_resize(to, from.w, from.h))
        amp_fail("out of memory while loading a batch: lower batch");
    for (size_t i = 0; i < plane; i++)
        for (size_t c = 0; c < 3; c++)
            to->bytes[3 * i + c] = (uint8_t)lrintf(255 * from.data[(2 - c) * plane + i]);
    to->full_w = from.w;
    to->full_h = from.h;
}

void amp_picture_read_any(const struct amp_image_loader *l, char *path, struct amp_picture *p)
{
    if (amp_picture_read(l, path, 0, p)) return;
    image decoded = amp_image_load_color(path, 0, 0);
    p->memory = take_memory();
    take_pixels(decoded, &p->memory->jpeg.pixels);
    AMP_USE(free_image)(decoded);
    p->pixels = &p->memory->jpeg.pixels;
    if (l->cache && !amp_images_is_bad()) amp_image_cache_keep(l->cache, path, 0, p->pixels);
    amp_picture_tell(l, AMP_LOAD_DARKNET);
}

void amp_picture_drop(const struct amp_image_loader *l, const struct amp_picture *p)
{
    if (p->memory)
        give_memory(p->memory);
    else
        amp_image_cache_give(l->cache, p->pixels);
}
