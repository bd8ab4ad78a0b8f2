/* Decides where the images of letters are. Darknet looks for them in one fixed place, which differs
 * between its versions; if they are not there, it goes on without them, with one complaint per
 * image. Here they are looked for in
 *
 * 1. the folder named by DARKNET_LABELS in the environment (only there, if it is set);
 *
 * 2. ../share/darknet/labels, seen from the plugin, then from the program, since the plugin may lie
 * a folder deeper (lib/x86_64-linux-gnu): our build puts Darknet's own there;
 *
 * 3. data/labels beside the program, then in the current folder: a checkout;
 *
 * 4. /usr/share/darknet/data/labels: Debian's package. */

#define _GNU_SOURCE
#include "letters.h"

#include "fail.h"
#include "plugin/attach/feed/images.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Images LETTER_SIZE.png: letters 32 to 126 in sizes 0 to 7. */
enum { SIZES = 8, FIRST = 32, END = 127 };

/* Room for a folder and the longest name in it, "/126_7.png". */
#define MAX_FOLDER (PATH_MAX - 16)

static int has_glyphs(const char *folder)
{
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%.*s/%d_0.png", MAX_FOLDER, folder, FIRST);
    return access(path, R_OK) == 0;
}

/* Sets folder to the folder that holds file, followed by suffix; without a file, to suffix. */
static void beside(char *folder, const char *file, const char *suffix)
{
    const char *slash = file ? strrchr(file, '/') : NULL;
    int length = slash ? (int)(slash - file) : 0;
    snprintf(folder, MAX_FOLDER, "%.*s%s", length, file ? file : "", suffix);
}

static void find_folder(char *folder)
{
    Dl_info self = {0};
    char program[PATH_MAX] = "";
    const char *named = getenv("DARKNET_LABELS");
    if (named) {
        snprintf(folder, MAX_FOLDER, "%s", named);
        return;
    }
    dladdr((void *)find_folder, &self);
    if (readlink("/proc/self/exe", program, sizeof(program) - 1) < 0) program[0] = '\0';
    const char *const places[][2] = {{self.dli_fname, "/../share/darknet/labels"},
                                     {program, "/../share/darknet/labels"},
                                     {program, "/data/labels"},
                                     {NULL, "data/labels"},
                                     {NULL, "/usr/share/darknet/data/labels"}};
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        beside(folder, places[i][0], places[i][1]);
        if (has_glyphs(folder)) return;
    }
    amp_fail("the glyph images for box labels (32_0.png to 126_7.png) were not found; set "
             "DARKNET_LABELS to the folder data/labels of Darknet's source");
}

static image load_glyph(const char *folder, int letter, int size)
{
    char path[PATH_MAX], message[PATH_MAX + 128];
    snprintf(path, sizeof(path), "%.*s/%d_%d.png", MAX_FOLDER, folder, letter, size);
    if (access(path, R_OK)) {
        snprintf(message, sizeof(message), "%s: this glyph image for box labels cannot be read",
                 path);
        amp_fail(message);
    }
    return amp_image_load_color(path, 0, 0);
}

image **amp_letters_load(void)
{
    char folder[MAX_FOLDER];
    find_folder(folder);
    image **alphabet = calloc(SIZES, sizeof(*alphabet));
    for (int size = 0; alphabet && size < SIZES; size++) {
        /* Darknet takes a name's bytes for indices, as char: those of other letters are negative.
         */
        image *letters = calloc(UCHAR_MAX + 1, sizeof(image));
        alphabet[size] = letters ? letters - CHAR_MIN : NULL;
        for (int letter = FIRST; alphabet[size] && letter < END; letter++) {
            alphabet[size][letter] = load_glyph(folder, letter, size);
        }
    }
    if (!alphabet || !alphabet[SIZES - 1]) amp_fail("out of memory");
    return alphabet;
}
