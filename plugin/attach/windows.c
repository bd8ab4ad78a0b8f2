/* Decides what becomes of windows and videos that cannot be opened, and of images that cannot be
 * written. It must not know what is shown. */
#include "windows.h"

#include "amp.h"
#include "fail.h"
#include "interposed.h"
#include "plugin/attach/feed/images.h"

#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Declared for OPENCV only. */
void *open_video_stream(const char *file, int camera, int w, int h, int fps);
void make_window(char *name, int w, int h, int fullscreen);

#ifdef AMP_WRAP
#pragma weak __real_open_video_stream
#pragma weak __real_make_window
static bool has_opencv(void)
{
    return AMP_REAL(make_window) != NULL;
}
#else
static bool has_opencv(void)
{
    return amp_look_up("make_window") != NULL;
}
#endif

/* A Qt platform chosen by the user (offscreen, vnc) counts as a display. */
int amp_has_display(void)
{
    const char *names[] = {"DISPLAY", "WAYLAND_DISPLAY", "QT_QPA_PLATFORM"};
    for (int i = 0; i < 3; i++) {
        const char *value = getenv(names[i]);
        if (value && *value) return 1;
    }
    return 0;
}

void amp_window_make(char *name, int w, int h, int fullscreen)
{
    if (amp_has_display())
        AMP_REAL(make_window)(name, w, h, fullscreen);
    else
        fprintf(stderr, "darknet-amp: no display, window \"%s\" is not shown\n", name);
}

/* Whether the file ends as a JPEG or PNG does. */
static bool ends_as_image(const char *path)
{
    static const char jpeg[2] = "\xFF\xD9", png[8] = "IEND\xAE\x42\x60\x82";
    char end[sizeof png];
    FILE *f = fopen(path, "rb");
    bool read = f && !fseek(f, -(long)sizeof end, SEEK_END) && fread(end, sizeof end, 1, f) == 1;
    if (f) fclose(f);
    return read && (!memcmp(end, png, sizeof png) ||
                    !memcmp(end + sizeof end - sizeof jpeg, jpeg, sizeof jpeg));
}

/* Darknet's own looks at no write, and goes on where it could not open the file. */
void amp_window_save(image p, const char *name, IMTYPE type, int quality)
{
    enum { ROOM = 256 }; /* of Darknet's buffer for the name */
    char path[PATH_MAX], message[PATH_MAX + 200];
    if (!amp_images_are_refused() || (type != JPG && type != PNG)) {
        AMP_REAL(save_image_options)(p, name, type, quality);
        return;
    }
    int length = snprintf(path, sizeof path, "%s.%s", name, type == JPG ? "jpg" : "png");
    FILE *file = length < ROOM ? fopen(path, "ab") : NULL;
    const char *why = file ? NULL : strerror(length < ROOM ? errno : ENAMETOOLONG);
    if (file) fclose(file);
    if (file) AMP_REAL(save_image_options)(p, name, type, quality);
    if (file && !ends_as_image(path))
        why = "it is cut off: is the disk full, or the size of files limited (ulimit -f)?";
    if (!why) return;
    snprintf(message, sizeof message, "image \"%s\" cannot be written: %s", path, why);
    amp_fail(message);
}

int amp_window_show(image p, const char *name, int ms)
{
    if (has_opencv() && !amp_has_display()) return -1;
    return AMP_REAL(show_image)(p, name, ms);
}

void *amp_window_open_video(const char *file, int camera, int w, int h, int fps)
{
    char message[PATH_MAX + 100];
    void *stream = AMP_REAL(open_video_stream)(file, camera, w, h, fps);
    if (stream || !amp_images_are_refused()) return stream;
    if (file)
        snprintf(message, sizeof message, "video \"%s\": cannot be read as a video", file);
    else
        snprintf(message, sizeof message, "camera %d cannot be opened (-c N chooses another)",
                 camera);
    amp_fail(message);
}
