/* Decides where the letters for boxes come from, and what happens to windows on a machine without a
 * display. It knows no session: both help any Darknet command, with or without our keys. */

#define _GNU_SOURCE
#include "ending.h"
#include "symbols.h"

#include "darknet.h"

#include <dlfcn.h>
#include <limits.h>
#include <unistd.h>

/* ---- letters ---- */

/* The letters that Darknet writes beside its boxes: images LETTER_SIZE.png, letters 32 to 126 in
 * sizes 0 to 7. Darknet looks for them in one fixed place, which differs between its versions. If
 * they are not there, it goes on without them, with one complaint per image. Here they are looked
 * for in
 *
 * 1. the folder named by DARKNET_LABELS in the environment (only there, if it is set);
 *
 * 2. ../share/darknet/labels, seen from the plugin: our build puts Darknet's own there;
 *
 * 3. data/labels beside the program, then in the current folder: a checkout;
 *
 * 4. /usr/share/darknet/data/labels: Debian's package.
 *
 * A missing letter is an error that names it. */
enum { SIZES = 8, FIRST = 32, END = 127 };

/* Room for a folder and the longest name in it, "/126_7.png". */
#define MAX_FOLDER (PATH_MAX - 16)

static int has_glyphs(const char *folder)
{
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%.*s/%d_0.png", MAX_FOLDER, folder, FIRST);
    return access(path, R_OK) == 0;
}

/* Sets folder to the folder that holds file, followed by suffix. */
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
    beside(folder, self.dli_fname, "/../share/darknet/labels");
    if (has_glyphs(folder)) return;
    if (readlink("/proc/self/exe", program, sizeof(program) - 1) < 0) program[0] = '\0';
    beside(folder, program, "/data/labels");
    if (has_glyphs(folder)) return;
    const char *fixed[] = {"data/labels", "/usr/share/darknet/data/labels"};
    for (int i = 0; i < 2; i++) {
        snprintf(folder, MAX_FOLDER, "%s", fixed[i]);
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
    return load_image_color(path, 0, 0);
}

AMP_INTERPOSE(image **, load_alphabet, ())
{
    char folder[MAX_FOLDER];
    find_folder(folder);
    image **alphabet = calloc(SIZES, sizeof(*alphabet));
    for (int size = 0; alphabet && size < SIZES; size++) {
        alphabet[size] = calloc(END + 1, sizeof(image));
        for (int letter = FIRST; alphabet[size] && letter < END; letter++) {
            alphabet[size][letter] = load_glyph(folder, letter, size);
        }
    }
    if (!alphabet || !alphabet[SIZES - 1]) amp_fail("out of memory");
    return alphabet;
}

/* ---- windows ---- */

/* Without a display no window is opened, and a line says so. OpenCV would end the program instead,
 * after the work is done and the picture saved. A Darknet without OpenCV never opens a window and
 * is left alone. */
void make_window(char *name, int w, int h, int fullscreen); /* declared for OPENCV only */

#ifdef AMP_WRAP
#pragma weak __real_make_window
static int has_opencv(void)
{
    return AMP_REAL(make_window) != NULL;
}
#else
static int has_opencv(void)
{
    return amp_look_up("make_window") != NULL;
}
#endif

/* A Qt platform chosen by the user (offscreen, vnc) counts as a display. */
static int has_display(void)
{
    const char *names[] = {"DISPLAY", "WAYLAND_DISPLAY", "QT_QPA_PLATFORM"};
    for (int i = 0; i < 3; i++) {
        const char *value = getenv(names[i]);
        if (value && *value) return 1;
    }
    return 0;
}

AMP_INTERPOSE(void, make_window, (char *name, int w, int h, int fullscreen))
{
    if (has_display()) {
        AMP_REAL(make_window)(name, w, h, fullscreen);
    } else {
        fprintf(stderr, "darknet-amp: no display, window \"%s\" is not shown\n", name);
    }
}

/* The key that was pressed, -1 for none. */
AMP_INTERPOSE(int, show_image, (image p, const char *name, int ms))
{
    if (has_opencv() && !has_display()) return -1;
    return AMP_REAL(show_image)(p, name, ms);
}
