/* Image files that cannot be decoded.
 *
 * Darknet's load_image_cv prints the name, runs the shell command `echo NAME >> bad.list`, built in
 * a buffer of 256 bytes, and goes on with a black image of 10x10. With the plugin no name reaches a
 * shell or overruns that buffer, and if OpenCV throws, the program ends with status 1 and names the
 * file.
 *
 * The line in bad.list and the black image stay, unless a network is trained with the plugin. Then
 * the program ends with status 1 and names the file; training goes on from the last backup. (A
 * Darknet without OpenCV ends the program by itself, with status 0: that becomes 1.) A label file
 * that has gone ends the program, too. */
#ifndef AMP_IMAGE_FILE_H
#define AMP_IMAGE_FILE_H

#include <stdbool.h>

/* Adds a thread that trains (true) or takes one away. While there is one, an image that cannot be
 * decoded ends the program, on any thread. */
void amp_image_file_refuse(bool);
/* The calling thread begins (true) or ends loading images of a batch with their labels. */
void amp_image_loading(bool);

#endif
