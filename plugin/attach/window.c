/* Windows on a machine without a display: not opened, and said so. OpenCV's answer would be to end
 * the program, after the work is done and the picture saved. A Darknet without OpenCV never opens a
 * window and is left alone. */

#include "symbols.h"

#include "darknet.h"

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
