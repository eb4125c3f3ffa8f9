// SPDX-License-Identifier: Apache-2.0
//
// The texts that count as HOST:PORT.
#include "job/environment/address.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

TEST(AddressTest, HostsAndPorts) {
  struct Row {
    const char* text;
    const char* host;
    int port;
  };
  for (const Row& row : {Row{"host-a:4000", "host-a", 4000}, Row{"127.0.0.1:1", "127.0.0.1", 1},
                         Row{"[::1]:65535", "::1", 65535}}) {
    const std::optional<Address> address = parse_address(row.text);
    ASSERT_TRUE(address.has_value()) << row.text;
    EXPECT_EQ(absl::StrCat(address->host, " ", address->port),
              absl::StrCat(row.host, " ", row.port));
  }
}

TEST(AddressTest, WhatIsNone) {
  for (const char* text :
       {"", "nonsense", ":4000", ":99999", "host:", "host:0", "host:65536", "host:-1", "host:+1",
        "host: 1", "host:1 ", "host:a", "host a:1", "host:1\n", "h\xc3\xb6st:1"}) {
    EXPECT_FALSE(parse_address(text).has_value()) << text;
  }
}

}  // namespace
}  // namespace tessera
