/* Ends the program safely while other threads are at work.
 *
 * Darknet's trainers return while the next batch is still being loaded. Then exit runs OpenCV's
 * destructors under the threads that decode, and the finished batch is written to a variable of a
 * function that has returned: both crash now and then. So work that must not happen during exit (a
 * layer of ours at work, too) is done between amp_ending_enter and amp_ending_leave. Exit waits for
 * the threads inside and lets nobody in any more. */
#ifndef AMP_ENDING_H
#define AMP_ENDING_H

/* amp_ending_enter does not return if the program is ending: the code after it would go on without
 * a batch or an image. Calls may be nested. A thread that is inside may call exit. */
void amp_ending_enter(void);
void amp_ending_leave(void);

/* From the first call on exit and quick_exit wait. What is registered last runs first, so it is
 * called once more when a library has registered its destructors: OpenCV does when it decodes its
 * first image, a backend (kernels.h) when it makes its first context and computes its first layers.
 * (A program that ends just then, in another thread, may still crash.) */
enum amp_ending_after {
    AMP_ENDING_AFTER_IMAGE,
    AMP_ENDING_AFTER_CONTEXT,
    AMP_ENDING_AFTER_FORWARD,
    AMP_ENDING_AFTER_BACKWARD,
    AMP_ENDING_KINDS
};
void amp_ending_watch(enum amp_ending_after);
/* Lets nobody else in, and waits until nobody else is inside. exit and quick_exit call it. */
void amp_ending_wait(void);

#endif
