// SPDX-License-Identifier: Apache-2.0
//
// OneJob: one job for many test bodies. To start a client on a GPU takes seconds (contexts, NCCL),
// a body often less.
//
//   TESSERA_TEST_ONE_JOB=8x1 gpu_suites --gtest_filter='*ProcessesShareTheGpu'
//
//   test program   TEST 1: run() waits .......... TEST 2: run() waits ........ end
//   client 0       TEST 1: body(client), reports  TEST 2: body(client), ...    shutdown
//   client 1       TEST 1: body(client), reports  TEST 2: body(client), ...    shutdown
//
// The program forks its clients before the first test, and they run through the same tests: so all
// have the bodies, which a process cannot receive later. In a client run() calls the body with the
// one Client of the process, reports its Status to the test program, and waits until all have
// reported. The stdout of clients is dropped, and only the test program reports tests.
//
// Invariants:
//   1. all processes call run() in the same order, so the filter selects the same tests in each;
//   2. no client begins a body before all have finished the body before;
//   3. all have the same $TESSERA_TEST_SEED, which is drawn if it is not set;
//   4. after the first body that fails the job is over: later bodies have a job each, as without
//      it.
// A body shares no memory with the test program.
#ifndef TESSERA_TESTS_SUPPORT_ONE_JOB_H_
#define TESSERA_TESTS_SUPPORT_ONE_JOB_H_

#include "base/status.h"
#include "tests/support/clients.h"

namespace tessera::testing {

// Whether $TESSERA_TEST_ONE_JOB asks for one job of so many clients and devices each ("8x1"), and
// it is not over.
bool has_one_job(const JobSpec& spec);

// Whether this process is a client of the one job.
bool is_in_one_job();

// Runs the body in the one job; returns the first failure that is no consequence of another, naming
// the client. Requires has_one_job(). The options of the first call apply to all calls.
Status run_in_one_job(const JobSpec& spec, const ClientBody& body);

}  // namespace tessera::testing

#endif  // TESSERA_TESTS_SUPPORT_ONE_JOB_H_
