// SPDX-License-Identifier: Apache-2.0
//
// Sends and receives: orders, many outstanding, beside other operations.
#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "collectives/testing/conformance.h"
#include "collectives/testing/conformance_values.h"

namespace tessera::conformance {
namespace {

// A ring in which every member sends to the next; the order of the calls must not matter.
Status ring(const Member& m, bool recv_first) {
  const int n = m.group.size();
  const int next = (m.position + 1) % n;
  const int previous = (m.position + n - 1) % n;
  for (int64_t size : {1, 5, 3000}) {
    const auto in = values_of<double>(size, m.position, size);
    Values<double> out(size);
    std::vector<Work> works;
    if (recv_first) works.push_back(m.group.recv<double>(out.out(), previous));
    works.push_back(m.group.send<double>(in.in(), next));
    if (!recv_first) works.push_back(m.group.recv<double>(out.out(), previous));
    for (const Work& work : works) TESSERA_RETURN_IF_ERROR(work.await());
    TESSERA_RETURN_IF_ERROR(
        expect_equal<double>(out.in(), values_of<double>(size, previous, size), "received"));
  }
  return absl::OkStatus();
}

// More messages under way than any ring of records holds, with a barrier between the sends and the
// receives: a message holds up no other operation.
Status many_outstanding(const Member& m) {
  constexpr int kMessages = 50;
  const int n = m.group.size();
  std::vector<Values<int32_t>> in, out;
  std::vector<Work> works;
  for (int k = 0; k < kMessages; ++k) {
    in.push_back(Values<int32_t>{1000 * m.position + k});
    works.push_back(m.group.send<int32_t>(in.back().in(), (m.position + 1) % n));
  }
  TESSERA_RETURN_IF_ERROR(m.group.barrier().wait(absl::Seconds(20)));
  for (int k = 0; k < kMessages; ++k) {
    out.push_back(Values<int32_t>(1));
    works.push_back(m.group.recv<int32_t>(out.back().out(), (m.position + n - 1) % n));
  }
  for (const Work& work : works) TESSERA_RETURN_IF_ERROR(work.wait(absl::Seconds(20)));
  for (int k = 0; k < kMessages; ++k) {
    TESSERA_RETURN_IF_ERROR(expect_equal<int32_t>(
        out[k].in(), {1000 * ((m.position + n - 1) % n) + k}, "messages arrive in order"));
  }
  return absl::OkStatus();
}

// Member 0 posts a recv from 1 and then one from 2, but 1 sends only after 2 was received.
Status recvs_do_not_queue_behind_each_other(const Member& m) {
  Values<int32_t> a(1), b(1);
  if (m.position == 0) {
    const Work from_1 = m.group.recv<int32_t>(a.out(), 1);
    const Work from_2 = m.group.recv<int32_t>(b.out(), 2);
    TESSERA_RETURN_IF_ERROR(from_1.wait(absl::Seconds(20)));
    TESSERA_RETURN_IF_ERROR(from_2.wait(absl::Seconds(20)));
    return expect(a[0] == 1 && b[0] == 2, "both messages");
  }
  const Values<int32_t> in = {m.position};
  if (m.position == 2) {
    TESSERA_RETURN_IF_ERROR(m.group.send<int32_t>(in.in(), 0).wait(absl::Seconds(20)));
    return m.group.send<int32_t>(in.in(), 1).wait(absl::Seconds(20));
  }
  TESSERA_RETURN_IF_ERROR(m.group.recv<int32_t>(a.out(), 2).wait(absl::Seconds(20)));
  return m.group.send<int32_t>(in.in(), 0).wait(absl::Seconds(20));
}

// A message under way while collectives run on both of its ends.
Status messages_beside_collectives(const Member& m) {
  const int n = m.group.size();
  Values<int32_t> out(1);
  const Work received = m.group.recv<int32_t>(out.out(), (m.position + 1) % n);
  for (int k = 0; k < 20; ++k) TESSERA_RETURN_IF_ERROR(expect_works(m.group));
  TESSERA_RETURN_IF_ERROR(expect(!received.done(), "nothing has been sent yet"));
  // All have posted their receives before the first send.
  TESSERA_RETURN_IF_ERROR(m.group.barrier().await());
  const Values<int32_t> in = {m.position};
  const Work sent = m.group.send<int32_t>(in.in(), (m.position + n - 1) % n);
  TESSERA_RETURN_IF_ERROR(received.await());
  TESSERA_RETURN_IF_ERROR(sent.await());
  return expect_equal<int32_t>(out.in(), {(m.position + 1) % n}, "received");
}

// The sender drops its Work: the message arrives all the same.
Status dropped_work(const Member& m) {
  const Values<int32_t> in = {42};
  Values<int32_t> out(1);
  if (m.position == 0) m.group.send<int32_t>(in.in(), 1);
  if (m.position == 1) {
    TESSERA_RETURN_IF_ERROR(m.group.recv<int32_t>(out.out(), 0).await());
    TESSERA_RETURN_IF_ERROR(expect_equal<int32_t>(out.in(), {42}, "received"));
  }
  return m.group.barrier().await();
}

// Member 1 asks for a message and gives up; both ends get one status, and the next message passes.
Status recv_gives_up(const Member& m) {
  Values<int32_t> out(1, -1);
  const Values<int32_t> in = {5};
  Status first;
  if (m.position == 1) {
    first = m.group.recv<int32_t>(out.out(), 0).wait(absl::Milliseconds(100));
  }
  TESSERA_RETURN_IF_ERROR(m.group.barrier().await());
  if (m.position == 0) first = m.group.send<int32_t>(in.in(), 1).await();
  TESSERA_RETURN_IF_ERROR(
      expect_error(first, absl::StatusCode::kDeadlineExceeded, {"send/recv i32", "missing"}));
  TESSERA_RETURN_IF_ERROR(expect_same_text(m.group, first.message()));
  TESSERA_RETURN_IF_ERROR(expect_equal<int32_t>(out.in(), {-1}, "nothing was received"));
  if (m.position == 0) return m.group.send<int32_t>(in.in(), 1).await();
  TESSERA_RETURN_IF_ERROR(m.group.recv<int32_t>(out.out(), 0).await());
  return expect_equal<int32_t>(out.in(), {5}, "the next message");
}

// The sizes of the two ends differ: both get the error, and the next message passes.
Status size_mismatch(const Member& m) {
  Values<int32_t> memory(3, 7);
  const Status status = m.position == 0 ? m.group.send<int32_t>(memory.in(), 1).await()
                                        : m.group.recv<int32_t>(memory.out().first(2), 0).await();
  TESSERA_RETURN_IF_ERROR(expect_error(status, absl::StatusCode::kInvalidArgument,
                                       {"send/recv i32", "count", "3", "2"}));
  TESSERA_RETURN_IF_ERROR(expect_same_text(m.group, status.message()));
  if (m.position == 0) return m.group.send<int32_t>(memory.in(), 1).await();
  return m.group.recv<int32_t>(memory.out(), 0).await();
}

// Messages of which the first one's sizes differ are received, and the next one is asked for,
// before the sender looks at any: it is told of the first all the same.
Status sender_looks_late(const Member& m) {
  constexpr int kMessages = 16;  // as many as there are records
  constexpr int kRounds = 50;
  for (int round = 0; round < kRounds; ++round) {
    Values<int32_t> memory(3, 7), last(1);
    std::vector<Work> works;
    for (int k = 0; k < kMessages && m.position == 0; ++k) {
      works.push_back(m.group.send<int32_t>(memory.in().first(k == 0 ? 3 : 2), 1));
    }
    for (int k = 0; k < kMessages && m.position == 1; ++k) {
      const Status received = m.group.recv<int32_t>(memory.out().first(2), 0).await();
      if (k > 0) TESSERA_RETURN_IF_ERROR(received);
    }
    if (m.position == 1) works.push_back(m.group.recv<int32_t>(last.out(), 0));
    TESSERA_RETURN_IF_ERROR(expect_works(m.group));
    if (m.position == 0) {
      TESSERA_RETURN_IF_ERROR(
          expect_error(works[0].await(), absl::StatusCode::kInvalidArgument, {"count"}));
      works.push_back(m.group.send<int32_t>(memory.in().first(1), 1));
    }
    TESSERA_RETURN_IF_ERROR(works.back().await());
  }
  return absl::OkStatus();
}

// The sender gives up messages for which no record is left, for none before them is received; both
// ends get one status, and the next message passes.
Status send_gives_up(const Member& m) {
  constexpr int kMessages = 20;
  constexpr int kReceived = 16;  // as many as there are records
  Values<int32_t> memory(1, 7);
  std::vector<Work> works;
  for (int k = 0; k < kMessages && m.position == 0; ++k) {
    works.push_back(m.group.send<int32_t>(memory.in(), 1));
  }
  const auto given_up = [](const Status& status) {
    return expect_error(status, absl::StatusCode::kDeadlineExceeded, {"send/recv i32"});
  };
  for (int k = kReceived; k < kMessages && m.position == 0; ++k) {
    TESSERA_RETURN_IF_ERROR(given_up(works[k].wait(absl::Milliseconds(20))));
  }
  TESSERA_RETURN_IF_ERROR(expect_works(m.group));
  for (int k = 0; k < kMessages; ++k) {
    const Status status =
        m.position == 0 ? works[k].await() : m.group.recv<int32_t>(memory.out(), 0).await();
    TESSERA_RETURN_IF_ERROR(k < kReceived ? status : given_up(status));
  }
  if (m.position == 0) return m.group.send<int32_t>(memory.in(), 1).await();
  return m.group.recv<int32_t>(memory.out(), 0).await();
}

// Each end is told at once that there is no such peer, without waiting for any member.
Status no_such_peer(const Member& m) {
  Values<int32_t> memory(1);
  const auto refused = [&](const Status& status, absl::string_view verb, int peer) {
    return expect_error(status, absl::StatusCode::kInvalidArgument,
                        {absl::StrCat("member ", m.position, " cannot ", verb, " member ", peer),
                         "name another member, 0 to 1"});
  };
  for (const int peer : {-1, 2, m.position}) {
    TESSERA_RETURN_IF_ERROR(
        refused(m.group.send<int32_t>(memory.in(), peer).await(), "send to", peer));
    TESSERA_RETURN_IF_ERROR(
        refused(m.group.recv<int32_t>(memory.out(), peer).await(), "receive from", peer));
  }
  return expect_works(m.group);
}

}  // namespace

std::vector<Case> message_cases() {
  std::vector<Case> cases = {
      {"recvs_do_not_queue_behind_each_other", 3, recvs_do_not_queue_behind_each_other},
      {"messages_beside_collectives", 3, messages_beside_collectives},
      {"dropped_work", 2, dropped_work},
      {"recv_gives_up", 2, recv_gives_up},
      {"send_recv_size_mismatch", 2, size_mismatch},
      {"sender_looks_late", 2, sender_looks_late},
      {"send_gives_up", 2, send_gives_up},
      {"no_such_peer", 2, no_such_peer},
  };
  for (const int n : {2, 3, 4, 7, 8}) {
    cases.push_back({absl::StrCat("ring_send_first_", n), n,
                     [](const Member& m) { return ring(m, /*recv_first=*/false); }});
    cases.push_back({absl::StrCat("ring_recv_first_", n), n,
                     [](const Member& m) { return ring(m, /*recv_first=*/true); }});
  }
  for (const int n : {2, 3}) {
    cases.push_back({absl::StrCat("many_outstanding_", n), n, many_outstanding});
  }
  return cases;
}

}  // namespace tessera::conformance
