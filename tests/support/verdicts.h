// SPDX-License-Identifier: Apache-2.0
//
// Verdicts: checks that all clients of a test got the same Status, code and text, as threads or as
// forked processes.
//
//   Verdicts verdicts;                              made before run_clients
//   verdicts.add(client.client_id(), mesh.barrier("b", absl::Seconds(1)));      in each client
//   EXPECT_THAT(verdicts.same({0, 1}), IsOk());     after the job
#ifndef TESSERA_TESTS_SUPPORT_VERDICTS_H_
#define TESSERA_TESTS_SUPPORT_VERDICTS_H_

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "tests/support/shared.h"

namespace tessera::testing {

class Verdicts {
 public:
  // Keeps the client's first status, and returns it. Its text is cut beyond 8191 bytes.
  Status add(int client, const Status& status) {
    char* const text = texts_->of[client];
    if (text[0] != '\0') return status;
    const std::string all = status.ToString();
    std::memcpy(text, all.data(), std::min(all.size(), kTextBytes - 1));
    return status;
  }

  // OK if all of these clients got a Status, and the same one.
  Status same(const std::vector<int>& clients) {
    const std::string first = texts_->of[clients[0]];
    for (const int client : clients) {
      const std::string text = texts_->of[client];
      if (!text.empty() && text == first) continue;
      return absl::InternalError(absl::StrCat("client ", clients[0], " was told \"", first,
                                              "\", client ", client, " \"", text, "\""));
    }
    return absl::OkStatus();
  }

  // OK if all clients that got a Status got the same one.
  Status same_of_those_told() {
    std::vector<int> told;
    for (int client = 0; client < kMaxClients; ++client) {
      if (texts_->of[client][0] != '\0') told.push_back(client);
    }
    return told.empty() ? absl::OkStatus() : same(told);
  }

 private:
  static constexpr size_t kTextBytes = 8192;
  static constexpr int kMaxClients = 8;
  struct Texts {
    char of[kMaxClients][kTextBytes];
  };
  Shared<Texts> texts_;
};

}  // namespace tessera::testing

#endif  // TESSERA_TESTS_SUPPORT_VERDICTS_H_
