// SPDX-License-Identifier: Apache-2.0
// Sessions with a real server whose NVMe engine can be made to fail.
#pragma once
#include "tests/client/session/session_fixture.h"
#include "tests/server/nvme/nvme_io_faulty.h"

namespace gemini::client {

class FaultySessionFixture : public SessionFixture {
 protected:
  FaultySessionFixture() { StartServer(server::WithFaults(DefaultServer(), faults_)); }
  ~FaultySessionFixture() override {
    session_.reset();
    server_.reset();  // Before the faults.
  }

  server::NvmeFaults faults_;
};

}  // namespace gemini::client
