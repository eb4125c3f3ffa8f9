// SPDX-License-Identifier: Apache-2.0
#include "messages.h"

#include <string>

#include "job/coordinator/coordinator.pb.h"

std::string encode(const std::string& name, int number) {
  consumer::Member member;
  member.set_name(name);
  member.set_number(number);
  return member.SerializeAsString();
}

std::string describe(const std::string& bytes) {
  consumer::Member member;
  if (!member.ParseFromString(bytes)) return "";
  return member.GetDescriptor()->file()->name() + ": " + member.ShortDebugString();
}
