// SPDX-License-Identifier: Apache-2.0
#include "collectives/span/verdicts.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "collectives/span/letter_body.h"
#include "job/environment/build.h"

namespace tessera::span {

std::string encode_status(const Status& status) {
  return absl::StrCat(static_cast<int>(status.code()), ":", status.message());
}

Status decode_status(absl::string_view text) {
  const size_t colon = text.find(':');
  int code = 0;
  if (colon == text.npos || !absl::SimpleAtoi(text.substr(0, colon), &code)) {
    return absl::InternalError(
        absl::StrCat("an error that another client has reported cannot be read: ", in_quotes(text),
                     "; ", kOneBuildAdvice));
  }
  return Status(static_cast<absl::StatusCode>(code), text.substr(colon + 1));
}

std::vector<std::byte> encode_verdict(const ToldVerdict& verdict) {
  const auto code = static_cast<int32_t>(verdict.status.code());
  std::vector<std::byte> body;
  append(&verdict.call, 1, body);
  append(&code, 1, body);
  append_text(verdict.status.message(), body);
  return body;
}

std::optional<ToldVerdict> decode_verdict(absl::Span<const std::byte> body) {
  ToldVerdict verdict;
  int32_t code = 0;
  if (!take(body, 1, &verdict.call) || !take(body, 1, &code)) return std::nullopt;
  verdict.status = Status(static_cast<absl::StatusCode>(code), text_of(body));
  return verdict;
}

Status Verdicts::decide(uint32_t number, const Status& error, absl::Time limit) const {
  const StatusOr<std::string> first =
      coordinator_.propose(series_, number, encode_status(error), limit);
  return first.ok() ? decode_status(*first) : error;
}

}  // namespace tessera::span
