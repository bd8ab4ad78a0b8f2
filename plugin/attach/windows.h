/* In the places of Darknet's functions that open windows and videos, which Darknet has with
 * OpenCV only, and that write images. */
#ifndef AMP_WINDOWS_H
#define AMP_WINDOWS_H

#include "darknet.h"

/* make_window. Without a display no window is opened, and a line says so. OpenCV would end the
 * program instead, after the work is done and the picture saved. */
void amp_window_make(char *name, int w, int h, int fullscreen);
/* show_image. The key that was pressed, -1 for none. */
int amp_window_show(image, const char *name, int ms);
/* save_image_options. If the program refuses bad images, one that cannot be written in full ends it
 * with status 1. */
void amp_window_save(image, const char *name, IMTYPE, int quality);
/* open_video_stream. Of most callers NULL is followed by an assertion, whose text does not name the
 * video; if the program refuses bad images, it ends with a message that does. */
void *amp_window_open_video(const char *file, int camera, int w, int h, int fps);

#endif
