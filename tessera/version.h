// SPDX-License-Identifier: Apache-2.0
//
// The version of Tessera that a program is compiled with, by semver.org: before 1.0.0 a new minor
// version may change the API and the ABI.
#ifndef TESSERA_TESSERA_VERSION_H_
#define TESSERA_TESSERA_VERSION_H_

#define TESSERA_VERSION_MAJOR 0
#define TESSERA_VERSION_MINOR 1
#define TESSERA_VERSION_PATCH 0
#define TESSERA_VERSION "0.1.0"

#endif  // TESSERA_TESSERA_VERSION_H_
