// SPDX-License-Identifier: Apache-2.0
//
// EnvironmentLookup: the source of variables for functions that read them, so that tests need no
// environment of their own.
#ifndef TESSERA_JOB_ENVIRONMENT_ENVIRONMENT_LOOKUP_H_
#define TESSERA_JOB_ENVIRONMENT_ENVIRONMENT_LOOKUP_H_

#include <functional>

#include "base/public.h"

namespace TESSERA_PUBLIC tessera {

// The value of a variable, or null. The text must live until the function that was given the lookup
// has returned.
using EnvironmentLookup = std::function<const char*(const char* name)>;

}  // namespace tessera

#endif  // TESSERA_JOB_ENVIRONMENT_ENVIRONMENT_LOOKUP_H_
