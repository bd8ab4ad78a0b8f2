/* Reference: how close a head's decisions were, for all files of heads. */
#include "heads.h"

double ampk_ref_closest_decision = INFINITY;

bool ampk_ref_exceeds(double a, double b)
{
    double distance = fabs(a - b) / fmax(fabs(a), fabs(b));
    if (a != b && distance < ampk_ref_closest_decision) ampk_ref_closest_decision = distance;
    return a > b;
}
