// SPDX-License-Identifier: Apache-2.0
#include "transport/mpi/meeting_place.h"

#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "job/environment/host.h"
#include "job/environment/port.h"

namespace tessera::mpi {
namespace {

std::string first_set(const std::string& given, const char* variable) {
  if (!given.empty()) return given;
  const char* const value = std::getenv(variable);
  return value == nullptr ? "" : value;
}

}  // namespace

StatusOr<MeetingPlace> choose_meeting_place(const std::string& given,
                                            const std::string& given_token, bool is_one_host) {
  MeetingPlace place;
  place.address = first_set(given, "TESSERA_COORDINATOR");
  place.token = first_set(given_token, "TESSERA_TOKEN");
  if (place.token.empty()) place.token = random_token();
  if (!place.address.empty()) return place;
  TESSERA_ASSIGN_OR_RETURN(ReservedPort port, ReservedPort::create());
  place.address =
      absl::StrCat(is_one_host ? "127.0.0.1" : describe_this_process().host, ":", port.port());
  place.port_holder = std::make_shared<const ReservedPort>(std::move(port));
  return place;
}

}  // namespace tessera::mpi
