// SPDX-License-Identifier: Apache-2.0
//
// describe_devices: the text of a list of device ids that clients compare when they make a mesh.
#ifndef TESSERA_DTENSOR_DESCRIBE_DEVICES_H_
#define TESSERA_DTENSOR_DESCRIBE_DEVICES_H_

#include <string>

#include "absl/types/span.h"

namespace tessera {

// "[0-3, 9]", in the order of the list: equal texts mean equal lists. Beyond 16 runs of ids the
// rest is a number and a hash.
std::string describe_devices(absl::Span<const int> ids);

}  // namespace tessera

#endif  // TESSERA_DTENSOR_DESCRIBE_DEVICES_H_
