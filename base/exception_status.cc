// SPDX-License-Identifier: Apache-2.0
#include "base/exception_status.h"

#include <exception>

#include "absl/strings/str_cat.h"

namespace tessera {

Status exception_status() {
  try {
    std::rethrow_exception(std::current_exception());
  } catch (const std::exception& e) {
    return absl::UnknownError(absl::StrCat("the function raised an exception: ", e.what()));
  } catch (...) {
    return absl::UnknownError(
        "the function raised an exception that is not a std::exception; catch it there");
  }
}

}  // namespace tessera
