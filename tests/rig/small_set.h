/* A temporary folder with a few small images of every kind of label, for tests that load batches.
 * The images are PPM whatever their names say: OpenCV looks at the content. */
#ifndef AMP_TEST_SMALL_SET_H
#define AMP_TEST_SMALL_SET_H

#include "harness.h"

#include <sys/stat.h>
#include <unistd.h>

#define SMALL_SET_IMAGES 12
#define SMALL_SET_W      20
#define SMALL_SET_H      14
#define SMALL_SET_STEP   20 /* image i has the red value i * SMALL_SET_STEP everywhere */

static char *box_paths[SMALL_SET_IMAGES], *mask_paths[SMALL_SET_IMAGES];

static inline void write_text(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    if (!f) abort();
    fputs(text, f);
    fclose(f);
}

static inline void write_small_image(const char *path, int i)
{
    FILE *f = fopen(path, "wb");
    if (!f) abort();
    fprintf(f, "P6 %d %d 255\n", SMALL_SET_W, SMALL_SET_H);
    for (int y = 0; y < SMALL_SET_H; y++)
        for (int x = 0; x < SMALL_SET_W; x++) {
            unsigned char rgb[3] = {(unsigned char)(i * SMALL_SET_STEP), (unsigned char)(x * 12),
                                    (unsigned char)(y * 17 + i)};
            fwrite(rgb, 3, 1, f);
        }
    fclose(f);
}

static inline char *add_small_image(const char *folder, int i, const char *label)
{
    char path[64];
    snprintf(path, sizeof path, "%s/%02d.txt", folder, i);
    write_text(path, label);
    snprintf(path, sizeof path, "%s/%02d.jpg", folder, i);
    write_small_image(path, i);
    return strdup(path);
}

static char small_set_folder[] = "/tmp/amp-set-XXXXXX";

static pid_t small_set_owner;

static void remove_small_set(void)
{
    char command[64];
    if (getpid() != small_set_owner) return;
    snprintf(command, sizeof command, "rm -r %s", small_set_folder);
    if (system(command)) fprintf(stderr, "cannot remove %s\n", small_set_folder);
}

/* Makes the folder and enters it. */
__attribute__((constructor)) static void make_small_set(void)
{
    if (!mkdtemp(small_set_folder) || chdir(small_set_folder)) abort();
    small_set_owner = getpid();
    atexit(remove_small_set);
    mkdir("boxes", 0777);
    mkdir("masks", 0777);
    for (int i = 0; i < SMALL_SET_IMAGES; i++) {
        box_paths[i] = add_small_image("boxes", i,
                                       "1 0.5 0.5 0.4 0.3\n0 0.3 0.4 0.25 0.2\n"
                                       "1 0.7 0.6 0.3 0.5\n");
        mask_paths[i] = add_small_image("masks", i, "1 45,60,30\n0 100,50\n");
    }
}

/* A net with an odd number of initial weights, a dropout layer and a yolo head. */
static inline const char *write_small_cfg(const char *net_keys)
{
    static char text[2048];
    snprintf(text, sizeof text,
             "[net]\nbatch=2\nsubdivisions=2\nwidth=16\nheight=16\nchannels=3\nmomentum=0.9\n"
             "decay=0.0005\nlearning_rate=0.01\npolicy=constant\nmax_batches=1000\n%s\n"
             "[convolutional]\nbatch_normalize=1\nfilters=5\nsize=3\nstride=2\npad=1\n"
             "activation=leaky\n[dropout]\nprobability=.3\n"
             "[convolutional]\nfilters=14\nsize=1\nstride=1\npad=1\nactivation=linear\n"
             "[yolo]\nmask=0,1\nanchors=5,5, 9,7\nclasses=2\nnum=2\njitter=.2\n"
             "ignore_thresh=.7\ntruth_thresh=1\n",
             net_keys);
    write_text("small.cfg", text);
    return "small.cfg";
}

#endif
