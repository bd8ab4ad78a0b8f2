/* The complete CUDA backend, on the emulation (test_cuda_training.c): networks that train in
 * several threads at once, each on a device of its own, are each what they are alone, byte for
 * byte. For TSan, which looks for what the threads share in our code. */
#include "tests/emulation/emulation.h"
#include "tests/rig/harness.h"
#include "tests/rig/attached.h"

#include <pthread.h>

enum { THREADS = 2, ITERATIONS = 3 };

#define SMALL CONV(4, NORMALIZED "stride=2\n") CONV(4, "") YOLO("0,1")

struct job {
    network *net;
    int device;
};

static struct job start(int device)
{
    emulation_use_device(device);
    return (struct job){parse(MIXED "amp_backend=cuda\nbatch=4\nlearning_rate=.001\n", SMALL),
                        device};
}

static void *train(void *p)
{
    const struct job *job = p;
    emulation_use_device(job->device);
    steps(job->net, ITERATIONS);
    resize_network(job->net, 32, 32);
    steps(job->net, 1);
    return NULL;
}

static void end(const struct job *job)
{
    emulation_use_device(job->device);
    free_network(job->net);
}

AMP_TEST(threads_train_beside_each_other)
{
    pthread_t threads[THREADS];
    struct job beside[THREADS];
    emulation_devices(THREADS);
    struct job alone = start(0);
    train(&alone);
    for (int i = 0; i < THREADS; i++)
        beside[i] = start(i);
    for (int i = 0; i < THREADS; i++)
        REQUIRE(!pthread_create(&threads[i], NULL, train, &beside[i]));
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < THREADS; i++) {
        CHECK_SAME(beside[i].net, alone.net);
        end(&beside[i]);
    }
    CHECK(*alone.net->t == ITERATIONS + 1);
    end(&alone);
}

AMP_TEST_MAIN
