/* Decides where an image of a detection batch goes and how its colours change: the draws of
 * Darknet's load_data_detection. It must not know how an image is decoded or placed. */
#include "detection.h"

#include "plugin/attach/ending.h"
#include "images.h"
#include "plugin/attach/interposed.h"
#include "plugin/images/place.h"
#include "seed.h"

#include "utils.h"

#include <pthread.h>
#include <stdlib.h>

/* Of src/data.c; no header of Darknet's declares it. */
void fill_truth_detection(char *path, int num_boxes, float *truth, int classes, int flip, float dx,
                          float dy, float sx, float sy);

/* ---- memory to decode in ---- */

/* Threads end with their batch; the memory that they decode in is kept for the next one. */
struct memory {
    struct memory *next;
    struct amp_jpeg_memory jpeg;
};

static struct {
    pthread_mutex_t lock;
    struct memory *first;
} unused = {.lock = PTHREAD_MUTEX_INITIALIZER};

static struct memory *take_memory(void)
{
    pthread_mutex_lock(&unused.lock);
    struct memory *m = unused.first;
    if (m) unused.first = m->next;
    pthread_mutex_unlock(&unused.lock);
    if (!m) m = calloc(1, sizeof *m);
    if (!m) amp_fail("out of memory while loading a batch: lower batch");
    return m;
}

static void give_memory(struct memory *m)
{
    pthread_mutex_lock(&unused.lock);
    m->next = unused.first;
    unused.first = m;
    pthread_mutex_unlock(&unused.lock);
}

/* ---- one image ---- */

/* Where the image lies, in Darknet's numbers. */
struct place {
    float w, h, left, top;
};

/* Darknet keeps what it was given, and takes 0 for "as it is". */
static float factor(float most)
{
    return AMP_USE(rand_scale)(most == 0 ? 1 : most);
}

/* Every statement draws once, in the order of load_data_detection. */
static struct place draw_place(const load_args *a, const struct amp_pixels *image)
{
    struct place p;
    float dw = a->jitter * image->full_w, dh = a->jitter * image->full_h;
    float w = image->full_w + AMP_USE(rand_uniform)(-dw, dw);
    float aspect = w / (image->full_h + AMP_USE(rand_uniform)(-dh, dh));
    if (aspect < 1) {
        p.h = a->h;
        p.w = p.h * aspect;
    } else {
        p.w = a->w;
        p.h = p.w / aspect;
    }
    p.left = AMP_USE(rand_uniform)(0, a->w - p.w);
    p.top = AMP_USE(rand_uniform)(0, a->h - p.h);
    return p;
}

static struct amp_placement draw_rest(const load_args *a, const struct place *p)
{
    struct amp_placement all = {.canvas_w = a->w,
                                .canvas_h = a->h,
                                .w = (int)p->w,
                                .h = (int)p->h,
                                .left = (int)p->left,
                                .top = (int)p->top,
                                .distorts = true};
    all.hue = AMP_USE(rand_uniform)(-a->hue, a->hue);
    all.saturation = factor(a->saturation);
    all.exposure = factor(a->exposure);
    all.flip = amp_seed_rand() % 2;
    return all;
}

static matrix one_row(float *row, int columns)
{
    matrix m = {.rows = 1, .cols = columns, .vals = malloc(sizeof *m.vals)};
    if (!m.vals || !row) amp_fail("out of memory while loading a batch: lower batch");
    m.vals[0] = row;
    return m;
}

static void tell(const struct amp_detection_loader *l, enum amp_load_part done)
{
    if (l->done) l->done(done, l->user);
}

static void load(const struct amp_detection_loader *l, const load_args *a,
                 const struct amp_pixels *image)
{
    (void)amp_seed_rand(); /* which image of a list of one */
    struct place p = draw_place(a, image);
    struct amp_placement placement = draw_rest(a, &p);
    float *canvas = amp_image_make(a->w, a->h, 3).data;
    if (!amp_place(image, &placement, canvas))
        amp_fail("out of memory while loading a batch: lower batch");
    tell(l, AMP_LOAD_PLACE);
    *a->d = (data){.X = one_row(canvas, a->w * a->h * 3),
                   .y = one_row(calloc((size_t)a->num_boxes * 5, sizeof(float)), a->num_boxes * 5)};
    /* Darknet is compiled with -Ofast, which makes p.w / a->w a product: labels then differ in
     * their last bit. */
    float x = 1.0f / a->w, y = 1.0f / a->h;
    AMP_USE(fill_truth_detection)
    (a->paths[0], a->num_boxes, a->d->y.vals[0], a->classes, placement.flip, -p.left * x,
     -p.top * y, p.w * x, p.h * y);
    tell(l, AMP_LOAD_LABELS);
}

static bool load_kept(const struct amp_detection_loader *l, const load_args *a, int least)
{
    const struct amp_pixels *image =
        l->cache ? amp_image_cache_take(l->cache, a->paths[0], least) : NULL;
    if (!image) return false;
    load(l, a, image);
    amp_image_cache_give(l->cache, image);
    return true;
}

static const struct amp_pixels *read_jpeg(const struct amp_detection_loader *l, char *path,
                                          int least, struct amp_jpeg_memory *memory)
{
    if (!amp_jpeg_file(path, memory)) return NULL;
    tell(l, AMP_LOAD_READ);
    const struct amp_pixels *image = amp_image_decode_jpeg(path, least, memory);
    tell(l, AMP_LOAD_DECODE);
    return image;
}

bool amp_detection_load(const struct amp_detection_loader *l, const load_args *a)
{
    /* No side of the placed image is longer than the canvas's longer one. */
    int least = !l->reduces ? 0 : a->w > a->h ? a->w : a->h;
    if (load_kept(l, a, least)) return true;
    struct memory *memory = take_memory();
    const struct amp_pixels *image = read_jpeg(l, a->paths[0], least, &memory->jpeg);
    if (image && l->cache) amp_image_cache_keep(l->cache, a->paths[0], least, image);
    if (image) load(l, a, image);
    give_memory(memory);
    return image != NULL;
}

int amp_load_image(const load_args *a, int reduces, amp_load_function *done, void *user)
{
    const struct amp_detection_loader l = {.reduces = reduces, .done = done, .user = user};
    return amp_detection_load(&l, a);
}
