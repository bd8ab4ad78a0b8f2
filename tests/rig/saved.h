// Weights files and sidecars in the scratch folder. Include after attached.h.
#ifndef AMP_TEST_SAVED_H
#define AMP_TEST_SAVED_H

static inline void save(network *net, const char *name)
{
    save_weights(net, (char *)scratch(name));
}

static inline void load(network *net, const char *name)
{
    load_weights(net, (char *)scratch(name));
}

static inline bool exists(const char *name)
{
    return !access(scratch(name), F_OK);
}

static inline bool same_file(const char *a, const char *b)
{
    char x[4096], y[4096];
    long n = scratch_read(a, x, sizeof x);
    return n > 0 && n < 4095 && n == scratch_read(b, y, sizeof y) && !memcmp(x, y, (size_t)n);
}

static inline void check_same_pair(const char *a, const char *b)
{
    char x[60], y[60];
    snprintf(x, sizeof x, "%s.amp", a);
    snprintf(y, sizeof y, "%s.amp", b);
    CHECK(same_file(a, b));
    CHECK(same_file(x, y));
}

#endif
