// Darknet's training returns from main while its loader threads still decode the next batch. The
// destructors that exit() runs then take OpenCV away from under them, and now and then a training
// that is complete ends in a crash. Here exit() first waits for the images in decoding, and no
// thread begins another. A Darknet without OpenCV has nothing to destroy and is left alone.

#include "attach/symbols.h"

#include "darknet.h"

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

image load_image_cv(char *filename, int channels); // declared for OPENCV only
#ifdef AMP_WRAP
#pragma weak __real_load_image_cv
#endif

static atomic_int decoding; // threads that are inside OpenCV
static atomic_bool exiting;

static void wait_for_decoders(void)
{
    exiting = 1;
    while (decoding) {
        usleep(1000);
    }
}

static void watch_exit(void)
{
    atexit(wait_for_decoders);
}

// The process is about to end; a thread that gets here has nothing left to do.
static void rest(void)
{
    --decoding;
    for (;;) {
        pause();
    }
}

AMP_INTERPOSE(image, load_image_cv, (char *filename, int channels))
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch_exit);
    ++decoding;
    if (exiting) rest();
    image im = AMP_REAL(load_image_cv)(filename, channels);
    --decoding;
    return im;
}
